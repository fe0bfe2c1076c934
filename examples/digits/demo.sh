#!/usr/bin/env bash
# Trains on two workers, lets one crash half-way, and checks that the run went on from the checkpoint and learned.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
runs=$here/runs
checkpoint=$runs/demo.pt
mkdir -p "$runs"
rm -f "$checkpoint" "$checkpoint".*

fail() {
    echo "demo FAILED: $1"
    exit 1
}

command=(elastic run --nproc-per-node 2 --max-restarts 2 "$here/train.py"
    --epochs 15 --checkpoint "$checkpoint" --crash-at-epoch 7)
echo "\$ ${command[*]}"
"${command[@]}" | tee "$runs/demo.log" || fail "exit code $?"

[ -e "$checkpoint.crashed" ] || fail "no worker crashed"
grep -q '^training from epoch 7 of ' "$runs/demo.log" || fail "the run did not go on from the checkpoint of epoch 7"
accuracy=$(sed -n 's/^held-out accuracy: //p' "$runs/demo.log")
[ -n "$accuracy" ] || fail "no accuracy was measured"
echo "demo passed: a worker crashed in epoch 8, all workers resumed from epoch 7's checkpoint, held-out accuracy $accuracy"
