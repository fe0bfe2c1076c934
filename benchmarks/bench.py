"""What measures share: where scripts lie, which launchers take part, how much each run does, and the stores."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks import workers
from benchmarks.etcd_server import EtcdServer
from benchmarks.launchers import Launcher
from benchmarks.measure import MissingError, Take, Turns
from benchmarks.redis_server import RedisServer
from benchmarks.stats import TORCHRUN
from elastic_core.errors import ConfigError

Server = TypeVar("Server", RedisServer, EtcdServer)


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    share: float
    """Of a measure's own time."""
    least_turns: int
    most_turns: int
    lines: int
    """That a launcher's workers print in one run."""
    idle_s: float
    most_nodes: int
    """Of a round."""

    def turns(self, seconds: float) -> Turns:
        """Return the bounds for a measure that takes turns for so long in `make bench`."""
        return Turns(seconds=seconds * self.share, least=self.least_turns, most=self.most_turns)


FULL, CHECK, SMALLEST = "full", "check", "smallest"
SIZES = {
    FULL: Size(share=1.0, least_turns=3, most_turns=15, lines=300_000, idle_s=5.0, most_nodes=1024),
    CHECK: Size(share=0.4, least_turns=3, most_turns=7, lines=300_000, idle_s=5.0, most_nodes=128),
    SMALLEST: Size(share=0.0, least_turns=1, most_turns=1, lines=20_000, idle_s=0.5, most_nodes=128),
}
"""The smallest shows that a measure works, and decides nothing."""


@dataclass(frozen=True)
class Bench:
    """What one measure is given."""

    folder: Path
    launchers: Mapping[str, Launcher]
    """By name: the floor, ours, torchrun if torch is there, and others that were asked for."""
    size: Size
    stack: ExitStack
    """What is entered here is left when the measure ends."""

    @property
    def torch(self) -> bool:
        """Whether torch is there, for workers and for torch's own nodes."""
        return TORCHRUN in self.launchers

    def need_torch(self) -> None:
        """Raise MissingError without torch."""
        if not self.torch:
            raise MissingError("it needs torch")

    def script(self, name: str, text: str) -> str:
        """Write a worker's script; return its path."""
        return workers.write(self.folder, name, text)

    def each(
        self, take: Callable[..., float | Mapping[str, float]], *args: object, without: str = ""
    ) -> dict[str, Take]:
        """Return the takes of a measure in which all launchers do the same: `take(launcher, *args)`."""
        return {name: partial(take, launcher, *args) for name, launcher in self.launchers.items() if name != without}

    def redis(self) -> RedisServer:
        """Start a Redis server for this measure.

        Raises:
            MissingError: there is none on this machine.
        """
        return self._server(lambda: RedisServer(self.folder / "redis"))

    def etcd(self, *, fsync: bool = False) -> EtcdServer:
        """Start an etcd server for this measure.

        Raises:
            MissingError: there is none on this machine.
        """
        return self._server(lambda: EtcdServer(self.folder / f"etcd{'-fsync' * fsync}", fsync=fsync))

    def _server(self, start: Callable[[], Server]) -> Server:
        try:
            return self.stack.enter_context(start())
        except (ConfigError, OSError) as error:
            raise MissingError(str(error)) from error
