"""Where the output of each round's workers goes: our own layout, or that of `--logs-specs`."""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from msgspec.structs import replace

from elastic_core.options.settings import RunSettings
from elastic_core.processes.output.layout import LogLayout, RankPaths, parse_ranks, parse_std, stream_plans
from elastic_core.processes.spec import StreamPlan, WorkerLaunch, WorkerPaths
from elastic_core.rundir.directory import remove_tree
from elastic_core.rundir.incident_files import INCIDENT_FILE
from elastic_core.types import Round

KEPT_ROUNDS: Final = 64
"""For how many rounds, the first and the last ones, the run directory keeps the workers' folders. Logs are kept."""


class ChosenLogs(Protocol):
    """The output layout of an object with torch's interface, adapted by elastic-torchrun."""

    def placed(
        self, launches: Sequence[WorkerLaunch], paths: dict[int, WorkerPaths], settings: RunSettings
    ) -> tuple[list[WorkerLaunch], dict[int, WorkerPaths]]:
        """Return the workers of a round, and their files by local rank, with the places that the object chose."""

    def finish(self) -> None:
        """Let a class of this project remove its empty files. Called: when no worker runs."""


class RunLogs:
    """The log and error files of one run on this node.

    `run_dir` exists; `chosen` is the result of `choose_logs_specs`.
    """

    def __init__(self, settings: RunSettings, *, run_dir: Path, chosen: ChosenLogs | None = None) -> None:
        self._settings = settings
        self._chosen = chosen
        # A class of --logs-specs owns the log directory. Files that it does not place are in the run directory.
        log_dir = settings.output.log_dir if self._chosen is None else None
        self._layout = LogLayout(log_dir=log_dir, run_dir=run_dir, run_id=settings.nodes.run_id)
        self._run_dir = run_dir
        self._rounds: deque[int] = deque()

    @property
    def in_run_dir(self) -> bool:
        """Whether requested log files are in the run directory."""
        settings = self._settings
        wanted = (settings.output.redirects, settings.output.tee) != ("0", "0")
        return wanted and settings.output.log_dir is None and self._chosen is None

    def prepare(self) -> None:
        """Make the first worker's directory, to check that it is possible before the run starts.

        Raises:
            ConfigError: It cannot be made.
        """
        self._layout.prepare(0, 0)

    def discard_empty(self) -> None:
        """Remove what `prepare` made, if it is empty."""
        self._layout.discard_empty()

    def finish(self) -> None:
        """Let a class of this project remove its empty files. Called: when no worker runs."""
        if self._chosen is not None:
            self._chosen.finish()

    def round_paths(self, round_: Round) -> dict[int, WorkerPaths]:
        """Make the directories of a round, and return its files by local rank.

        Raises:
            ConfigError: A directory cannot be made.
        """
        settings = self._settings
        self._forget_rounds(round_.index)
        files = {rank: self._layout.prepare(round_.index, rank) for rank in range(settings.nodes.local_world_size)}
        return {
            rank: worker_paths(settings, files[rank], global_rank=round_.global_rank(rank))
            for rank in range(settings.nodes.local_world_size)
        }

    def _forget_rounds(self, index: int) -> None:
        # A run may fail for days: old rounds are removed from the run directory.
        if index not in self._rounds:
            self._rounds.append(index)
        while len(self._rounds) > KEPT_ROUNDS:
            folder = self._run_dir / f"attempt_{self._rounds[1]}"
            del self._rounds[1]
            if self.in_run_dir:
                with suppress(OSError):
                    (folder / INCIDENT_FILE).unlink()
            else:
                remove_tree(folder)

    def files_of(self, paths: Mapping[int, WorkerPaths]) -> list[str]:
        """Return the log files of these workers that will be opened. Empty without our own layout."""
        if self._chosen is not None:
            return []
        plans = [plan for own in paths.values() for plan in (own.stdout, own.stderr)]
        return [plan.file for plan in plans if plan.file is not None]

    def asked(
        self, launches: Sequence[WorkerLaunch], paths: dict[int, WorkerPaths]
    ) -> tuple[list[WorkerLaunch], dict[int, WorkerPaths]]:
        """Let the class of `--logs-specs`, if any, place the streams and error files of these workers.

        Raises:
            PluginError: The class failed.
        """
        if self._chosen is None:
            return list(launches), paths
        return self._chosen.placed(launches, paths, self._settings)


def worker_paths(settings: RunSettings, files: RankPaths, *, global_rank: int) -> WorkerPaths:
    """Return the files and streams of one worker, by our own layout."""
    fault_file = str(Path(files.directory) / "fault.log")
    rank, nproc = files.local_rank, settings.nodes.local_world_size
    if rank == settings.workers.debug_rank:
        # The terminal itself: a prompt has no line end, so a line reader would delay it.
        return WorkerPaths(error_file=files.error_file, fault_file=fault_file)
    stdout, stderr = stream_plans(
        files,
        redirects=parse_std(settings.output.redirects, nproc),
        tee=parse_std(settings.output.tee, nproc, option="--tee"),
        ranks_filter=parse_ranks(settings.output.local_ranks_filter, nproc),
        prefix_template=settings.output.log_line_prefix_template,
        role=settings.nodes.role,
        global_rank=global_rank,
    )
    return WorkerPaths(
        error_file=files.error_file,
        fault_file=fault_file,
        stdout=limited_plan(stdout, settings, settings.output.duplicate_stdout_filters, files.filtered_stdout),
        stderr=limited_plan(stderr, settings, settings.output.duplicate_stderr_filters, files.filtered_stderr),
    )


def limited_plan(plan: StreamPlan, settings: RunSettings, texts: tuple[str, ...], filtered: str | None) -> StreamPlan:
    """Return a stream's plan with the filters of a console stream, and the rotation of a file."""
    if plan.console and texts and filtered is not None:
        plan = replace(plan, filters=texts, filtered_file=filtered)
    if plan.file is not None and settings.output.log_max_bytes is not None:
        plan = replace(plan, max_bytes=settings.output.log_max_bytes, backups=settings.output.log_backups)
    return plan


def choose_logs_specs(settings: RunSettings, injected: object = None) -> ChosenLogs | None:
    """Return the injected object, or build that of `--logs-specs`. `None` means our own layout.

    Raises:
        ConfigError: No installed entry point has the name.
        PluginError: The class is broken.
    """
    if injected is None and settings.output.logs_specs is None:
        return None
    from elastic_core.plugins.torch_side import torch_part  # the class is torch's

    needed_by = "--logs-specs" if injected is None else "logs_specs"
    chosen: ChosenLogs | None = torch_part("logs_specs", needed_by=needed_by).choose_logs_specs(settings, injected)
    return chosen
