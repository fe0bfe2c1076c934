"""Checks of the host: limits, shared memory, disks."""

import os
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from elastic_doctor.findings import Asked, Finding, Level

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_FEW_FILES: Final = (256, 4096)
"""Fewer than the first make a run fail; fewer than the second are scarce for data loaders that share tensors by
descriptor.
"""
_FEW_PROCESSES: Final = 2048
_LITTLE_SHARED: Final = 1 * _GIB
"""Docker's default is 64 MiB, with which a data loader's worker dies by SIGBUS."""
_LITTLE_DISK: Final = (64 * _MIB, 2 * _GIB)
_FEW_INODES: Final = 1000
_SHM: Final = Path("/dev/shm")  # what is looked at
_INFINIBAND: Final = Path("/dev/infiniband")


def open_files(asked: Asked) -> Iterator[Finding]:
    """Check whether agent and workers may open enough files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield _limit("open files", soft, hard, least=_FEW_FILES, option="n", unit="descriptors")


def locked_memory(asked: Asked) -> Iterator[Finding]:
    """Check whether InfiniBand, if there is any, may lock memory."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if not _INFINIBAND.exists():
        return
    if soft == resource.RLIM_INFINITY:
        yield Finding(check="locked memory", level=Level.OK, what="unlimited")
        return
    yield Finding(
        check="locked memory",
        level=Level.WARN,
        what=f"{_size(soft)} may be locked, and there is InfiniBand: NCCL registers more",
        remedy="ulimit -l unlimited (LimitMEMLOCK=infinity for the scheduler's daemon, --ulimit memlock=-1 for Docker)",
    )


def processes(
    asked: Asked, *, cgroup: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> Iterator[Finding]:
    """Check whether there may be enough processes and threads for this user, and in this container."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    yield _limit("processes", soft, hard, least=(64, _FEW_PROCESSES), option="u", unit="processes and threads")
    folder = next((line[3:].strip("/\n") for line in _text(own).splitlines() if line.startswith("0::")), None)
    if folder is None:
        return
    most, now = _text(cgroup / folder / "pids.max").strip(), _text(cgroup / folder / "pids.current").strip()
    if most.isdecimal() and now.isdecimal() and int(most) - int(now) < _FEW_PROCESSES:
        yield Finding(
            check="processes",
            level=Level.WARN,
            what=f"this container may have {most} processes and threads, and has {now}",
            remedy="a higher pids limit (--pids-limit of Docker, podPidsLimit of the kubelet, TasksMax= of systemd)",
        )


def _limit(check: str, soft: int, hard: int, *, least: tuple[int, int], option: str, unit: str) -> Finding:
    shown = _number(soft)
    if soft == resource.RLIM_INFINITY or soft >= least[1]:
        return Finding(check=check, level=Level.OK, what=f"{shown} {unit}")
    wanted = least[1] if hard == resource.RLIM_INFINITY else min(hard, max(65536, least[1]))
    remedy = f"ulimit -{option} {wanted}"
    if hard != resource.RLIM_INFINITY and hard < least[1]:
        remedy = f"a higher hard limit than {hard} (limits.conf, the scheduler's daemon, the container)"
    level = Level.FAIL if soft < least[0] else Level.WARN
    return Finding(check=check, level=level, what=f"{shown} {unit}: few for data loaders", remedy=remedy)


def shared_memory(asked: Asked, *, place: Path = _SHM) -> Iterator[Finding]:
    """Check whether data loaders can pass batches through memory."""
    try:
        found = os.statvfs(place)
    except OSError as err:
        remedy = "mount a tmpfs there"
        yield Finding(check=str(place), level=Level.WARN, what=f"can't be looked at ({err.strerror})", remedy=remedy)
        return
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    what = f"{_size(free)} of {_size(size)} free"
    if size < _LITTLE_SHARED:
        remedy = "--shm-size=8g for Docker, an emptyDir with medium: Memory at /dev/shm for Kubernetes"
        yield Finding(check=str(place), level=Level.WARN, what=f"{what}: data loaders may die by SIGBUS", remedy=remedy)
    elif free < size / 10:
        yield Finding(
            check=str(place), level=Level.WARN, what=what, remedy=f"remove what ended jobs have left: ls -l {place}"
        )
    else:
        yield Finding(check=str(place), level=Level.OK, what=what)


def processors(asked: Asked) -> Iterator[Finding]:
    """Check whether there is a processor for each worker."""
    count = len(os.sched_getaffinity(0))
    what = f"{count} for this process"
    if asked.worker_count is not None and asked.worker_count > count:
        what = f"{what}, {asked.worker_count} workers"
        remedy = "ask the scheduler for more (--cpus-per-task of Slurm, requests.cpu of Kubernetes)"
        yield Finding(check="processors", level=Level.WARN, what=what, remedy=remedy)
    else:
        yield Finding(check="processors", level=Level.OK, what=what)


# --- disks


def disks(asked: Asked) -> Iterator[Finding]:
    """Check whether logs and run directories can be written."""
    places = {"run directory": asked.run_dir or tempfile.gettempdir()}
    if asked.log_dir and asked.log_dir != os.devnull:
        places["log directory"] = asked.log_dir
    for name, place in places.items():
        yield _disk(name, Path(place))


def _disk(name: str, place: Path) -> Finding:
    option = "--log-dir" if name == "log directory" else "--run-dir (or TMPDIR)"
    there = next((each for each in (place.absolute(), *place.absolute().parents) if each.exists()), Path("/"))
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x" * _KIB)
            file.flush()
        found = os.statvfs(there)
    except OSError as err:
        what = f"{str(place)!r} can't be written ({err.strerror})"
        return Finding(check=name, level=Level.FAIL, what=what, remedy=f"{option} with a directory of yours")
    free = found.f_bavail * found.f_frsize
    what = f"{str(place)!r}: {_size(free)} free"
    if found.f_files and found.f_favail < _FEW_INODES:
        return Finding(
            check=name, level=Level.WARN, what=f"{what}, room for {found.f_favail} files", remedy="remove some there"
        )
    if free >= _LITTLE_DISK[1]:
        return Finding(check=name, level=Level.OK, what=what)
    level = Level.FAIL if free < _LITTLE_DISK[0] else Level.WARN
    remedy = f"make room, {option} elsewhere, or --log-max-size"
    return Finding(check=name, level=level, what=what, remedy=remedy)


def _size(count: float) -> str:
    for unit, size in (("GiB", _GIB), ("MiB", _MIB)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 1000 * size else f"{count / size:.0f} {unit}"
    return f"{count / _KIB:.0f} KiB"


def _number(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
