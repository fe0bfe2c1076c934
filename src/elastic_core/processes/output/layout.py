"""The places of each worker's log and error files, and the destinations of its output streams.

With `--log-dir`, torch's layout: `<log dir>/<run id>_<random>/attempt_<round>/<local rank>/`. Without it, the same
below the run directory. Existing files are never emptied or removed.
"""

import enum
import errno
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from elastic_core.errors import ConfigError
from elastic_core.processes.spec import StreamPlan
from elastic_core.system.private_file import make_chosen_folder, make_folder
from elastic_core.types import Record


class Std(enum.IntFlag):
    """Output streams of a worker, with the numbers that users type."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


_MEANINGS = {str(std.value): std for std in (Std.NONE, Std.OUT, Std.ERR, Std.ALL)}
_FORMS = "give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), for single ranks as RANK:STD,… like 0:3,10:1"


def parse_std(value: str, nproc: int, *, option: str = "--redirects") -> dict[int, Std]:
    """Return the streams of every local rank; `Std.NONE` for ranks that `value` does not name.

    Raises:
        ConfigError: `value` is neither a number from 0 to 3 nor a list of `rank:number` with each rank of this node at
            most once.
    """
    text = value.strip()
    if text in _MEANINGS:
        return dict.fromkeys(range(nproc), _MEANINGS[text])
    streams = dict.fromkeys(range(nproc), Std.NONE)
    named: set[int] = set()
    for item in text.split(","):
        rank_text, colon, std_text = (part.strip() for part in item.partition(":"))
        if not colon or std_text not in _MEANINGS:
            raise ConfigError(f"{option}: {item.strip() or value!r}; expected 0 to 3, or RANK:STD", hint=_FORMS)
        rank = _parse_rank(rank_text, nproc, option=option)
        if rank in named:
            raise ConfigError(f"{option} {value!r}: local rank {rank} is given twice", hint="name each rank once")
        named.add(rank)
        streams[rank] = _MEANINGS[std_text]
    return streams


def parse_ranks(value: str, nproc: int, *, option: str = "--local-ranks-filter") -> frozenset[int] | None:
    """Return the local ranks of a comma-separated list. `None` for an empty list means all ranks.

    Raises:
        ConfigError: An item is no local rank of this node.
    """
    if not value.strip():
        return None
    return frozenset(_parse_rank(item.strip(), nproc, option=option) for item in value.split(","))


def _parse_rank(text: str, nproc: int, *, option: str) -> int:
    digits = text.lstrip("0") or "0"
    if text.isascii() and text.isdigit() and len(digits) < 10 and int(digits) < nproc:
        return int(digits)
    needed = f"a local rank from 0 to {nproc - 1}"
    raise ConfigError(f"{option}: {text[:40]!r}; expected {needed}", hint="such a rank, or a larger --nproc-per-node")


_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")
_NAME_LIMIT_BYTES = 200  # of the 255 that a file name may have


class RankPaths(Record, frozen=True, kw_only=True):
    """One worker's files in one round. If log files are turned off, all but the error file are `None`.

    The filtered files are shared by the round's workers, which append to them.
    """

    local_rank: int
    directory: str
    error_file: str
    stdout: str | None
    stderr: str | None
    filtered_stdout: str | None = None
    filtered_stderr: str | None = None


class LogLayout:
    """The files of one run on this node.

    `log_dir` is the user's `--log-dir`. `None`: files are below `run_dir`, which exists; `os.devnull`: no log
    files, only error files.
    """

    def __init__(self, *, log_dir: str | None, run_dir: Path, run_id: str) -> None:
        self._log_dir = None if log_dir in (None, "", os.devnull) else log_dir
        self._files = log_dir != os.devnull
        self._run_dir = run_dir
        self._run_id = run_id
        self.root = None if self._log_dir else run_dir
        """The directory that contains `attempt_<n>`. `None` before `open` if the user gave `--log-dir`."""

    def open(self) -> Path:
        """Make this run's own directory below `--log-dir`, once, and return it.

        Raises:
            ConfigError: The log directory is a file, or is not writable.
        """
        if self.root is None:
            self.root = self._make_root(self._log_dir or "")
        return self.root

    def _make_root(self, log_dir: str) -> Path:
        path = Path(log_dir).absolute() / f"{quote_id(self._run_id)}_{os.urandom(4).hex()}"
        try:
            make_chosen_folder(str(path))
        except OSError as error:
            raise _log_dir_error(log_dir, error) from error
        return path

    def discard_empty(self) -> None:
        """Remove the empty parts of this run's own directory below `--log-dir`."""
        if self._log_dir is None or self.root is None:
            return
        folders = [self.root, *self.root.glob("attempt_*"), *self.root.glob("attempt_*/*")]
        for folder in reversed(folders):
            with suppress(OSError):  # it is not empty, or missing
                folder.rmdir()

    def prepare(self, round_index: int, local_rank: int) -> RankPaths:
        """Make one worker's directory for one round, and return the names of its files, which are not created.

        Raises:
            ConfigError: The directory cannot be made.
        """
        directory = self.open() / f"attempt_{round_index}" / str(local_rank)
        try:
            if self._log_dir is None:
                make_folder(str(directory))
            else:
                make_chosen_folder(str(directory))
            error_file = _free_error_file(directory)
        except OSError as error:
            raise _log_dir_error(self._log_dir or str(self._run_dir), error, given=bool(self._log_dir)) from error
        return rank_paths(directory, local_rank, error_file=error_file, files=self._files)


