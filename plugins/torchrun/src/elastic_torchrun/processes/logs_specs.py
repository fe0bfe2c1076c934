"""Torch's interface for the destination of workers' output, for classes written for it.

Without `--logs-specs`, `elastic run` does not use it. Names, constructor and fields are torch's.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from elastic_core.embedding import LogLayout, RankPaths, StreamPlan, stream_plans
from elastic_core.embedding import Std as StreamSet
from elastic_torchrun.processes.std import Std, to_map

CONSOLE = ""
"""Means the process's own stream, in place of a file's path."""


# A dataclass, as in torch, unlike our own records: subclasses of `LogsSpecs` change what `super().reify` returned.
@dataclass
class LogsDest:
    """Files by local rank. `stdouts` and `stderrs` have one for each rank; an empty name means the console.

    A rank in `tee_stdouts` or `tee_stderrs` also prints to the console, with a prefix before each line. Lines that
    match `--duplicate-stdout-filters` go to `filtered_stdout`; likewise stderr.
    """

    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    filtered_stdout: str = ""
    filtered_stderr: str = ""


class LogsSpecs(ABC):
    """Decides for each round the destinations of the workers' streams and error files.

    Args:
        log_dir: The user's `--log-dir`.
        redirects: Streams that go to files, for all workers or by local rank.
        tee: Streams that go to files and to the console.
        local_ranks_filter: Workers with output on the console. `None` means all.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        """Keep the user's options."""
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter

    @abstractmethod
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the files of one round. Called: before its workers start; changes in `envs` reach them.

        Args:
            envs: Each worker's environment, by local rank.
        """

    @property
    @abstractmethod
    def root_log_dir(self) -> str:
        """The directory of the files."""


class DefaultLogsSpecs(LogsSpecs):
    """Torch's layout `<log dir>/<run id>_<random>/attempt_<n>/<local rank>/`. No existing file is emptied or removed.

    Without a log directory, a temporary one is made when it is first needed. With `os.devnull` there are no files:
    redirected output is discarded, tee'd output goes to the console only.

    Raises:
        NotADirectoryError: the log directory is a file.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        """Make nothing yet."""
        if log_dir and log_dir != os.devnull and Path(log_dir).is_file():
            raise NotADirectoryError(f"log_dir: {log_dir} is a file")
        super().__init__(log_dir, redirects, tee, local_ranks_filter)
        self._layout: LogLayout | None = None
        self._temporary = ""

    @property
    def root_log_dir(self) -> str:
        """The log directory. If none was given, a temporary one is made now."""
        if not self._root_log_dir:
            import tempfile  # 10 ms, and rarely needed

            self._root_log_dir = self._temporary = tempfile.mkdtemp(prefix="elastic_logs_")
        return self._root_log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the files of one round; their directories are made now.

        Raises:
            ConfigError: a directory can't be made.
        """
        dest = LogsDest()
        redirects, tee = _streams(self._redirects, len(envs)), _streams(self._tee, len(envs))
        for rank in range(len(envs)):
            paths = self._prepare(envs[rank], rank)
            plans = stream_plans(paths, redirects=redirects, tee=tee, ranks_filter=self._local_ranks_filter or None)
            _enter(plans[0], rank, dest.stdouts, dest.tee_stdouts)
            _enter(plans[1], rank, dest.stderrs, dest.tee_stderrs)
            dest.error_files[rank] = paths.error_file or os.devnull
            envs[rank]["TORCHELASTIC_ERROR_FILE"] = paths.error_file
            dest.filtered_stdout = paths.filtered_stdout or ""
            dest.filtered_stderr = paths.filtered_stderr or ""
        return dest

    def _prepare(self, env: Mapping[str, str], rank: int) -> RankPaths:
        if self._root_log_dir == os.devnull:
            return RankPaths(local_rank=rank, error_file="", fault_file="", stdout=None, stderr=None)
        if self._layout is None:
            root = self.root_log_dir
            run_id = env.get("TORCHELASTIC_RUN_ID", "none")
            self._layout = LogLayout(log_dir=root, run_dir=Path(root), run_id=run_id)
        attempt = env.get("ELASTIC_ROUND") or env.get("TORCHELASTIC_RESTART_COUNT") or "0"
        return self._layout.prepare(int(attempt), rank)

    def discard_empty(self) -> None:
        """Remove its directories without written files. Called: when no worker runs."""
        if self._layout is not None:
            self._layout.discard_empty()
        if self._temporary:
            with suppress(OSError):  # it holds something, or is gone
                Path(self._temporary).rmdir()

    def __repr__(self) -> str:
        return (
            f"DefaultLogsSpecs(log_dir={self._root_log_dir!r}, redirects={self._redirects!r}, tee={self._tee!r}, "
            f"local_ranks_filter={self._local_ranks_filter!r})"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DefaultLogsSpecs) and self.chosen == other.chosen

    def __hash__(self) -> int:
        return hash(repr(self))

    @property
    def chosen(self) -> tuple[str | None, Std | dict[int, Std], Std | dict[int, Std], set[int] | None]:
        """The arguments of its constructor, in their order."""
        return self._root_log_dir, self._redirects, self._tee, self._local_ranks_filter


def _streams(chosen: Std | dict[int, Std], count: int) -> dict[int, StreamSet]:
    return {rank: StreamSet(int(streams)) for rank, streams in to_map(chosen, count).items()}


def _enter(plan: StreamPlan, rank: int, files: dict[int, str], tees: dict[int, str]) -> None:
    files[rank] = CONSOLE if plan.inherit else plan.file or os.devnull
    if plan.console:
        tees[rank] = files[rank]


def plan_of(file: str, tee: str | None, *, prefix: str) -> StreamPlan:
    """Return the plan for an entry of `stdouts` (or `stderrs`) and that of `tee_stdouts`, if there is one."""
    # torch's own answer to /dev/null has every rank in its tees, and means the console by it.
    if tee is not None and (file or tee) and not (file == CONSOLE and tee == os.devnull):
        kept = next((path for path in (file, tee) if path and path != os.devnull), None)
        return StreamPlan(file=kept, console=True, inherit=False, prefix=prefix)
    if file == CONSOLE:
        return StreamPlan()
    return StreamPlan(file=None if file == os.devnull else file, inherit=False)
