"""The faults: how each is done to the job, what undoes it, and what must be told of it.

A fault explains what is seen after it: an incident (who failed, how), or the end of a round (who was lost, who left).
An oracle is strict where a fault comes alone; of two at once either may be told of, but nothing else.
"""

import re
import signal
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from chaos.faults.job import AWAY, BACK, RECOVERS_S, SIGNALS, Job, Place, Steady, send
from chaos.multi_node import LEASE_S
from patience import kept
from proc_kit import is_alive
from support import wait_for
from time_limits import GUARD_S


@dataclass
class Fault(ABC):
    """One fault, planned: `how` is its variant, `letter` the place that it befalls (empty: the store)."""

    how: str
    letter: str
    quick: bool = False
    """Whether a node is replaced at once, and not when the others have gone on without it."""
    pids: dict[str, int] = field(default_factory=dict)
    id: str = ""
    gen: int = -1
    rank: int = -1
    muted: bool = False
    """Whether the store is away meanwhile: who leaves can't say so."""

    name: ClassVar[str]
    restarts: ClassVar[int] = 0
    """How many failures the run counts because of it."""

    def __str__(self) -> str:
        where = f" of {self.letter}" if self.letter else ""
        return f"{self.name}{where}{f' ({self.how})' if self.how else ''}{', replaced at once' if self.quick else ''}"

    @property
    def changes(self) -> tuple[int, int]:
        """How many changes of the membership the run counts, at least and at most."""
        return 0, 0

    def aim(self, job: Job, before: Steady) -> None:
        """Note whom it befalls."""
        self.pids, self.gen = before.pids, before.gen
        if self.letter:
            self.id = job.places[self.letter].agent.name
            self.rank = int(before.said[self.letter]["rank"])

    @abstractmethod
    def inject(self, job: Job) -> None:
        """Do it."""

    def alone(self, job: Job, before: Steady) -> None:
        """Check what is promised where nothing else happens, before it is undone."""
        return

    def heal(self, job: Job) -> None:
        """Do what an operator, or a scheduler, would do."""
        return

    def explains(self, incident: dict[str, Any]) -> bool:
        """Return whether an incident tells of it, truly."""
        return False

    def explains_end(self, reason: str) -> bool:
        """Return whether this part of why a round ended is because of it."""
        return False

    def _place(self, job: Job) -> Place:
        return job.places[self.letter]

    def _is_of(self, incident: dict[str, Any]) -> bool:
        exit = (incident["first"] or {"exit": {}})["exit"]
        rank = exit.get("global_rank", incident["elsewhere_rank"])
        where = (incident["node_id"], rank, incident["round_index"], incident["decision"]["type"])
        return where == (self.id, self.rank, self.gen, "restart")


class Crash(Fault):
    """A worker ends: by a signal, an exception, an exit code."""

    name = "crash"
    restarts = 1
    TOLD: ClassVar[dict[str, tuple[str, int, str]]] = {
        "SIGKILL": ("signal", 137, r"killed by SIGKILL \(9\)"),
        "SIGABRT": ("signal", 134, r"killed by SIGABRT \(6\)"),
        "segfault": ("signal", 139, r"killed by SIGSEGV \(11\)"),
        "exception": ("user exception", 1, r"ValueError: label 11 is not a digit"),
        "7": ("non-zero exit", 7, r"exit code 7"),
    }

    def inject(self, job: Job) -> None:
        pid = self.pids[self.letter]
        if self.how in SIGNALS:
            send(pid, SIGNALS[self.how])
        else:
            job.order(pid, self.how)

    def explains(self, incident: dict[str, Any]) -> bool:
        kind, code, text = self.TOLD[self.how]
        told = (incident["failure_class"], incident["exit_code"]) == (kind, code)
        return self._is_of(incident) and told and re.fullmatch(text, incident["summary"]) is not None


class Hang(Fault):
    """A worker stands still."""

    name = "hang"
    restarts = 1

    def inject(self, job: Job) -> None:
        send(self.pids[self.letter], signal.SIGSTOP)

    def explains(self, incident: dict[str, Any]) -> bool:
        return self._is_of(incident) and incident["failure_class"] == "hang"


class Loss(Fault):
    """A node goes, and comes back."""

    cleanly: ClassVar[bool] = False
    notice_s: ClassVar[float] = RECOVERS_S

    @property
    def changes(self) -> tuple[int, int]:
        return (1, 2) if self.quick else (2, 2)

    def alone(self, job: Job, before: Steady) -> None:
        if not self.quick:
            without = job.steady(steps=3, within_s=self.notice_s)
            assert without.restarts == before.restarts, f"the loss of {self.id} counted as a failure\n{job.told()}"

    def heal(self, job: Job) -> None:
        job.bring(self._place(job))

    def explains_end(self, reason: str) -> bool:
        names, _, what = reason.rpartition(" ")
        words = {"left" if self.cleanly else "lost", "lost" if self.muted else ""}
        if what in words:
            return self.id in names.split(", ")
        return re.fullmatch(r"1 node joined|2 nodes joined", reason) is not None


