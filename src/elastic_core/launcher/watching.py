"""All that watches over a run's workers, besides their ends: hangs, timers."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core.agent.parts import Workers
from elastic_core.failure.reporter import Reporter
from elastic_core.launcher.hang_watching import HangWatching
from elastic_core.launcher.observers import Observers
from elastic_core.launcher.timer_watching import TimerWatching
from elastic_core.messages import RendezvousRequest
from elastic_core.options.settings import RunSettings
from elastic_core.processes.spec import WorkerPaths
from elastic_core.reactor import Reactor
from elastic_core.types import Failure, Round

if TYPE_CHECKING:
    from elastic_core.agent.watch.stack_collector import StackFile


class Watching:
    """The two watches; each does nothing where it was not asked for.

    Args:
        settings: The run's.
        reactor: The loop.
        run_dir: Where stacks go, and the pipe of the timers.
        reporter: The voice of the run.
        observers: Hear of what the timers do.
        beats: Whether a hook wants to know what workers say of themselves.
        on_hang: Called with what makes a failure of a hang, to be called if that is wanted.
        peers: Takes requests to the other nodes; None: there are none that can be asked.
        sources: Returns for each live worker its pid, that of the process to look at, and where it writes its stacks.
        send: Signals a worker, by local rank.

    Raises:
        ConfigError: the timers' pipe can't be made.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        reactor: Reactor,
        run_dir: Path,
        reporter: Reporter,
        observers: Observers,
        beats: bool,
        on_hang: Callable[[Callable[[], Failure]], None],
        peers: Callable[[RendezvousRequest], None] | None,
        sources: "Callable[[], Mapping[int, tuple[int, int, StackFile | None]]]",
        send: Callable[[int, int], None],
    ) -> None:
        """Watch nothing yet."""
        self.hangs = HangWatching(
            settings, reactor=reactor, run_dir=run_dir, reporter=reporter, beats=beats, on_hang=on_hang, peers=peers
        )
        self.timers = TimerWatching(
            settings,
            reactor=reactor,
            run_dir=run_dir,
            reporter=reporter,
            observers=observers,
            on_hang=on_hang,
            sources=sources,
            send=send,
        )

    def over(self, workers: Workers) -> Workers:
        """Return the workers as the agent is to have them."""
        return self.timers.over(self.hangs.over(workers))

    def begin_round(self, paths: dict[int, WorkerPaths], round_: Round) -> dict[int, WorkerPaths]:
        """Take the round whose workers are about to be started; return their files, with those of the watches."""
        return self.timers.with_files(self.hangs.with_files(paths, round_), round_)

    def ended(self, local_rank: int) -> None:
        """Take a worker's end."""
        for watch in (self.hangs, self.timers):
            watch.ended(local_rank)

    def helpers(self) -> frozenset[int]:
        """Return the processes that look for us at workers."""
        return self.hangs.helpers() | self.timers.helpers()

    def close(self) -> None:
        """Give everything back."""
        for watch in (self.timers, self.hangs):
            watch.close()
