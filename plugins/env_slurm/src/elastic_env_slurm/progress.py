"""Whether an attempt of a run made progress, as far as an agent can observe its workers. Pure."""

from collections.abc import Mapping
from typing import Final

from elastic_core.api import Record, WorkerExit, decode_json

OFFER: Final = "planned-stops"
"""The name under which elastic-train's hook offers the progress of workers that call `should_stop`."""

HEARTBEATS: Final = "heartbeats"
"""The name under which elastic-watch's hook offers the last heartbeats of the workers."""


class Heartbeat(Record, frozen=True, kw_only=True):
    """The last heartbeat of one worker."""

    pid: int
    step: int | None = None


class Heartbeats(Record, frozen=True, kw_only=True):
    """The response of elastic-watch's hook, by local rank."""

    workers: Mapping[int, Heartbeat] = {}


def heartbeats_of(content: str) -> Mapping[int, Heartbeat]:
    """Return the response of elastic-watch's hook; empty if its version has other fields."""
    try:
        return decode_json(content, Heartbeats).workers
    except ValueError:
        return {}


class Saving(Record, frozen=True, kw_only=True):
    """The response of elastic-train's hook."""

    asks: bool = False
    steps: int | None = None
    saved: bool = False
    within_s: float = 0.0


def saving_of(content: str) -> Saving:
    """Return the response of elastic-train's hook. If its version has other fields, return one without progress."""
    try:
        return decode_json(content, Saving)
    except ValueError:
        return Saving()


class Progress:
    """The progress of one node's workers since the job's attempt began.

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
        """Record the heartbeats of the workers, by local rank."""
        for rank, each in beats.items():
            if each.step is not None:
                self.observed = True
                self.made = self.made or each.step > self._first.setdefault((rank, each.pid), each.step)

    def take_saving(self, saving: Saving) -> None:
        """Record the progress of workers that call `should_stop`."""
        self.observed = self.observed or saving.steps is not None
        self.made = self.made or bool(saving.steps) or saving.saved

    def take_exit(self, exit: WorkerExit, *, draining: bool) -> None:
        """Record the end of a worker: with 0, or after the stop began, by itself and not by a signal.

        A script that saves on SIGTERM ends this way, if the agent sees neither steps nor saves.
        """
        self.made = self.made or exit.code == 0 or (draining and exit.code > 0)
