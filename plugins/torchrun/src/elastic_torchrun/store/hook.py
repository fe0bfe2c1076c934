"""The hook behind `--agent-store`, and for a rank 0 that finds no store at MASTER_PORT. It is on in every run."""

from _queue import Empty, SimpleQueue
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from elastic_core.api import (
    AgentHook,
    AgentStarted,
    ElasticError,
    HookSettings,
    LaunchChange,
    Launches,
    OptionSpec,
    Power,
    Round,
    WorkersStarting,
)
from elastic_core.api.feed import Answer
from elastic_core.api.starters import AgentLoop, MasterServer
from elastic_torchrun.options import AGENT_STORE

if TYPE_CHECKING:
    from elastic_torchrun.store.sidecar import StoreSidecar

WATCH: Final = "elastic_torchrun.store.watch:watch"
OFFER: Final = "store"
"""The request of rank 0's worker to its agent."""
_WATCHED: Final = (0, 1)
"""The ranks that check. All other ranks wait for rank 0 as rank 1 does."""
_ANSWER_S: Final = 5.0

OnAnswer = Callable[[ElasticError | None], None]


class StoreServer(MasterServer):
    """The workers' store, in a process that is started when it is needed; most runs need none.

    Args:
        loop: The agent's.
        settings: The hook's.
        given: Whether `--agent-store` is given.
    """

    def __init__(self, loop: AgentLoop, settings: HookSettings, *, given: bool) -> None:
        self.loop = loop
        self.elsewhere = False
        """The rendezvous hosts the store."""
        self._settings = settings
        self._given = given
        self._sidecar: StoreSidecar | None = None

    @property
    def sidecar(self) -> "StoreSidecar":
        """Its process."""
        if self._sidecar is None:
            from elastic_torchrun.store.sidecar import StoreSidecar

            self._sidecar = StoreSidecar(
                self.loop,
                incarnation=self._settings.incarnation,
                log_file=Path(self._settings.run_dir) / "agent_store.log",
            )
        return self._sidecar

    def prepare(self) -> None:
        """Start the import of torch."""
        self.sidecar.start()

    def unused(self, reason: str) -> None:
        """Note that another store is used."""
        self.elsewhere = True
        if self._given:
            self.loop.notice(f"--agent-store without effect: {reason}")

    def open(self, port: int, done: OnAnswer) -> None:
        """Open an empty store."""
        self.sidecar.open(port, done)

    def shut(self, done: OnAnswer) -> None:
        """Close the store."""
        if self._sidecar is None:
            done(None)
        else:
            self._sidecar.shut(done)

    def pids(self) -> Collection[int]:
        """Return its process, if there is one."""
        return () if self._sidecar is None else self._sidecar.pids()

    def close(self) -> None:
        """End the process."""
        if self._sidecar is not None:
            self._sidecar.close()
            self._sidecar = None


class AgentStore(AgentHook):
    """Hosts the workers' store beside the agent: from the start, or when rank 0 connects to one."""

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.HOSTS, Power.LAUNCHES, Power.RUN})
    options: ClassVar[Sequence[OptionSpec]] = (AGENT_STORE,)

    def __init__(self, settings: HookSettings) -> None:
        """Host nothing yet."""
        super().__init__(settings)
        self.hosting = settings.option("agent_store", bool, False)
        self._server: StoreServer | None = None
        self._round: Round | None = None

    def master_server(self, loop: AgentLoop) -> StoreServer:
        """Return the store; no process is started yet."""
        self._server = StoreServer(loop, self.settings, given=self.hosting)
        return self._server

    def on_agent_started(self, event: AgentStarted) -> None:
        """Accept requests of rank 0."""
        self.run.offer(OFFER, self._asked)

    def on_workers_starting(self, event: WorkersStarting) -> Launches | None:
        """Let the first ranks check whether a store is hosted, if rank 0 is to host it."""
        self._round = event.round
        if self.hosting or event.dry_run:
            return None
        watched = [rank for rank in range(event.round.local_world_size) if event.round.global_rank(rank) in _WATCHED]
        return Launches(workers=dict.fromkeys(watched, LaunchChange(startup=(WATCH,)))) if watched else None

    def _asked(self, params: Mapping[str, str]) -> Answer:
        """Open a store for rank 0. Threading: the requesting thread."""
        server = self._server
        if server is None:
            raise ElasticError("this agent hosts nothing")
        refusals: SimpleQueue[str] = SimpleQueue()
        server.loop.post(lambda: refusals.put(self._open(server)))
        try:
            refusal = refusals.get(timeout=_ANSWER_S)
        except Empty:
            refusal = f"the agent's loop has not answered within {_ANSWER_S:g} s"
        if refusal:
            raise ElasticError(refusal)
        return Answer(content="a store is opened at MASTER_PORT")

    def _open(self, server: StoreServer) -> str:
        """Open the store to which rank 0's worker connects. Return why not; empty if it is being opened.

        Threading: the agent's loop.
        """
        round_, notice = self._round, server.loop.notice
        if round_ is None or round_.node_rank != 0 or not self.run.workers():
            return "no rank 0 runs on this node"
        if server.elsewhere:
            return "the rendezvous has a store of its own"
        if self.hosting:
            return ""
        self.hosting = True
        notice(
            f"rank 0 connects to a store at MASTER_PORT {round_.master_port}, and no process hosts one: one is opened "
            "beside this agent, and in later rounds, too; --agent-store does so from the start"
        )

        def done(reason: str) -> None:
            if reason:
                notice(f"the store at MASTER_PORT can't be opened: {reason}; rank 0 waits for it")
                server.close()
                self.hosting = False

        server.sidecar.open_store(round_.master_port, done)
        return ""
