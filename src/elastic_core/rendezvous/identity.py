"""The identity of a node in its run: its id, its attempt, and the comparison of its command line with the run's.

A node with a different command line from the rest of the run would wait, hang, or train something else. So each node
publishes a fingerprint of its command line (`options.run_fingerprint`), and each node that joins compares its own.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from elastic_core.errors import ConfigError, RendezvousError, nearest
from elastic_core.types import Record

REFUSED: Final = frozenset({"nnodes", "entrypoint", "nproc", "backend_options", "agent", "format", "torch"})
"""Fingerprint keys in which a difference can be an error; `_is_slip` decides."""
WARNED: Final = frozenset({"role", "arguments", "policy", "python"})
"""Fingerprint keys in which a difference may be intended."""
ALLOWABLE: Final = (REFUSED | WARNED) - {"agent", "format"}
"""The keys that `--allow-mismatch` accepts. Agents with different formats can't be allowed."""

_LABELS: Final = {
    "nnodes": "--nnodes",
    "nproc": "--nproc-per-node",
    "role": "--role",
    "backend_options": "--rdzv-conf",
    "policy": "--policy",
    "arguments": "script arguments",
    "entrypoint": "the entry point",
    "agent": "the launcher",
    "format": "wire format",
    "python": "Python",
}
_ATTEMPT_VARIABLES: Final = ("SLURM_RESTART_COUNT", "JOBSET_RESTART_ATTEMPT", "AWS_BATCH_JOB_ATTEMPT")
_JOB_VARIABLES: Final = (
    ("SLURM_JOB_ID", "slurm", True),
    ("AWS_BATCH_JOB_ID", "batch", False),
    ("ELASTIC_JOB_ID", "job", False),
)
"""The variable, the scheduler's name, and whether a job without an attempt count is in its first attempt."""
_DERIVED: Final = re.compile(r"\S+ \((\d+)\)")
_ODD: Final = re.compile(r"[^\w.@:%+-]+")


# --- the comparison of command lines


class Difference(Record, frozen=True, kw_only=True):
    """One key in which two fingerprints differ."""

    key: str
    mine: str
    theirs: str


def compare_fingerprints(
    mine: Mapping[str, str], theirs: Mapping[str, str], allowed: Collection[str] = ()
) -> tuple[list[Difference], list[Difference]]:
    """Return the differences that reject a join, and the differences that only need a warning.

    Allowed differences are in neither list. Keys that only one side has don't count: `format` distinguishes versions.
    """
    refusals: list[Difference] = []
    warnings: list[Difference] = []
    for key in mine:
        if key in allowed or key not in theirs or key not in REFUSED | WARNED:
            continue
        if mine[key] == theirs[key] or (key == "nproc" and _count_of(mine[key]) == _count_of(theirs[key])):
            continue
        difference = Difference(key=key, mine=mine[key], theirs=theirs[key])
        (refusals if _is_slip(key, mine, theirs) else warnings).append(difference)
    return refusals, warnings


