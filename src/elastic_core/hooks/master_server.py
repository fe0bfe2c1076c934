"""Servers at MASTER_PORT that hooks host beside the agent: their interface, and protection from their errors.

By default, the worker of rank 0 hosts the server where the workers of a round meet, usually torch's store. A
`MasterServer` can outlive that worker, or use another protocol.
"""

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

from elastic_core.errors import BackendUnavailableError, ElasticError
from elastic_core.plugin_faults import LoopFence, PluginFaults, wrong_answer
from elastic_core.starters import AgentLoop
from elastic_core.system.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from elastic_core.hooks.members import NamedHook

ANSWER_S: Final = 300.0
"""Seconds that a server may take to listen: an import from a network disk takes minutes."""

OnAnswer = Callable[[ElasticError | None], None]
"""Called once with the result: `None` means success."""


class MasterServer:
    """A server at MASTER_PORT, one for each round, beside the agent of the node with rank 0. Subclass it.

    It is used while its hook is `hosting`; workers then have `TORCHELASTIC_USE_AGENT_STORE=True`, and rank 0 connects
    as the other ranks do. A process of the server must get `HookSettings.incarnation` by `hosted_environment` of
    elastic-backend-net: then the guard ends it if the agent cannot, and spares it when the workers are ended.

    Threading: the agent's loop. The agent waits for every call, so none may block. Use the loop's timers and readers
    for slow work, or a thread that reports by `post`.
    """

    def prepare(self) -> None:
        """Begin slow work. Called: once, before the first round, if this node is certain to have rank 0."""

    def unused(self, reason: str) -> None:
        """React to not being used. Called: instead of all methods but `close`, if the rendezvous hosts a store.

        Args:
            reason: The reason, for users.
        """

    def open(self, port: int, done: OnAnswer) -> None:
        """Start a new server without data of the last one, and call `done` when it listens.

        Called: on the node with rank 0, after a round has formed. Its workers start after `done` was called, on the
        loop and within five minutes. An error ends the rendezvous and so the run, with its text and its exit code.

        Args:
            port: The round's `MASTER_PORT`. The agent holds it without listening, so that SO_REUSEADDR binds it.
            done: Called with `None`, or with a `BackendUnavailableError` that has the reason.
        """
        raise NotImplementedError

    def shut(self, done: OnAnswer) -> None:
        """Stop listening, and call `done` as for `open`. Called: on every node, before a port is held."""
        done(None)

    def pids(self) -> Collection[int]:
        """Return the server's processes: the sweep spares them, and the server must end and reap them."""
        return ()

    def close(self) -> None:
        """End the server; idempotent. Called: after all workers have ended, or after it was turned off."""


class MasterServers:
    """The servers of hooks: the first one that is hosting is used.

    A server that raises or blocks the agent is turned off, with a line: rank 0's worker hosts instead.

    Threading: the loop's; `hosting` may be read on any thread.
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
        """Whether a server is used."""
        return self._hosting is not None

    @property
    def _hosting(self) -> "_Server | None":
        return next((server for server in self._servers if server.hosting), None)

    def prepare(self) -> None:
        """Let the hosting server begin slow work."""
        server = self._hosting
        if server is not None:
            server.call("prepare", lambda made: made.prepare())

    def leave(self, reason: str) -> None:
        """Stop using servers for the whole run, because the rendezvous hosts a store."""
        for server in self._servers:
            server.leave(reason)

    def open(self, port: int, done: OnAnswer) -> None:
        """Start the server of a round; without one, `done` is called at once."""
        self._ask("open", lambda made, answer: made.open(port, answer), done)

    def shut(self, done: OnAnswer) -> None:
        """Stop listening; if no server listens, `done` is called at once."""
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
        asking = False  # the code after an immediate answer is no call of the hook
        if not server.hosting:
            answers.append(None)
            late.cancel()
        if answers:
            done(answers[0])

    # --- for sweeps and the end

    def pids(self) -> frozenset[int]:
        """Return the processes that sweeps must spare and other code must not reap."""
        return frozenset().union(*(server.pids() for server in self._servers))

    def close(self) -> None:
        """End all servers; idempotent."""
        for server in self._servers:
            server.close()


class _Server:
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
            self.close()  # if not, rank 0's worker would find its port in use

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
