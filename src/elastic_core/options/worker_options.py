"""The options for workers: their number on a node, their devices, and their threads."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from elastic_core.errors import ConfigError, nearest
from elastic_core.option_spec import RunOption
from elastic_core.options.choices import Choices, Draft, Section, section
from elastic_core.options.readers import integer, name_of, unprintable
from elastic_core.types import Record

if TYPE_CHECKING:
    from elastic_core.options.devices import Node


class WorkerSettings(Record, frozen=True, kw_only=True):
    """How this node's workers are started. Their number is in `nodes.local_world_size`, for all nodes."""

    nproc_source: str = ""
    """What their number was derived from: `gpu`, `auto`, `cpu`, `xpu` or `--devices`. Empty if it was typed."""
    devices: tuple[str, ...] = ()
    """The visible device for each local rank (`--devices`). Empty means inherited."""
    device_variable: str = "CUDA_VISIBLE_DEVICES"
    virtual_local_rank: bool = False
    omp_threads: int | None = None
    """The value of OMP_NUM_THREADS. `None` means inherited."""
    debug_rank: int | None = None
    worker_hooks: bool = True
    """Whether workers' interpreters record uncaught exceptions (off with `--no-worker-hooks`)."""


WORKERS: Final = section(
    Section.WORKERS,
    RunOption(
        name="nproc_per_node",
        metavar="N|auto|gpu|cpu|xpu",
        help="Number of workers on this node. gpu, cpu or xpu: one per GPU, CPU core or XPU. auto: one per "
        "accelerator, or one per CPU core on a node without accelerators.",
        default="1",
        torch=True,
        field="nodes.local_world_size",
    ),
    RunOption(
        name="module",
        type="bool",
        help="SCRIPT is the name of a module, run as with 'python -m'.",
        short="m",
        torch=True,
    ),
    RunOption(
        name="no_python",
        type="bool",
        help="SCRIPT is a program of any kind; run it directly, without the Python interpreter.",
        torch=True,
    ),
    RunOption(
        name="devices",
        metavar="LIST",
        help="GPUs to use, such as 1,3,5 (or their UUIDs). Each worker sees the whole list, and LOCAL_RANK is an "
        "index into it; with --virtual-local-rank each worker sees one GPU only. If a list of visible devices is "
        "inherited, the numbers are positions in that list.",
        default_note="all that are visible",
        field="workers.devices",
    ),
    RunOption(
        name="omp_threads",
        metavar="auto|N",
        help="OMP_NUM_THREADS of each worker. auto: usable cores divided by the number of workers, at least 1.",
        default_note="as inherited; 1 if it is unset and there are several workers",
        field="workers.omp_threads",
    ),
    RunOption(
        name="virtual_local_rank",
        type="bool",
        help="LOCAL_RANK is 0 in each worker, and each worker sees only its own device.",
        torch=True,
        field="workers.virtual_local_rank",
    ),
    RunOption(
        name="role",
        metavar="NAME",
        help="Role name of the workers, used in ROLE_NAME, log prefixes and reports.",
        default="default",
        fault=unprintable,
        hint="--role trainer",
        torch=True,
        field="nodes.role",
        read=name_of,
    ),
)


_WORDS = ("auto", "gpu", "cpu", "xpu")


def place_workers(draft: Draft, node: "Node | None") -> int:
    """Set the number of workers, their devices and their threads; return the number.

    `node` is where devices are counted; `None` means this node.

    Raises:
        ConfigError: A value is malformed, or this node has no such device.
    """
    draft.settle(WORKERS)
    choices = draft.choices
    virtual = choices.flag("virtual_local_rank")
    draft.take("virtual_local_rank", virtual)
    devices: tuple[str, ...] = ()
    variable = ""
    if choices.text("devices") is not None or virtual:
        from elastic_core.options.devices import choose_devices

        variable, devices = choose_devices(draft, node)
    if devices:
        draft.take("devices", devices)
    nproc = _number(draft, len(devices), node)
    if devices and nproc > len(devices):
        what = f"{len(devices)} in --devices for {nproc} workers"
        if virtual:
            raise ConfigError(f"--virtual-local-rank gives each worker one device: {what}", hint="name more devices")
        draft.notice(f"{what}: a LOCAL_RANK from {len(devices)} up has no device of its own")
    if virtual and not devices:
        _refuse_too_few_inherited(draft, variable, nproc)
    threads, origin, line = omp_threads(choices, nproc, draft.environ)
    draft.set("workers.omp_threads", threads, origin)
    if line:
        draft.notice(line)
    return nproc