def rank_paths(directory: Path, local_rank: int, *, error_file: str, files: bool) -> RankPaths:
    """Return the names of a worker's files in its directory; `files` is whether there are log files."""
    return RankPaths(
        local_rank=local_rank,
        directory=str(directory),
        error_file=error_file,
        stdout=str(directory / "stdout.log") if files else None,
        stderr=str(directory / "stderr.log") if files else None,
        filtered_stdout=str(directory.parent / "filtered_stdout.log") if files else None,
        filtered_stderr=str(directory.parent / "filtered_stderr.log") if files else None,
    )


def _free_error_file(directory: Path) -> str:
    # Error files of an earlier run are kept, and must not be taken for this run's.
    path, number = directory / "error.json", 1
    while path.exists():
        path, number = directory / f"error_{number}.json", number + 1
    return str(path)


def quote_id(run_id: str) -> str:
    """Return a run id as part of a file name: bytes other than letters, digits and `-_.~` become `%XX`."""
    quoted = "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in os.fsencode(run_id))
    return quoted[:_NAME_LIMIT_BYTES]


_REASONS = {
    errno.EEXIST: "is a file, not a directory",
    errno.ENOTDIR: "is a file, or lies below one, not a directory",
    errno.EACCES: "can't be written (permission denied)",
    errno.EPERM: "can't be written (operation not permitted)",
    errno.EROFS: "is on a read-only file system",
    errno.ENOSPC: "is on a full disk",
    errno.EDQUOT: "is over its disk quota",
    errno.ENAMETOOLONG: "has a name that is too long",
}


def _log_dir_error(path: str, error: OSError, *, given: bool = True) -> ConfigError:
    option = "--log-dir" if given else "run directory"
    reason = _REASONS.get(error.errno or 0, f"can't be used ({error.strerror or error})")
    advice = "a directory that you can write to, with room left"
    return ConfigError(f"{option} {path!r} {reason}", hint=f"{advice}, or --log-dir {os.devnull} for no log files")


def stream_plans(
    paths: RankPaths,
    *,
    redirects: Mapping[int, Std],
    tee: Mapping[int, Std],
    ranks_filter: Collection[int] | None = None,
    prefix_template: str | None = None,
    role: str = "default",
    global_rank: int = 0,
) -> tuple[StreamPlan, StreamPlan]:
    """Return the destinations of a worker's stdout and stderr.

    A redirected stream goes to its file alone; a tee'd one to its file and, with a prefix on each line, to the console;
    any other to the console itself. Ranks outside `ranks_filter` (`None`: no filter) never reach the console: their
    streams go to their files if they have any, else to /dev/null.
    """
    local_rank = paths.local_rank
    shown = ranks_filter is None or local_rank in ranks_filter
    teed, redirected = tee.get(local_rank, Std.NONE), redirects.get(local_rank, Std.NONE)
    prefix = line_prefix(prefix_template, role=role, local_rank=local_rank, global_rank=global_rank)

    def plan(stream: Std, path: str | None) -> StreamPlan:
        if stream & teed:
            return StreamPlan(file=path, console=shown, inherit=False, prefix=prefix)
        if stream & redirected:
            return StreamPlan(file=path, inherit=False)
        return StreamPlan(inherit=shown)

    return plan(Std.OUT, paths.stdout), plan(Std.ERR, paths.stderr)


def line_prefix(template: str | None, *, role: str, local_rank: int, global_rank: int) -> str:
    """Return the prefix of a worker's lines: `[<role><local rank>]:`, or the filled-in template.

    The template may contain `${role_name}`, `${local_rank}`, `${rank}` and `${hostname}` (this node's, not its full
    name). Other text is kept.
    """
    if not template:
        return _flat(f"[{role}{local_rank}]:")
    import socket
    from string import Template  # rarely needed, and slow to import

    host = socket.gethostname()
    filled = Template(template).safe_substitute(role_name=role, local_rank=local_rank, rank=global_rank, hostname=host)
    return _flat(filled)


def _flat(prefix: str) -> str:
    return prefix.replace("\r", " ").replace("\n", " ")  # line ends in a prefix would break lines
