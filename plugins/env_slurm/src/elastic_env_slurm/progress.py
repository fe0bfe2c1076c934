"""Whether an attempt at a run got anywhere, as far as an agent can observe its workers. Pure."""

from collections.abc import Mapping
from typing import Final

from elastic_core.api import Record, WorkerExit, decode_json

OFFER: Final = "planned-stops"
"""The name under which elastic-train's hook returns how far the workers are that call `should_stop`."""

HEARTBEATS: Final = "heartbeats"
"""The name under which elastic-watch's hook returns the last heartbeats of the workers."""


class Heartbeat(Record, frozen=True, kw_only=True):
    """The last heartbeat of one worker."""

    pid: int
    step: int | None = None


class Heartbeats(Record, frozen=True, kw_only=True):
    """The answer of elastic-watch's hook, by local rank."""

    workers: Mapping[int, Heartbeat] = {}


def heartbeats_of(content: str) -> Mapping[int, Heartbeat]:
    """Return the answer of elastic-watch's hook; where another version has other fields, none."""
    try:
        return decode_json(content, Heartbeats).workers
    except ValueError:
        return {}


class Saving(Record, frozen=True, kw_only=True):
    """The answer of elastic-train's hook."""

    asks: bool = False
    steps: int | None = None
    saved: bool = False
    within_s: float = 0.0


def saving_of(content: str) -> Saving:
    """Return the answer of elastic-train's hook; where another version has other fields, one that shows nothing."""
    try:
        return decode_json(content, Saving)
    except ValueError:
        return Saving()


class Progress:
    """What the workers of one node have done since the job's attempt began.

    Threading: one thread changes it; `made` and `observed` may be read on any.
    """

    def __init__(self) -> None:
        self.made = False
        """A worker made a step, saved, or ended by itself as one does that has saved."""
        self.observed = False
        """A worker names steps, by `heartbeat` or `should_stop`: `made` is then known, and no guess."""
        self._first: dict[tuple[int, int], int] = {}
        """The first step of each process, by its local rank and its number."""

    def take_beats(self, beats: Mapping[int, Heartbeat]) -> None:
        """Take the heartbeats of the workers, by local rank."""
        for rank, each in beats.items():
            if each.step is not None:
                self.observed = True
                self.made = self.made or each.step > self._first.setdefault((rank, each.pid), each.step)

    def take_saving(self, saving: Saving) -> None:
        """Take how far the workers are that call `should_stop`."""
        self.observed = self.observed or saving.steps is not None
        self.made = self.made or bool(saving.steps) or saving.saved

    def take_exit(self, exit: WorkerExit, *, draining: bool) -> None:
        """Take the end of a worker: with 0, or after the stop began, by itself and not by a signal.

        A script that catches SIGTERM to save ends so, where the agent sees neither steps nor saves.
        """
        self.made = self.made or exit.code == 0 or (draining and exit.code > 0)
