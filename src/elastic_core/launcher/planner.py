"""Plans the workers of each round, and prepares their files in advance."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from elastic_core.failure.incidents import Incidents
from elastic_core.launcher.logs import RunLogs
from elastic_core.launcher.plan import Attempt, worker_plan
from elastic_core.launcher.run_files import RunFiles
from elastic_core.logger import Logger
from elastic_core.messages import SpawnWorkers
from elastic_core.options.settings import RunSettings
from elastic_core.processes.group import WorkerGroup
from elastic_core.processes.spec import WorkerLaunch
from elastic_core.reports import RunningWorker
from elastic_core.types import Round

if TYPE_CHECKING:
    from elastic_core.launcher.outcome import RunOutcome
    from elastic_core.starters import WorkerStarter


class WorkerPlanner:
    """Plans the workers of this node. Threading: the agent's loop.

    `hosts_store` returns whether the store at MASTER_PORT is hosted outside the workers. `incidents` and `outcome`
    receive the workers' files; `outcome` is `None` if no caller needs one.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        files: RunFiles,
        logs: RunLogs,
        workers: WorkerGroup,
        starters: "Sequence[WorkerStarter]",
        hosts_store: Callable[[], bool],
        incidents: Incidents,
        outcome: "RunOutcome | None",
        log: Logger,
    ) -> None:
        self._settings = settings
        self._files = files
        self._logs = logs
        self._workers = workers
        self._pipes = workers.prepare if settings.workers.worker_hooks else None
        self._starters = starters
        self._hosts_store = hosts_store
        self._incidents = incidents
        self._outcome = outcome
        self._log = log
        self._joined = False
        self.round: Round | None = None
        """The round that was planned last."""
        self._launches: tuple[WorkerLaunch, ...] = ()
        self._error_files: dict[int, str] = {}

    def before_join(self, done: Callable[[], None]) -> None:
        """Have the starters prepare, then call `done`, once, and if the number of nodes may vary.

        Workers of other nodes may be running: once this node joins, they stand still until its own workers have begun.
        """
        nodes, joined, self._joined = self._settings.nodes, self._joined, True
        if not joined and nodes.min_nodes < nodes.max_nodes:
            done = self._prepared(nodes.local_world_size, done)
        done()

    def prepare(self, round_: Round, done: Callable[[], None]) -> None:
        """Make the files of a round's workers, have the starters prepare, then call `done`."""
        done = self._prepared(max(0, round_.local_world_size - len(self._workers.left_pids)), done)
        self._files.prepare(round_, done, pipes=self._pipes)

    def _prepared(self, count: int, done: Callable[[], None]) -> Callable[[], None]:
        for starter in self._starters:
            done = partial(starter.prepare, count, done)
        return done

    def plan(self, command: SpawnWorkers) -> list[WorkerLaunch]:
        """Return the workers to start for a round."""
        settings = self._settings
        attempt = Attempt(
            round=command.round,
            restart_count=command.restart_count,
            membership_changes=command.membership_changes,
            incarnation=settings.nodes.incarnation,
            node_id=command.round.node_id or settings.nodes.node_id,
            changes=command.changes,
            use_agent_store=self._hosts_store(),
        )
        if settings.entrypoint.function is not None and any(change.command for change in command.changes):
            self._log.notice("a hook's command can't be put before a function: the workers start without it")
        paths = self._files.take(command.round)
        launches, paths = self._logs.asked(worker_plan(settings, attempt, paths), paths)
        self.round, self._launches = command.round, tuple(launches)
        self._error_files = {rank: own.error_file for rank, own in paths.items()}
        self._incidents.begin_round(paths, command.restart_count)
        if self._outcome is not None:
            self._outcome.begin_round(
                command.round, {launch.global_rank: self._error_files[launch.local_rank] for launch in launches}
            )
        return launches

    def running(self, pids: Sequence[int]) -> tuple[RunningWorker, ...]:
        """Return the planned workers for hooks; `pids` by local rank."""
        return tuple(
            RunningWorker(
                local_rank=launch.local_rank,
                global_rank=launch.global_rank,
                pid=pids[launch.local_rank],
                stdout=launch.stdout.file or "",
                stderr=launch.stderr.file or "",
                error_file=self._error_files[launch.local_rank],
            )
            for launch in self._launches
            if launch.local_rank < len(pids)
        )
