"""Checks of variables that harm a run: left over, misspelt, or with a name that does not exist here."""

import socket
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Final

from elastic_core.api.commands import run_option
from elastic_core.api.plugins import find_entries
from elastic_doctor.findings import Asked, Finding, Level

_PREFIX: Final = "PET_"
_OPTIONS: Final = "elastic_core.options"
_OF_WORKERS: Final = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_INTERFACES: Final = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES")
_HARMFUL: Final = {
    "CUDA_LAUNCH_BLOCKING": ("1", "each kernel is waited for: for finding errors, not for training"),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": ("0", "a rank whose peer has failed waits for ever"),
    "TORCH_NCCL_BLOCKING_WAIT": ("1", "collectives block the process: slower"),
    "NCCL_P2P_DISABLE": ("1", "GPUs of a node speak through its memory: slower"),
    "NCCL_IB_DISABLE": ("1", "InfiniBand is left unused: slower"),
}


def run_variables(asked: Asked) -> Iterator[Finding]:
    """Check whether the variables of `elastic run` (PET_…) belong to options, and have values."""
    names = sorted(name for name in asked.environ if name.startswith(_PREFIX))
    found = list(_odd(asked, names))
    yield from found
    if names and not found:
        yield Finding(check="variables", level=Level.OK, what=f"in use: {', '.join(names)}")


def _odd(asked: Asked, names: Sequence[str]) -> Iterator[Finding]:
    brought = {entry.name.replace("-", "_") for entry in find_entries(_OPTIONS)}
    for name in names:
        dest = name.removeprefix(_PREFIX).lower()
        if not (dest in brought or _is_option(dest)):
            near = get_close_matches(dest, [*brought, *_NEAR], n=1)
            remedy = f"{_PREFIX}{near[0].upper()}" if near else f"unset {name}"
            what = f"{name} is no option's variable: it is not looked at"
            yield Finding(check="variables", level=Level.WARN, what=what, remedy=remedy)
        elif not asked.environ[name].strip():
            what = f"{name} is empty: it counts as not set"
            yield Finding(check="variables", level=Level.WARN, what=what, remedy=f"a value, or unset {name}")


_NEAR: Final = ("nnodes", "node_rank", "nproc_per_node", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf")
"""Options whose variables are often meant, in addition to those of distributions."""


def _is_option(dest: str) -> bool:
    try:
        run_option(dest)
    except KeyError:
        return False
    return True


def left_over(asked: Asked) -> Iterator[Finding]:
    """Check whether variables of an earlier launch are still set."""
    found = [name for name in _OF_WORKERS if name in asked.environ]
    if found and "TORCHELASTIC_RUN_ID" not in asked.environ:  # a worker has them by right
        what = f"left over: {', '.join(f'{name}={asked.environ[name]}' for name in found)}"
        remedy = f"unset {' '.join(found)}: elastic run sets them for its workers, other programs would believe these"
        yield Finding(check="variables", level=Level.WARN, what=what, remedy=remedy)
    for name, (value, effect) in _HARMFUL.items():
        if asked.environ.get(name) == value:
            what = f"{name}={value}: {effect}"
            yield Finding(check="variables", level=Level.WARN, what=what, remedy=f"unset {name}, unless it is meant")


def interfaces(asked: Asked) -> Iterator[Finding]:
    """Check whether the network interfaces in variables exist."""
    there = [name for _, name in socket.if_nameindex()]
    for variable in _INTERFACES:
        text = asked.environ.get(variable, "")
        if not text:
            continue
        if any(_fits(variable, text, name) for name in there):
            yield Finding(check="interfaces", level=Level.OK, what=f"{variable}={text}")
        else:
            what = f"{variable}={text} fits no interface of this node: {', '.join(there)}"
            remedy = f"one of those, or unset {variable}"
            yield Finding(check="interfaces", level=Level.FAIL, what=what, remedy=remedy)


def _fits(variable: str, text: str, name: str) -> bool:
    """Return whether a variable means an interface. NCCL uses prefixes, `=` for whole names and `^` for others."""
    parts = [part.strip() for part in text.lstrip("^=").split(",") if part.strip()]
    if variable != "NCCL_SOCKET_IFNAME":
        return name in [part.partition(":")[0] for part in parts] or (variable.startswith("UCX") and text == "all")
    whole = text.lstrip("^").startswith("=")
    named = name in parts if whole else name.startswith(tuple(parts))
    return named != text.startswith("^")
