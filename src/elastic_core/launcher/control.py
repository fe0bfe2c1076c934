"""The agent's control plane in one run: its socket, those of its workers, and what the handlers need to know."""

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from elastic_core.control_plane.paths import SocketPaths, remove_socket
from elastic_core.errors import ElasticError
from elastic_core.launcher.status_keeper import StatusKeeper
from elastic_core.options.settings import RunSettings
from elastic_core.processes.output.disk import Disk
from elastic_core.processes.spec import WorkerLaunch, WorkerPaths
from elastic_core.reactor import Reactor

if TYPE_CHECKING:
    from elastic_core.agent.loop import Agent
    from elastic_core.agent.parts import Workers
    from elastic_core.agent.watch.worker_stacks import WorkerStacks
    from elastic_core.control_plane.agent_server import AgentServer
    from elastic_core.control_plane.http import Offer
    from elastic_core.rendezvous.loop import Rendezvous


class AgentControl:
    """What the agent answers, and to whom.

    Nothing is there before the workers run, and then nothing but a listening socket until somebody asks. Where even
    that can't be had, the run goes on without a control plane, and a line says so.

    Threading: the supervisor's thread, but `_offer`.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        reactor: Reactor,
        run_dir: Path,
        status: StatusKeeper,
        disk: Disk,
        stacks: "WorkerStacks",
        notice: Callable[[str], None],
    ) -> None:
        """Listen to nobody yet."""
        self.settings = settings
        self.reactor = reactor
        self.status = status
        self.agent: Agent
        self.rendezvous: Rendezvous
        self.workers: Workers
        self.launches: Sequence[WorkerLaunch] = ()
        """The workers of the round."""
        self.planned_s = reactor.now_s()
        """When they were about to be started."""
        self.metrics: Callable[[], tuple[str, str]] | None = None
        """Gives the metrics as text, and its MIME type; None: nobody collects any."""
        self.open_store: Callable[[], str] = lambda: "this agent has no store to offer"
        """Opens the workers' store beside this agent, and returns why not."""
        self.stacks = stacks
        self._disk = disk
        self._notice = notice
        self._server: AgentServer | None = None
        self._wanted = False
        self._paths = self._new_paths(run_dir)

    def _say(self, err: ElasticError | OSError) -> None:
        self._notice(f"no control plane, so that 'elastic ctl' can't reach this agent: {err}")

    def warm(self) -> None:
        """Begin to listen, beside the loop. Called: once the workers run."""
        self._wanted = True
        if (paths := self._paths) is None:
            return
        from elastic_core.control_plane.agent_server import AgentServer  # a start does not wait for it
        from elastic_core.control_plane.sockets import listen

        def serve(listener: socket.socket | None, error: Exception | None) -> None:
            if listener is None:
                if isinstance(error, ElasticError | OSError):
                    self._say(error)
                return
            if self._paths is not paths:  # closed, or moved, meanwhile
                listener.close()
                remove_socket(paths.agent)
                return
            self._server = AgentServer(self.reactor, listener, paths.agent, make_offer=self._offer)
            self.status.answer_at(paths.agent)

        self._disk.run(paths.agent, lambda: listen(paths.agent), serve)

    def move(self, run_dir: Path) -> None:
        """Listen in another run directory: the one before has gone, and the sockets with it."""
        if self._paths is None:
            return
        if self._server is not None:
            self._server.close()
            self._server = None
        self._paths.close()
        self._paths = self._new_paths(run_dir)
        self.status.answer_at("")
        if self._wanted:
            self.warm()

    def _new_paths(self, run_dir: Path) -> SocketPaths | None:
        try:
            return SocketPaths(run_dir, self.settings.nodes.local_world_size) if self.settings.control_plane else None
        except (ElasticError, OSError) as err:
            self._say(err)
            return None

    def _offer(self) -> "Offer":
        from elastic_core.launcher.control_handlers import AgentHandlers

        return AgentHandlers(self)

    def serve(self, agent: "Agent", rendezvous: "Rendezvous", workers: "Workers") -> None:
        """Take whom requests are about. Called: before the loop runs, and so before anybody can ask."""
        self.agent, self.rendezvous, self.workers = agent, rendezvous, workers

    # --- a round

    def with_sockets(self, paths: Mapping[int, WorkerPaths]) -> dict[int, WorkerPaths]:
        """Return the files of a round's workers with the sockets that they may serve on."""
        own = self._paths
        if own is None:
            return dict(paths)
        return {rank: replace(files, control_socket=own.worker(rank)) for rank, files in paths.items()}

    def begin_round(self, launches: Sequence[WorkerLaunch]) -> None:
        """Take what is about to be started."""
        self.launches = tuple(launches)
        self.planned_s = self.reactor.now_s()

    def end(self) -> Callable[[], None]:
        """Answer nobody any more; return what removes the sockets, on whatever thread."""
        paths, self._paths = self._paths, None
        server, self._server = self._server, None
        if server is not None:
            server.close(remove=False)

        def remove() -> None:
            if paths is not None and server is not None:
                remove_socket(paths.agent)
            if paths is not None:
                paths.close()

        return remove

    def close(self) -> None:
        """Give everything back; idempotent."""
        self.end()()
