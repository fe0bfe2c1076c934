#!/usr/bin/env bash
# Installs what the tests under a real Slurm need, with apt, and has no service started: they start daemons of their own.
set -euo pipefail

missing=no
for program in slurmctld slurmd munged srun; do
    PATH="$PATH:/usr/sbin" command -v "$program" >/dev/null || missing=yes
done
[ "$missing" = yes ] || exit 0

sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo -n"
policy=/usr/sbin/policy-rc.d # what packages ask before they start what they bring
if [ ! -e "$policy" ]; then
    trap '$sudo rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
    $sudo chmod 755 "$policy"
fi
$sudo apt-get update -q
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends slurmctld slurmd slurm-client munge
