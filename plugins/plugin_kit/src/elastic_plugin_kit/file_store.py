"""A `CoordinationStore` in a folder: where the agents of a test meet that brings no backend of its own."""

import fcntl
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import ClassVar, Final, TypeVar
from urllib.parse import quote

import msgspec

from elastic_core.api import API_VERSION, Clock, RendezvousSettings, WaitBudget
from elastic_core.api.stores import BackendUnavailableError, Revisions, Topic, Watched, compare
from elastic_core.api.tools import SystemClock
from elastic_plugin_kit.store_client import ModelledStore
from elastic_plugin_kit.store_model import StoreModel

T = TypeVar("T")

LOOK_S: Final = 0.02
"""How often a watcher reads the file again, and a waiting client tries the lock again."""


class _HostClock(SystemClock):
    """The clock that all processes of a host share, which stands for the clock of a server."""

    def monotonic_s(self) -> float:
        """Return it as the kernel has it, also where a test lets this process have another."""
        return monotonic()


class FileStore(ModelledStore):
    """The content of a run as one file, which each request reads, changes and replaces under a lock.

    For agents of one host and one test. The endpoint is a folder that can be written to.

    Args:
        settings: `endpoint` and `run_id` count.
        clock: The one that judges leases, the same for all clients; None: the host's.
    """

    api_version: ClassVar[int] = API_VERSION
    min_ttl_s: ClassVar[float] = 0.5

    def __init__(self, settings: RendezvousSettings, *, clock: Clock | None = None) -> None:
        super().__init__(settings)
        self._folder = Path(settings.endpoint)
        self._file = self._folder / quote(settings.run_id, safe="")
        self._clock = clock or _HostClock()

    @property
    def where(self) -> str:
        """Return the folder, as people know it."""
        return f"the kit's files in {self._folder}"

    def connect(self, *, wait: WaitBudget) -> str:
        """See that the folder can be locked."""
        with self._locked(wait):
            return "127.0.0.1"

    def watch(self, since: Revisions, topics: Collection[Topic], *, timeout_s: float, wait: WaitBudget) -> Watched:
        """Look again and again until a topic has moved."""
        end = WaitBudget.lasting(timeout_s)
        while True:
            wait.check()
            seen = compare(since, self._read().revisions(now_s=self._clock.monotonic_s()), topics)
            if seen.changed or seen.reset or end.remaining_s() <= 0:
                return seen
            wait.sleep(min(LOOK_S, end.remaining_s()))

    def close(self) -> None:
        """Nothing is kept open between two requests."""

    def _request(self, name: str, work: Callable[[StoreModel, float], T], wait: WaitBudget) -> T:
        with self._locked(wait):
            run = self._read()
            before = run.copy()
            answer = work(run, self._clock.monotonic_s())
            if run != before:
                self._write(run)
            return answer

    @contextmanager
    def _locked(self, wait: WaitBudget) -> Iterator[None]:
        """Hold the lock of all runs in this folder; the kernel releases it when the holder is killed."""
        wait.check()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = (self._folder / ".lock").open("ab")
        except OSError as err:
            raise BackendUnavailableError(f"{self.where} can't be locked ({err.strerror})") from err
        with lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    wait.sleep(LOOK_S)
            yield

    def _read(self) -> StoreModel:
        try:
            return msgspec.msgpack.decode(self._file.read_bytes(), type=StoreModel)
        except FileNotFoundError:
            return StoreModel(os.urandom(8).hex())
        except (OSError, msgspec.DecodeError) as err:
            raise BackendUnavailableError(f"{self.where} can't be read ({err})") from err

    def _write(self, run: StoreModel) -> None:
        """Replace the file in one step, so that no reader gets half of it."""
        fresh = self._file.with_name(f"{self._file.name}.new")
        try:
            fresh.write_bytes(msgspec.msgpack.encode(run))
            fresh.replace(self._file)
        except OSError as err:
            raise BackendUnavailableError(f"{self.where} can't be written ({err.strerror})") from err
