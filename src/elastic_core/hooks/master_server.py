"""Servers at MASTER_PORT that hooks host beside the agent: their interface, and what keeps them from doing harm.

By default the worker of rank 0 hosts what the workers of a round meet at, torch's store most often. A server that
outlives that worker, or speaks another protocol, is a `MasterServer`.
"""

import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

from elastic_core.errors import BackendUnavailableError, ElasticError
from elastic_core.plugin_faults import LoopFence, PluginFaults, wrong_answer
from elastic_core.starters import AgentLoop
from elastic_core.system.clock import SYSTEM_CLOCK, Clock, WaitBudget

if TYPE_CHECKING:
    from elastic_core.hooks.members import NamedHook

ANSWER_S: Final = 300.0
"""How long a server may take to listen: an import from a cold network disk takes minutes."""

OnAnswer = Callable[[ElasticError | None], None]
"""Takes how it went, once: None is well."""


class MasterServer:
    """A server at MASTER_PORT, one for each round, beside the agent of the node with rank 0. Subclass it.

    It is used while its hook is `hosting`; workers then find `TORCHELASTIC_USE_AGENT_STORE=True`, and rank 0 connects
    as the others do. Its process, if it has one, gets `HookSettings.incarnation` by `hosted_environment` of
    elastic-backend-net: the guard ends it when the agent can't, and spares it when the workers are ended.

    Threading: the agent's loop. Every call is awaited by all that the agent does, so none may block; what takes long
    goes on by the loop's timers and readers, or on a thread that comes back by `post`.
    """

    def prepare(self) -> None:
        """Begin what takes long. Called: once, before the first round, where this node is sure to have rank 0."""

    def unused(self, reason: str) -> None:
        """React to never being asked. Called: in place of all but `close`, where the rendezvous hosts a store itself.

        Args:
            reason: For people.
        """

    def open(self, port: int, done: OnAnswer) -> None:
        """Have a new server listen, with nothing of the last one's in it, and call `done`.

        Called: on the node with rank 0, when a round has formed; its workers start when `done` was called, on the loop
        and within five minutes. An error ends the rendezvous, and so the run, with its text and its exit code.

        Args:
            port: The round's `MASTER_PORT`. The agent holds it without listening, so that SO_REUSEADDR binds it.
            done: Takes None, or a `BackendUnavailableError` that says why not.
        """
        raise NotImplementedError

    def shut(self, done: OnAnswer) -> None:
        """Have nothing listen, and call `done` as for `open`. Called: on every node, before a port is held."""
        done(None)

    def pids(self) -> Collection[int]:
        """Return its processes: the sweep spares them, and they are its own to end and to reap."""
        return ()

    def close(self) -> None:
        """End what it has; idempotent. Called: when all workers have ended, or when it was turned off."""


