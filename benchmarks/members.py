"""Many members of one run in one process: each the product's own machine, driver and store; only waiting is shared.

    python -m benchmarks.members BACKEND ENDPOINT RUN_ID FIRST COUNT TOTAL [LEASE_S]

A thread for each of a thousand members would measure the interpreter's lock. So one thread steps them all, an operation
of each in turn; every operation is `Driver`'s own call of the real store, on two connections for each member. What
differs from `Driver` on its thread: a wait for pushes is given to epoll (`_Waiting`), and nobody answers peers.

Protocol on the pipes: it writes `ready`, waits for a line, joins all its members, and writes one line of JSON when all
have a place and nothing more to do. It goes on until stdin ends.
"""

import gc
import json
import os
import select
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass

from benchmarks.member_stores import STORES, Watching
from benchmarks.sockets import Sockets
from elastic_core import messages as m
from elastic_core.errors import BackendError
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.machine import step
from elastic_core.rendezvous.shell.driver import Driver, Emitted
from elastic_core.rendezvous.shell.node import MemberNode
from elastic_core.rendezvous.store import Revisions
from elastic_core.system.clock import WaitBudget
from elastic_core.types import RendezvousInfo, RendezvousSettings

FINGERPRINT = {"nnodes": "2:1024", "script": "train.py", "nproc": "8", "role": "default", "wire": "1", "torch": "2.13"}
FIRST_PORT = 20_000


@dataclass
class _Waiting:
    """What a member waits for: pushes on a socket, or a time."""

    until_s: float
    watch: protocol.Watch | None = None
    fd: int = -1


class Member(Driver):
    """A driver without a thread: `turn` does one operation."""

    def __init__(self, watching: Watching, settings: RendezvousSettings, number: int) -> None:
        self._watching = watching
        super().__init__(
            watching.store,
            MemberNode(watching.store, settings),
            emit=self._take_event,
            ended=lambda _: None,
            turned_s=lambda: float("inf"),
        )
        self._number = number
        self._answers: tuple[protocol.Event, ...] = (protocol.JoinAsked(master_port=FIRST_PORT + number),)
        self.waiting: _Waiting | None = None
        self.joined_s = self.formed_s = 0.0
        self.rank = -1
        self.operations: Counter[str] = Counter()
        self.refused = self.failed = 0

    def _connected(self, address: str) -> protocol.Connected:
        return self._node.place(address, FIRST_PORT + self._number)

    def _take_event(self, announcement: Emitted) -> None:
        if isinstance(announcement, RendezvousInfo):
            self.rank, self.formed_s = announcement.rank, time.monotonic()
        elif isinstance(announcement, (protocol.JoinFailed, m.RoundChanged)):
            raise SystemExit(f"member {self._number}: {announcement}")

    def turn(self) -> None:
        """Do what the machine says next; a wait is only begun."""
        if not self.joined_s:
            self.joined_s = time.monotonic()
        done = step(self._state, self._answers, now_s=time.monotonic())
        self._state, self._answers = done.state, ()
        for announcement in done.announcements:
            self._emit(announcement)
        operation = done.operation
        self.operations[type(operation).__name__] += 1
        if isinstance(operation, protocol.Pause):
            self.waiting = _Waiting(until_s=operation.until_s)
        elif isinstance(operation, protocol.Watch):
            self._look_out(operation)
        else:
            answer = self._perform(operation)
            if isinstance(answer, protocol.Failed):
                self.failed += 1  # the machine tries again, as it would in an agent
            if isinstance(answer, protocol.SwapAnswered) and not answer.swapped.applied:
                self.refused += 1
            self._answers = () if answer is None else (answer,)

    def _look_out(self, watch: protocol.Watch) -> None:
        """Do as the store's `watch`, up to where it blocks."""
        self.waiting = None
        try:
            seen = self._watching.look(watch.since or Revisions(), watch.topics, WaitBudget.lasting(10.0))
        except BackendError as error:
            self.failed += 1
            self._answers = (protocol.Failed(text=str(error)),)
            return
        if seen.changed or seen.reset or watch.until_s <= time.monotonic():
            self._answers = (protocol.WatchEnded(watched=seen),)
        else:
            self.waiting = _Waiting(until_s=watch.until_s, watch=watch, fd=self._watching.fd())
            self._seen = seen

    def wake(self, *, pushed: bool) -> None:
        """Go on after a wait."""
        waiting, self.waiting = self.waiting, None
        assert waiting is not None
        if waiting.watch is None:
            return
        if pushed:
            self._watching.heard(WaitBudget.lasting(10.0))
            self._look_out(waiting.watch)
        else:
            self._answers = (protocol.WatchEnded(watched=self._seen),)


