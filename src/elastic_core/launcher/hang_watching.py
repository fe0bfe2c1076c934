"""Heartbeats of one run: `--hang-timeout` and `--startup-timeout`, and steps for a policy that looks at them.

Nothing at all where there is none of them.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.agent.parts import Workers
from elastic_core.failure.reporter import Reporter
from elastic_core.options.settings import RunSettings
from elastic_core.processes.spec import WorkerPaths
from elastic_core.reactor import Reactor
from elastic_core.types import Failure, NodeSteps, Round, RunSteps

if TYPE_CHECKING:
    from elastic_core.agent.watch.beat_file import BeatFile, BeatFiles
    from elastic_core.agent.watch.hang_report import HangReport
    from elastic_core.agent.watch.hang_watch import HangWatch


class HangWatching:
    """The watch over each round's workers.

    Args:
        settings: The run's.
        reactor: The loop.
        run_dir: Where stacks go, into a folder of their own.
        reporter: The voice of the run.
        beats: Whether a hook wants to know what workers say of themselves.
        on_hang: Called with what makes a failure of a hang, to be called if that is wanted.
        peers: Takes requests to the other nodes; None: they can't be asked about their workers.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        reactor: Reactor,
        run_dir: Path,
        reporter: Reporter,
        beats: bool,
        on_hang: Callable[[Callable[[], Failure]], None],
        peers: Callable[[m.RendezvousRequest], None] | None = None,
    ) -> None:
        """Watch nothing yet."""
        self._reporter = reporter
        self._on_hang = on_hang
        self._round: Round | None = None
        self._watch: HangWatch | None = None
        self.files: BeatFiles | None = None
        self._for_policy = settings.restarts.name != "intensity"
        watches = bool(settings.watch.hang_timeout_s or settings.watch.startup_timeout_s)
        if watches or beats or self._for_policy:
            from elastic_core.agent.watch import beat_file

            self.files = beat_file.BeatFiles()
        if watches:
            from elastic_core.agent.watch import hang_watch
            from elastic_core.agent.watch.hang_detector import Limits

            self._watch = hang_watch.HangWatch(
                reactor,
                limits=Limits(hang_s=settings.watch.hang_timeout_s, startup_s=settings.watch.startup_timeout_s),
                folder=run_dir / "hang",
                notice=reporter.notice,
                on_hang=self._hung,
                peers=_Peers(peers) if peers is not None and settings.nodes.max_nodes > 1 else None,
                files=self.files,
            )

    def progress(self) -> int | None:
        """Return the furthest step of this node's workers; None: none has said one, or nobody listens."""
        return None if self.files is None else self.files.progress()

    def over(self, workers: Workers) -> Workers:
        """Return the workers as the agent is to have them."""
        if self._watch is None:
            return workers
        from elastic_core.agent.watch.watched_workers import WatchedWorkers

        return WatchedWorkers(workers, self._watch)

    def with_files(self, paths: dict[int, WorkerPaths], round_: Round) -> dict[int, WorkerPaths]:
        """Return the files of a round's workers with those that they are to beat into."""
        if self.files is None:
            return paths
        self._round = round_
        files = self._watch.open(paths, round_) if self._watch is not None else self._unwatched(paths)
        return {rank: replace(own, beat_file=files.get(rank, "")) for rank, own in paths.items()}

    def _unwatched(self, ranks: Iterable[int]) -> dict[int, str]:
        assert self.files is not None
        try:
            return self.files.open(ranks)
        except OSError as error:
            if self._for_policy:
                self._reporter.notice(f"heartbeats can't be taken ({error}): the policy does not know of steps")
            return {}

    def tell_steps(self, serial: int) -> None:
        """Answer a question of some node about this one's steps."""
        if self._watch is not None:
            self._watch.tell_steps(serial)

    def hear_steps(self, seen: RunSteps) -> None:
        """Take what all nodes have answered."""
        if self._watch is not None:
            self._watch.hear_steps(seen)

    def ended(self, local_rank: int) -> None:
        """Take a worker's end."""
        if self._watch is not None:
            self._watch.ended(local_rank)

    def helpers(self) -> frozenset[int]:
        """Return the pids of this process's children that are no workers."""
        return frozenset() if self._watch is None else self._watch.helpers()

    def beat_file(self, local_rank: int) -> "BeatFile | None":
        """Return what a worker beats into, and writes its stacks to; None: nothing."""
        return None if self.files is None else self.files.get(local_rank)

    def close(self) -> None:
        """Give everything back."""
        if self._watch is not None:
            self._watch.close()
        if self.files is not None:
            self.files.close()

    def _hung(self, report: "HangReport") -> None:
        round_ = self._round
        if round_ is not None:
            from elastic_core.agent.watch.hang_evidence import report_hang

            self._on_hang(lambda: report_hang(self._reporter, round_, report))


class _Peers:
    """The other nodes, asked through the rendezvous."""

    def __init__(self, post: Callable[[m.RendezvousRequest], None]) -> None:
        self._post = post

    def ask_steps(self) -> None:
        self._post(m.AskSteps())

    def report_steps(self, steps: NodeSteps) -> None:
        self._post(m.ReportSteps(steps=steps))