class MasterServers:
    """The servers of hooks: of those that are hosting, the first is asked.

    One that raises or holds the agent up is off, with a line: rank 0's worker hosts, as if there were none.

    Args:
        hooks: Those with the power, in their order.
        loop: The agent's.
        clock: Measures the calls.
        faults: Keeps what hooks raise.

    Threading: the loop's; `hosting`, `await_open` and `await_shut` any.
    """

    def __init__(
        self,
        hooks: "Sequence[NamedHook]",
        loop: AgentLoop,
        *,
        faults: PluginFaults | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._loop = loop
        self._servers = [_Server(named, loop, faults, clock) for named in hooks]

    @property
    def hosting(self) -> bool:
        """Whether one of them is to be asked."""
        return self._hosting is not None

    @property
    def _hosting(self) -> "_Server | None":
        return next((server for server in self._servers if server.hosting), None)

    def prepare(self) -> None:
        """Have the one that hosts begin what takes long."""
        server = self._hosting
        if server is not None:
            server.call("prepare", lambda made: made.prepare())

    def leave(self, reason: str) -> None:
        """Ask none of them, ever: the rendezvous hosts a store."""
        for server in self._servers:
            server.leave(reason)

    def open(self, port: int, done: OnAnswer) -> None:
        """Have the server of a round listen; `done` is called at once where there is none."""
        self._ask("open", lambda made, answer: made.open(port, answer), done)

    def shut(self, done: OnAnswer) -> None:
        """Have nothing listen; `done` is called at once where nothing does."""
        self._ask("shut", lambda made, answer: made.shut(answer), done)

    def _ask(self, method: str, ask: Callable[[MasterServer, OnAnswer], None], done: OnAnswer) -> None:
        server = self._hosting
        if server is None:
            done(None)
            return
        label = server.label
        answers: list[ElasticError | None] = []
        asking = True

        def answer(error: ElasticError | None) -> None:
            if not answers:
                answers.append(error)
                late.cancel()
                if not asking:
                    done(error)

        late = self._loop.call_later(
            ANSWER_S,
            lambda: answer(BackendUnavailableError(f"{label}: {method} has not answered within {ANSWER_S:g} s")),
        )
        server.call(method, lambda made: ask(made, answer))
        asking = False  # what follows an answer that came at once is no call of the hook's
        if not server.hosting:
            answers.append(None)
            late.cancel()
        if answers:
            done(answers[0])

    # --- for a handler that blocks on a thread of its own

    def await_open(self, port: int, wait: WaitBudget) -> None:
        """Return once the server of a round listens.

        Raises:
            BackendUnavailableError: it can't.
            WaitCancelledError: the agent wants no round any more.
            WaitExpiredError: the budget's deadline has passed.

        Threading: any but the loop's; blocks.
        """
        self._await(lambda done: self.open(port, done), wait)

    def await_shut(self, wait: WaitBudget) -> None:
        """Return once nothing listens; raises and blocks as `await_open` does."""
        self._await(self.shut, wait)

    def _await(self, ask: Callable[[OnAnswer], None], wait: WaitBudget) -> None:
        if not self.hosting:
            return
        over = threading.Event()
        answers: list[ElasticError | None] = []

        def done(error: ElasticError | None) -> None:
            answers.append(error)
            over.set()

        self._loop.post(lambda: ask(done))
        wait.on_cancel(over.set)
        over.wait(wait.remaining_s(at_most_s=2 * ANSWER_S))
        if not answers:
            wait.check()
            raise BackendUnavailableError(f"the agent's loop has not answered within {2 * ANSWER_S:g} s")
        if answers[0] is not None:
            raise answers[0]

    # --- what others need to know

    def pids(self) -> frozenset[int]:
        """Return the processes that sweeps must spare and others must not reap."""
        return frozenset().union(*(server.pids() for server in self._servers))

    def close(self) -> None:
        """End what they have; idempotent."""
        for server in self._servers:
            server.close()


class _Server:
    """One hook's server, fenced."""

    def __init__(self, named: "NamedHook", loop: AgentLoop, faults: PluginFaults | None, clock: Clock) -> None:
        self.label = named.label
        self._left = False
        self._hook = named.hook
        self._made: MasterServer | None = None
        self._fence = LoopFence(
            named.label, loop, "rank 0's worker hosts what workers meet at", faults=faults, clock=clock
        )
        with self._fence.call("master_server"):
            made: object = named.hook.master_server(loop)
            if made is None or isinstance(made, MasterServer):
                self._made = made
            else:
                self._fence.turn_off("master_server", wrong_answer(made, "a MasterServer or None"))

    @property
    def hosting(self) -> bool:
        wanted = False
        if self._made is not None and not self._left and not self._fence.off:
            with self._fence.call("hosting"):
                wanted = self._hook.hosting is True
        return wanted

    def leave(self, reason: str) -> None:
        self.call("unused", lambda made: made.unused(reason))
        self._left = True

    def call(self, method: str, call: Callable[[MasterServer], None]) -> None:
        if self._made is None or self._fence.off:
            return
        with self._fence.call(method):
            call(self._made)
        self._close_if_off()

    def _close_if_off(self) -> None:
        if self._fence.off:
            self.close()  # or rank 0's worker would find its port taken

    def pids(self) -> frozenset[int]:
        found: frozenset[int] = frozenset()
        if self._made is not None:
            with self._fence.call("pids"):
                found = frozenset(self._made.pids())
        return found

    def close(self) -> None:
        if self._made is not None:
            with self._fence.call("close"):
                self._made.close()