def _is_slip(key: str, mine: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
    """Return whether a difference can only be an error.

    Nodes of another role may have another script and another number of workers, and `gpu` may mean another number on
    each node. A torch version that one side could not find (for example in the workers' container) may be equal.
    """
    sides = (mine[key], theirs[key])
    same_role = not ("role" in mine and "role" in theirs) or mine["role"] == theirs["role"]
    if key == "nproc":
        return same_role and all(map(str.isdecimal, sides))
    if key == "entrypoint":
        return same_role
    if key == "torch":
        return all(sides) and _minor(mine[key]) != _minor(theirs[key])
    return key in REFUSED


def _count_of(nproc: str) -> str:
    derived = _DERIVED.fullmatch(nproc)
    return derived.group(1) if derived else nproc


def _minor(release: str) -> list[str]:
    return release.split(".")[:2]


def mismatch_error(run_id: str, where: str, refusals: Sequence[Difference]) -> RendezvousError:
    """Return the error of a node that has a different command line from the run that it wants to join.

    `where` is the store's endpoint as messages show it: `redis at host:6379`. There is at least one difference.
    """
    allowable = ",".join(difference.key for difference in refusals if difference.key in ALLOWABLE)
    blocked = any(difference.key not in ALLOWABLE for difference in refusals)
    hint = "the same launcher and elastic-core on every node" if blocked else "the same command line on every node"
    if any(difference.key == "torch" for difference in refusals) and not blocked:
        hint += " with the same torch"
    if not blocked:
        hint += f", or --allow-mismatch {allowable}"
    return RendezvousError(f"run {run_id!r} on {where} {_differing(refusals)}", hint=hint)


def mismatch_warning(run_id: str, warnings: Sequence[Difference]) -> str:
    """Return the line about differences that may be intended."""
    return f"run {run_id!r} {_differing(warnings)}"


def _differing(differences: Sequence[Difference]) -> str:
    theirs = " and ".join(f"{_LABELS.get(each.key, each.key)} {each.theirs or 'none'}" for each in differences)
    mine = " and ".join(each.mine or "none" for each in differences)
    return f"was begun with {theirs}, this node has {mine}"


def parse_allow_mismatch(texts: Iterable[str]) -> frozenset[str]:
    """Return the keys of `--allow-mismatch`; the option may be repeated, and each value may list several keys.

    Raises:
        ConfigError: a key can't be allowed; the error names the nearest key that can.
    """
    keys = [key for text in texts for part in text.split(",") if (key := part.strip())]
    for key in keys:
        if key not in ALLOWABLE:
            near = nearest(key, ALLOWABLE)
            known = ", ".join(sorted(ALLOWABLE))
            raise ConfigError(
                f"--allow-mismatch: {key!r}; expected one of {known}",
                hint=f"--allow-mismatch {near}" if near else "one of these",
            )
    return frozenset(keys)


# --- names


def user_name() -> str:
    """Return the name of this process's user, or the user id if there is no name."""
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def default_node_id(host_name: str, local_address: str) -> str:
    """Return the default node id, for example `gpu-017@10.0.0.17`; it is the same after a restart of the agent.

    It is printable, without blanks, commas and slashes, because logs, lists and paths contain it. The address is left
    out if it adds no information: the usual loopback address, or the host's name itself.
    """
    host = _ODD.sub("_", host_name.strip()) or "node"
    address = _ODD.sub("_", local_address.strip())
    return host if address in ("", "127.0.0.1", "::1", host) else f"{host}@{address}"


class RunAttempt(Record, frozen=True, kw_only=True):
    """The attempt of the run to which a node belongs.

    `job` is the scheduler's job name, empty if there is none. `given` means that job and count together distinguish
    this attempt from every other attempt.
    """

    number: int = 0
    job: str = ""
    given: bool = False


def attempt_from_environment(environ: Mapping[str, str]) -> RunAttempt:
    """Return the attempt of this node: equal on all nodes of one attempt, different after a requeue.

    The scheduler's variables are `SLURM_JOB_ID` with `SLURM_RESTART_COUNT` (absent in the first attempt), and
    `AWS_BATCH_JOB_ID` with `AWS_BATCH_JOB_ATTEMPT` (from 1). Kubernetes sets none: manifests map the uid of the Job or
    JobSet to `ELASTIC_JOB_ID`, and a JobSet's pod annotation `jobset.sigs.k8s.io/restart-attempt` to
    `JOBSET_RESTART_ATTEMPT`. A plain Job has no count. Values that are not numbers are ignored.
    """
    number = next((int(text) for name in _ATTEMPT_VARIABLES if _is_number(text := environ.get(name, "").strip())), None)
    for variable, scheduler, counts in _JOB_VARIABLES:
        name = environ.get(variable, "").strip().partition("#")[0]  # AWS Batch: the node's index follows the `#`
        if name:
            return RunAttempt(number=number or 0, job=f"{scheduler} {name}", given=counts or number is not None)
    return RunAttempt(number=number or 0)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