class Process:
    """Steps its members until stdin ends."""

    def __init__(self, members: list[Member]) -> None:
        self._members = members
        self._runnable = deque(members)
        self._epoll = select.epoll()
        self._by_fd: dict[int, Member] = {}
        self._told = False
        self._cpu_s = time.process_time()

    def run(self) -> None:
        """Turn all, one operation each, then see who may go on."""
        self._epoll.register(sys.stdin, select.EPOLLIN)
        while True:
            for _ in range(len(self._runnable)):
                self._turn(self._runnable.popleft())
            if not self._runnable:
                self._tell()
            if not self._wait(block=not self._runnable):
                return

    def _turn(self, member: Member) -> None:
        member.turn()
        self._settle(member)

    def _settle(self, member: Member) -> None:
        waiting = member.waiting
        if waiting is None:
            self._runnable.append(member)
        elif waiting.fd >= 0:
            if waiting.fd not in self._by_fd:
                self._epoll.register(waiting.fd, select.EPOLLIN)
            self._by_fd[waiting.fd] = member

    def _wait(self, *, block: bool) -> bool:
        now_s = time.monotonic()
        due_s = min((member.waiting.until_s for member in self._members if member.waiting is not None), default=now_s)
        for fd, _ in self._epoll.poll(max(0.0, min(due_s - now_s, 3600.0)) if block else 0.0, 1024):
            if fd == sys.stdin.fileno():
                return False
            member = self._by_fd[fd]
            # Pushes may also come while a member does something else: it looks before it waits again.
            if member.waiting is not None and member.waiting.fd == fd:
                member.wake(pushed=True)
                self._settle(member)
        now_s = time.monotonic()
        if due_s <= now_s:
            for member in self._members:
                if member.waiting is not None and member.waiting.until_s <= now_s:
                    member.wake(pushed=False)
                    self._settle(member)
        return True

    def _tell(self) -> None:
        if self._told or any(member.rank < 0 for member in self._members):
            return
        self._told = True
        operations: Counter[str] = Counter()
        for member in self._members:
            operations += member.operations
        report = {
            "ranks": [member.rank for member in self._members],
            "joined_s": min(member.joined_s for member in self._members),
            "formed_s": max(member.formed_s for member in self._members),
            "operations": operations,
            "refused": sum(member.refused for member in self._members),
            "failed": sum(member.failed for member in self._members),
            "cpu_s": time.process_time() - self._cpu_s,
            "bytes": Sockets.sent + Sockets.received,
        }
        print(json.dumps(report), flush=True)


def _address(number: int) -> str:
    return f"10.0.{number >> 8}.{number & 255}"


def _settings(
    backend: str, endpoint: str, run_id: str, number: int, total: int, lease_s: float | None
) -> RendezvousSettings:
    return RendezvousSettings(
        backend=backend,
        run_id=run_id,
        endpoint=endpoint,
        min_nodes=total,
        max_nodes=total,
        local_world_size=8,
        node_id=f"node{number:04}@{_address(number)}",  # of the default's form
        local_addr=_address(number),
        incarnation=os.urandom(8).hex(),
        fingerprint=FINGERPRINT,
        options={} if lease_s is None else {"lease_ttl": lease_s},
    )


def main() -> None:
    """Join as many members as asked for."""
    backend, endpoint, run_id = sys.argv[1:4]
    first, count, total = (int(text) for text in sys.argv[4:7])
    lease_s = float(sys.argv[7]) if len(sys.argv) > 7 else None
    Sockets.count()
    members = []
    for number in range(first, first + count):
        settings = _settings(backend, endpoint, run_id, number, total, lease_s)
        members.append(Member(STORES[backend](settings), settings, number))
    gc.disable()  # as an agent's, until its workers run; here it would look through what hundreds have
    print("ready", flush=True)
    sys.stdin.readline()
    Process(members).run()
    os._exit(0)


if __name__ == "__main__":
    main()