class AgentKill(Loss):
    """The agent is killed, alone: its guard ends its workers, and gives its seat back."""

    name = "agent kill"

    def inject(self, job: Job) -> None:
        node = job.lose(self._place(job), cleanly=False)
        node.kill_agent()
        began_s = time.monotonic()
        worker = self.pids[self.letter]
        job.comes(lambda: not is_alive(worker), f"the end of the workers of {node.name}, whose agent was killed", 10)
        self.took_s = time.monotonic() - began_s

    def alone(self, job: Job, before: Steady) -> None:
        kept(self.took_s, GUARD_S)
        super().alone(job, before)


class NodeKill(Loss):
    """Agent, guard and workers are killed at once, as when the power goes."""

    name = "node kill"

    def inject(self, job: Job) -> None:
        job.lose(self._place(job), cleanly=False).power_off()


class Drain(Loss):
    """The agent is told to stop, as by a scheduler that wants the node; it says so, and comes back later."""

    name = "drain"
    cleanly = True

    def inject(self, job: Job) -> None:
        self.node = job.lose(self._place(job), cleanly=not self.muted)
        self.node.agent.signal(signal.SIGTERM)

    def alone(self, job: Job, before: Steady) -> None:
        self._left(job)
        super().alone(job, before)

    def heal(self, job: Job) -> None:
        self._left(job)
        super().heal(job)

    def _left(self, job: Job) -> None:
        job.comes(lambda: self.node.agent.process.poll() is not None, f"the end of {self.node.name}, told to stop")
        code = self.node.agent.process.returncode
        assert code == 143, f"{self.node.name} was told to stop, and ended with {code}\n{job.told()}"


class StoreTrouble(Fault):
    """The store does not answer (pause), or is killed and started again (restart): the workers never notice."""

    name = "store"

    def aim(self, job: Job, before: Steady) -> None:
        super().aim(job, before)
        self.heard = job.heard()
        self.step = before.step

    def inject(self, job: Job) -> None:
        server = job.run.server
        assert server is not None
        server.pause() if self.how == "pause" else server.stop()  # type: ignore[union-attr]  # no cluster
        self.at_s = time.monotonic()

    def alone(self, job: Job, before: Steady) -> None:
        job.comes(lambda: self._all_told(job, AWAY), "all nodes to say that the store is away", LEASE_S + 15)
        missed = min(job.step_of(pid) for pid in before.pids.values())
        assert missed > before.step, "the workers stood still without the store"

    def heal(self, job: Job) -> None:
        # Where something else has happened, not all nodes may miss it.
        waited = lambda: time.monotonic() - self.at_s > LEASE_S / 2  # noqa: E731
        wait_for(lambda: waited() or self._all_told(job, AWAY), within_s=RECOVERS_S)
        server = job.run.server
        assert server is not None
        server.resume() if self.how == "pause" else server.start()  # type: ignore[union-attr]
        wait_for(lambda: all(said.count(AWAY) == said.count(BACK) for said in self._said(job)), within_s=RECOVERS_S)

    def unharmed(self, job: Job, before: Steady, after: Steady) -> None:
        """Check that nothing has happened to the workers."""
        assert after.pids == before.pids, f"the store's absence cost workers\n{job.told()}"
        for said in self._said(job):
            assert (said.count(AWAY), said.count(BACK)) == (1, 1), f"not one line each way\n{job.told()}"

    def _all_told(self, job: Job, text: str) -> bool:
        return all(text in said for said in self._said(job))

    def _said(self, job: Job) -> list[str]:
        here = {id(place.agent) for place in job.here}
        return [said for node, said in job.since(self.heard).items() if id(node) in here]


VARIANTS: dict[type[Fault], tuple[str, ...]] = {
    Crash: tuple(Crash.TOLD),
    Hang: ("SIGSTOP",),
    AgentKill: ("SIGKILL",),
    NodeKill: ("SIGKILL",),
    Drain: ("SIGTERM",),
    StoreTrouble: ("pause", "restart"),
}

WEIGHTS: dict[type[Fault], int] = {Crash: 5, Hang: 2, AgentKill: 3, NodeKill: 3, Drain: 3, StoreTrouble: 2}