def _number(draft: Draft, device_count: int, node: "Node | None") -> int:
    choices, dest = draft.choices, "nproc_per_node"
    if device_count and not choices.chosen(dest):
        return _derived(draft, device_count, "--devices", "derived: one per device of --devices")
    text = (choices.text(dest) or "").strip()
    if text.removeprefix("-").removeprefix("+").isdecimal():
        number = integer(choices, dest, least=1)
        draft.take(dest, number)
        return number
    if device_count and text in ("auto", "gpu", "xpu"):
        return _derived(draft, device_count, text, f"derived: {choices.label(dest)}, one per device of --devices")
    from elastic_core.options.devices import count_for, node_here  # not needed for a number

    found = count_for(text, node or node_here(draft.environ))
    if found is None:
        choices.reject(dest, f"a number from 1 up, or {', '.join(_WORDS)}", hint=nearest(text, _WORDS) or "auto")
    if found.count < 1:
        raise ConfigError(
            f"{choices.label(dest)}: {found.reason}",
            hint="--nproc-per-node cpu or a number; 'nvidia-smi' or 'rocminfo' show what the driver sees",
        )
    return _derived(draft, found.count, text, f"derived: {choices.label(dest)}, {found.reason}")


def _derived(draft: Draft, count: int, source: str, origin: str) -> int:
    draft.set("nodes.local_world_size", count, origin)
    draft.set("workers.nproc_source", source, origin)
    return count


def _refuse_too_few_inherited(draft: Draft, variable: str, nproc: int) -> None:
    # The plan of the workers would fail later. An unset variable limits nothing.
    inherited = draft.environ.get(variable)
    count = nproc if inherited is None else sum(1 for part in inherited.split(",") if part.strip())
    if count < nproc:
        raise ConfigError(
            f"--virtual-local-rank gives each worker one device: {count} in {variable}={inherited!r} for "
            f"{nproc} workers",
            hint=f"name more devices, lower --nproc-per-node, or unset {variable}",
        )


# --- threads ---


def omp_threads(choices: Choices, nproc: int, environ: Mapping[str, str]) -> tuple[int | None, str, str | None]:
    """Return the value of OMP_NUM_THREADS (`None`: inherited), its origin, and a line for the user.

    Raises:
        ConfigError: `--omp-threads` is neither `auto` nor a number from 1 up.
    """
    text = choices.text("omp_threads")
    if text == "auto":
        cores = usable_cores()
        return max(1, cores // nproc), f"derived: {cores} usable cores for {nproc} workers", None
    if text is not None:
        return integer(choices, "omp_threads", least=1), choices.origin("omp_threads"), None
    if "OMP_NUM_THREADS" in environ:
        return None, "env OMP_NUM_THREADS", None
    if nproc == 1:
        return None, "default", None
    line = f"OMP_NUM_THREADS is unset: each of the {nproc} workers gets 1 thread. Try: --omp-threads auto"
    return 1, "derived: unset, several workers", line


def usable_cores(cgroup_root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int:
    """Return the number of cores that this process may use, by its CPU affinity and its control group's CPU quota."""
    cores = len(os.sched_getaffinity(0))
    quota = _quota(cgroup_root, membership)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _quota(cgroup_root: Path, membership: Path) -> float | None:
    # The smallest CPU quota from our control group up to the root, in cores. `None` means no quota.
    own = next((line[3:] for line in _read(membership).splitlines() if line.startswith("0::")), "/")
    folder = cgroup_root / own.strip().lstrip("/")
    quotas = []
    for group in (folder, *folder.parents):
        if not group.is_relative_to(cgroup_root):
            break
        fields = _read(group / "cpu.max").split()
        if len(fields) == 2 and all(field.isdecimal() for field in fields) and int(fields[1]) > 0:
            quotas.append(int(fields[0]) / int(fields[1]))
    return min(quotas, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # no such control group or controller: no limit
