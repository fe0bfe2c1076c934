"""The hook with the agent's control plane: on in every run, unless `--no-control-plane` is given.

Before the workers run, it does nothing; then it has a listening socket and a thread that waits at it. If nodes meet in
a store, and workers write log files or a hook offers a time ledger, it has another pair, for `elastic logs` and
`elastic report` on other hosts.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from elastic_core.api import (
    SYSTEM_CLOCK,
    AgentHook,
    AgentStopped,
    Clock,
    ElasticError,
    HookSettings,
    LaunchChange,
    Launches,
    Power,
    RunningWorker,
    RunOption,
    WorkersStarted,
    WorkersStarting,
)
from elastic_ops.options import NO_CONTROL_PLANE
from elastic_ops.status.recorder import LISTENING

if TYPE_CHECKING:
    from elastic_ops.control_plane.agent_handlers import AgentHandlers
    from elastic_ops.control_plane.listeners import OwnerServer
    from elastic_ops.control_plane.paths import SocketPaths
    from elastic_ops.logs.index import IndexWriter
    from elastic_ops.logs.serving import LogServer
    from elastic_ops.node_workers import WorkerState
    from elastic_ops.status.document import AgentStatus

VARIABLE: Final = "TORCH_WORKER_SERVER_SOCKET"
"""The socket path of a worker's own server, if its script starts one."""
LEDGER: Final = "ledger"
"""The offer of a time ledger, which `elastic report` on other hosts requests."""
_LISTEN_AFTER_S: Final = 0.5
"""How long a run must last before the hook listens."""


class ControlPlane(AgentHook):
    """Listens for requests to the agent, and gives each worker the path of its own socket.

    If the run directory is made anew, it listens there from the next round on. If no socket can be made, a line is
    logged and the run goes on without.
    """

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.RUN, Power.LAUNCHES})
    options: ClassVar[tuple[RunOption, ...]] = (NO_CONTROL_PLANE,)
    clock: Clock = SYSTEM_CLOCK

    def __init__(self, settings: HookSettings) -> None:
        """Listen on nothing yet."""
        super().__init__(settings)
        self._wanted = not settings.options.get("no_control_plane")
        self._paths: SocketPaths | None = None
        self._server: OwnerServer | None = None
        self._handlers: AgentHandlers | None = None
        self._workers: dict[int, RunningWorker] = {}
        self._begun_s = 0.0
        self._logs: IndexWriter | None = None
        self._log_server: LogServer | None = None
        self._logs_refused = False
        self._started: list[tuple[int, tuple[RunningWorker, ...]]] = []

    def on_workers_starting(self, event: WorkersStarting) -> Launches | None:
        """Set each worker's socket path, unless the user has set the variable."""
        self._begun_s = self.clock.monotonic_s()
        if not self._wanted or event.dry_run:
            return None
        self._settle()
        paths = self._paths
        if paths is None or VARIABLE in os.environ:
            return None
        ranks = range(event.round.local_world_size)
        return Launches(workers={rank: LaunchChange(environment={VARIABLE: paths.worker(rank)}) for rank in ranks})

    def _settle(self) -> None:
        """Choose the paths of the sockets in the current run directory."""
        from elastic_ops.control_plane.paths import SocketPaths

        folder = Path(self.run.run_dir())
        if self._paths is not None and self._paths.run_dir == folder:
            return
        if self._server is not None:
            self.run.record(LISTENING, {"address": ""})
        self._end()
        try:
            self._paths = SocketPaths(folder, self.settings.local_world_size)
        except (ElasticError, OSError) as err:
            self._complain(err)

    def on_workers_started(self, event: WorkersStarted) -> None:
        """Begin to listen, after a short delay."""
        workers = self.run.workers(ended=True)  # one that has failed at once has a log, too
        self._workers = {worker.local_rank: worker for worker in workers}
        if any(worker.stdout or worker.stderr for worker in workers):
            self._started.append((event.round.index, workers))
            self.run.call_later(_LISTEN_AFTER_S, self._index_logs)
        if self._wanted:
            self.run.call_later(_LISTEN_AFTER_S, self._listen)
            if LEDGER in self.run.offers():
                self.run.call_later(_LISTEN_AFTER_S, self._serve_nodes)

    def _index_logs(self) -> None:
        """Write the paths of started workers' output, for `elastic logs`."""
        from elastic_ops.logs.index import IndexWriter  # of runs that have log files

        if self._logs is None:
            self._logs = IndexWriter()
        started, self._started = self._started, []
        if started:
            self._logs.add(Path(self.run.run_dir()), started)
        self._serve_nodes()

    def _serve_nodes(self) -> None:
        """Serve logs and ledger to other hosts, if agents of several hosts have a common secret."""
        channel = self.run.channel()
        if not self._wanted or self._log_server is not None or channel is None or self._logs_refused:
            return
        from elastic_ops.logs.serving import LogServer

        try:
            self._log_server = LogServer(
                channel.port, channel=self.run.channel, run_dir=self.run.run_dir, offers=self.run.offers
            )
        except (OSError, RuntimeError) as err:
            self._logs_refused = True
            why = getattr(err, "strerror", None) or err
            self.run.notice(f"'elastic logs' on other hosts can't ask this agent: TCP port {channel.port}: {why}")

    def _listen(self) -> None:
        from elastic_ops.control_plane.listeners import OwnerServer  # a start does not wait for it

        if self._server is not None and not Path(self._server.path).exists():
            self._end()  # the run directory has been removed, and made anew
        self._settle()
        paths = self._paths
        if paths is None or self._server is not None:
            return
        try:
            self._server = OwnerServer(paths.agent, self._offer)
        except (ElasticError, OSError, RuntimeError) as err:
            self._complain(err)
        else:
            self.run.record(LISTENING, {"address": paths.agent})

    def _complain(self, err: Exception) -> None:
        self._wanted = False
        self.run.notice(f"no control plane, so that 'elastic ctl' can't reach this agent: {err}")

    def _offer(self) -> "AgentHandlers":
        """Return the handlers. Threading: that of a connection."""
        from elastic_ops.control_plane.agent_handlers import AgentHandlers

        if self._handlers is None:
            self._handlers = AgentHandlers(self.run, self.settings, details=self._details)
        return self._handlers

    def _details(self, status: "AgentStatus") -> "tuple[WorkerState, ...]":
        """Return this node's workers with details beside their status. Threading: that of a connection."""
        from elastic_ops.node_workers import WorkerState

        known, paths = self._workers, self._paths
        own = os.environ.get(VARIABLE, "")
        uptime_s = round(self.clock.monotonic_s() - self._begun_s, 3)
        found = []
        for worker in status.workers:
            files = known.get(worker.local_rank, RunningWorker(local_rank=0, global_rank=0, pid=0))
            alive = worker.state == "alive"
            found.append(
                WorkerState(
                    local_rank=worker.local_rank,
                    global_rank=worker.global_rank,
                    pid=worker.pid,
                    state=worker.state,
                    alive=alive,
                    uptime_s=uptime_s if alive else None,
                    stdout=files.stdout,
                    stderr=files.stderr,
                    error_file=files.error_file,
                    control=own or ("" if paths is None else paths.worker(worker.local_rank)),
                )
            )
        return tuple(found)

    def on_agent_stopped(self, event: AgentStopped) -> None:
        """Stop listening."""
        self._wanted = False
        if self._started:
            self._index_logs()
        self._end()
        if self._log_server is not None:
            self._log_server.shutdown()

    def _end(self) -> None:
        paths, self._paths = self._paths, None
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
        if paths is not None:
            paths.close()
