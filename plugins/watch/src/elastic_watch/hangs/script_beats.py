"""The signs of life that a script gives: heartbeats, steps by `should_stop`, and saves."""

from collections.abc import Mapping

from elastic_core.api import RunHandle
from elastic_watch import vitals
from elastic_watch.beat_file import BeatFiles, WorkerBeats
from elastic_watch.hangs.long_operations import OFFER, longest_marks, progress_of, with_progress


class ScriptBeats:
    """Reads the signs of life of this node's workers, of all rounds.

    Args:
        run: The run's handle; another hook of the agent offers the steps and saves of elastic-train's functions.
        files: The memory with the heartbeats.
    """

    def __init__(self, run: RunHandle, files: BeatFiles) -> None:
        self._run = run
        self._files = files
        self._longest_s: Mapping[str, float] = {}
        """The longest save and restore of the run on this node."""

    def read(self) -> dict[int, WorkerBeats]:
        """Return the heartbeats of each worker, with the steps and open saves that it has reported otherwise."""
        beats, offer = self._files.read(), self._run.offers().get(OFFER)
        if offer is None:
            return beats
        found = progress_of(offer({}).content)
        # A process that has ended makes no more steps, but the worker may go on with another one.
        progress = {rank: own for rank, own in found.items() if vitals.lives(own.pid)}
        self._longest_s = longest_marks(self._longest_s, progress.values())
        return with_progress(beats, progress, self._longest_s)

    def stack_bytes(self, rank: int) -> int:
        """Return how many bytes a worker has written as stacks on request: they are no sign of life."""
        file = self._files.get(rank)
        return 0 if file is None else file.read().stack_bytes
