"""The composition root: a run's options in, its exit code out."""

import gc
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec.structs import replace

from elastic_core.agent.feed import Feed, Observation, described
from elastic_core.agent.guard.guardian import Guardian
from elastic_core.agent.loop import Agent
from elastic_core.agent.machine.states import AgentEnd
from elastic_core.agent.parts import AgentOptions, AgentResult
from elastic_core.agent.suspension import suspend_node
from elastic_core.clock import SYSTEM_CLOCK
from elastic_core.errors import ElasticError
from elastic_core.failure.handler import FailureHandler
from elastic_core.failure.intensity import Intensity
from elastic_core.failure.reporter import Reporter
from elastic_core.failure.runner import PolicyRunner
from elastic_core.hooks.members import NamedHook, close_hooks
from elastic_core.hooks.runner import HookRunner
from elastic_core.launcher.agent_side import RoundPort, RunSide, open_rendezvous
from elastic_core.launcher.early_stop import EarlyStop, early_stops, held
from elastic_core.launcher.hook_actions import STORE_CALL, HookActions, measure_store, store_place
from elastic_core.launcher.injected import NOTHING, Injected
from elastic_core.launcher.logs import RunLogs, choose_logs_specs
from elastic_core.launcher.plan import Attempt, hook_settings, worker_plan
from elastic_core.launcher.run_files import RunFiles
from elastic_core.messages import SpawnWorkers
from elastic_core.moments import Power, RanksAssigned
from elastic_core.options.settings import RunSettings
from elastic_core.plugin_faults import PluginFaults, PluginLabel
from elastic_core.plugins.discovery import FAILURE_GROUP, RENDEZVOUS_GROUP
from elastic_core.plugins.entry_import import owner_of
from elastic_core.plugins.registry import PluginRegistry
from elastic_core.processes.group import WorkerGroup
from elastic_core.processes.output.disk import END_S, Disk
from elastic_core.processes.output.sink import Console
from elastic_core.processes.spec import WorkerLaunch
from elastic_core.processes.sweep import Sweeper, become_subreaper, has_strangers
from elastic_core.reactor import Reactor
from elastic_core.rendezvous.coordinated import Backend, CoordinatedRendezvous
from elastic_core.rendezvous.events import Rendezvous
from elastic_core.rendezvous.handler import takes_restarts
from elastic_core.rundir.directory import RunDirectory
from elastic_core.rundir.incident_files import IncidentFiles
from elastic_core.rundir.run_records import RunEntry
from elastic_core.starters import ReactorLoop, WorkerStarter
from elastic_core.types import Capability

if TYPE_CHECKING:
    from elastic_core.hooks.master_server import MasterServers
    from elastic_core.launcher.outcome import RunOutcome
    from elastic_core.starters import BegunCall, CallStarter

WARM_AFTER_S = 0.5
_WITHOUT_STORE = ("local", "static")

_C = TypeVar("_C", bound="_Closes")


def run_job(
    settings: RunSettings,
    *,
    own_process: bool = True,
    began: Mapping[str, float] | None = None,
    outcome: "RunOutcome | None" = None,
    injected: Injected = NOTHING,
) -> int:
    """Run to the end on this node and return the exit code.

    Args:
        settings: Every option, resolved.
        own_process: This process exists for the run alone (`elastic run`): it may become a subreaper. A library call
            leaves its caller as it was.
        began: What this process has done before, in order, each with when it ended in monotonic seconds;
            None: it does not say.
        outcome: Filled at the end, for a caller that wants more than the code.
        injected: What the caller has made itself.

    Raises:
        ElasticError: the run could not begin; nothing is left behind.
    """
    try:
        with ExitStack() as cleanup:
            # First of all: with fork, workers are copies of what this process is now.
            call = settings.entrypoint.function
            begun = None if call is None else call.begin()
            if begun is not None:
                cleanup.callback(begun.close)
            if own_process:
                cleanup.enter_context(early_stops(settings.stops.ending))
            job = _Job(settings, cleanup, own_process=own_process, began=began, outcome=outcome, injected=injected)
            return job.run(begun)
    except EarlyStop as stop:
        return 128 + stop.signum


def _compared(settings: RunSettings) -> dict[str, str]:
    """Return what other nodes compare when this one joins; nothing where no store is."""
    if settings.nodes.backend in _WITHOUT_STORE:
        return {}
    from elastic_core.options.run_fingerprint import run_fingerprint  # milliseconds that other runs save
    from elastic_core.rendezvous.identity import ALLOWABLE

    made = run_fingerprint(settings)
    # Where everything may differ (a library call), nobody who comes later is compared with this node either.
    fixed = {key: text for key, text in made.items() if key not in ALLOWABLE}
    return fixed if ALLOWABLE.issubset(settings.nodes.allow_mismatch) else made


class _Job:
    def __init__(
        self,
        settings: RunSettings,
        cleanup: ExitStack,
        *,
        own_process: bool,
        began: Mapping[str, float] | None,
        outcome: "RunOutcome | None",
        injected: Injected,
    ) -> None:
        self._settings = settings
        self._cleanup = cleanup
        self._own_process = own_process
        # Before anything of ours is started: what is there now is none of ours, nor is what it will start.
        self._strangers = own_process and has_strangers()
        self._start_up = dict(began or {})
        self._outcome = outcome
        self._injected = injected
        self._incarnation = os.urandom(16).hex()
        self._node_id = settings.nodes.node_id or socket.gethostname()
        self._port = RoundPort(settings.nodes.master_port)
        cleanup.callback(self._port.close)
        self._masters: MasterServers | None = None
        self._rdzv = replace(
            settings.nodes,
            node_id=self._node_id,
            incarnation=self._incarnation,
            fingerprint=_compared(settings),
        )
        self._policy = replace(
            settings.restarts,
            run_id=settings.nodes.run_id,
            min_nodes=settings.nodes.min_nodes,
            max_nodes=settings.nodes.max_nodes,
        )
        self._faults = PluginFaults()
        self._registry = PluginRegistry(disabled=settings.disabled_plugins, hooks=settings.hooks, faults=self._faults)
        if own_process:  # a program that runs an agent has Python's hook for itself
            places = (settings.nodes.backend, settings.restarts.name, *settings.hooks)
            cleanup.enter_context(self._faults.threads(partial(owner_of, places=places)))

    def run(self, call: "BegunCall | None" = None) -> int:
        settings = self._settings
        self._call = call
        registry = self._registry
        handler = self._handler()
        if Capability.CONTROL in handler.capabilities:
            # It adds to the host's name the address by which others come here, unless the user chose an id.
            handler.settings = replace(handler.settings, node_id=settings.nodes.node_id)
        policy = registry.make_policy(settings.restarts.name, self._policy, settings.policy_conf)
        chosen = choose_logs_specs(settings, self._injected.logs_specs)
        self._mark("plugins")
        with held(settings.stops.ending if self._own_process else ()):
            run_dir = RunDirectory.create(settings.output.run_dir, settings.nodes.run_id, self._node_id)
            self._logs = RunLogs(settings, run_dir=run_dir.path, chosen=chosen)
            self._files = RunFiles(self._closing(run_dir), self._logs)
            self._cleanup.callback(self._files.discard_unused)
            self._entry = RunEntry.begin(
                run_id=settings.nodes.run_id,
                node_id=self._node_id,
                script=settings.entrypoint.name,
                run_dir=str(run_dir.path),
            )
            self._cleanup.push(self._end_by)
        self._logs.prepare()
        of_hooks = hook_settings(
            settings,
            str(run_dir.path),
            incarnation=self._incarnation,
            restarts_nodes=isinstance(handler, CoordinatedRendezvous) or takes_restarts(handler),
            own_process=self._own_process,
        )
        hooks, warnings = registry.make_hooks(of_hooks, settings.hook_options)
        if hooks:
            self._cleanup.callback(close_hooks, hooks, faults=self._faults)
        self._mark("run directory")
        notices = (*registry.warnings, *warnings, *filter(None, [run_dir.notice]))
        return self._supervise(handler, policy, hooks, notices, run_dir).exit_code

    def _handler(self) -> Backend:
        if self._injected.rendezvous is not None:
            return self._injected.rendezvous(self._rdzv)
        settings = self._settings
        return self._registry.make_rendezvous(settings.nodes.backend, self._rdzv, settings.rdzv_conf)

    def _backend(self) -> PluginLabel:
        name = self._settings.nodes.backend
        injected = self._injected.rendezvous is not None
        return PluginLabel("backend", name) if injected else self._registry.label(RENDEZVOUS_GROUP, name)

    def _mark(self, what: str) -> None:
        self._start_up[what] = SYSTEM_CLOCK.monotonic_s()

    def _supervise(
        self,
        handler: Backend,
        policy: FailureHandler,
        hooks: Sequence[NamedHook],
        warnings: Sequence[str],
        run_dir: RunDirectory,
    ) -> AgentResult:
        reactor, settings = self._closing(Reactor()), self._settings
        console = self._closing(Console(reactor))
        disk = self._open_reporter(reactor, console, warnings, run_dir)
        notice = self._reporter.notice
        guardian = self._start_guard(reactor)
        subreaper = self._own_process and become_subreaper()
        feed = Feed()
        loop = ReactorLoop(reactor, notice=notice, own_process=self._own_process)
        self._masters = self._master_servers(loop, handler, hooks)
        calls = None if self._call is None else self._closing(self._call.on(loop))
        starters = self._starters(calls, loop, hooks)
        workers = self._workers = self._closing(
            WorkerGroup(
                reactor,
                console=console,
                sweeper=Sweeper(
                    self._incarnation,
                    subreaper=subreaper,
                    strangers=self._strangers,
                    spared=lambda: self._own_children(guardian, handler, starters),
                ),
                notice=notice,
                starters=starters,
                disk=disk,
                sent_to_all=guardian.signalled,
                exit_timeout_s=settings.stops.exit_timeout_s,
                read_ahead=self._reporter.read_ahead,
            )
        )
        rendezvous = self._closing(self._open_rendezvous(reactor, guardian, handler, feed, hooks))
        runner = self._hook_runner(reactor, hooks, handler, rendezvous, run_dir, feed)
        agent = self._agent = Agent(
            self._agent_options(run_dir),
            reactor=reactor,
            rendezvous=rendezvous,
            policy=self._policy_runner(reactor, policy),
            hooks=runner,
            workers=workers,
            reporter=self._reporter,
            plan=lambda command: self._plan(command, handler),
            feed=feed,
            note_workers=guardian.note_workers,
            adopted=workers.reap_adopted if subreaper else None,
            fence_passed=guardian.fence_passed,
            progress=lambda: self._actions.progress(),
            prepare=lambda round_, done: self._files.prepare(
                round_,
                done if calls is None else partial(calls.prepare, round_.local_world_size, done),
                pipes=workers.prepare if settings.workers.worker_hooks else None,
            ),
            suspend=partial(suspend_node, reactor, workers, fence_left_s=lambda: guardian.fence_left_s, notice=notice),
        )
        workers.attach(on_exit=agent.on_worker_exit, on_stopped=agent.on_workers_stopped, on_overdue=agent.on_overdue)
        reactor.call_later(WARM_AFTER_S, self._settle_in)
        result = agent.run()
        runner.close(run_dir_kept=lambda: self._keeps(result, run_dir))
        self._end(reactor, result, run_dir)
        if self._outcome is not None:
            self._outcome.error = rendezvous.error
            value = calls.value if calls is not None else lambda _: None
            self._outcome.take(result, value, self._reporter.final_failure)
        disk.close(within_s=min(END_S, settings.stops.shutdown_timeout_s))
        console.flush()
        return result

    def _open_reporter(
        self, reactor: Reactor, console: Console, warnings: Sequence[str], run_dir: RunDirectory
    ) -> Disk:
        """Have something that speaks to people, and keeps what there is to know; return the disk that it is kept on."""
        settings = self._settings
        reporter = self._reporter = Reporter(
            settings.nodes.run_id,
            files=IncidentFiles(run_dir.path),
            node_id=self._node_id,
            line=console.line,
            endpoint=settings.nodes.endpoint,
            max_restarts=settings.restarts.restart_budget,
            script=settings.entrypoint.script,
        )
        for text in (*settings.notices, *warnings, *(self._call.warnings if self._call is not None else ())):
            reporter.notice(text)
        disk = reporter.disk = self._closing(Disk(reactor, notice=reporter.notice))
        self._files.begin(disk, notice=reporter.notice)
        lane = disk.lane("the errors of plugins")
        put = reactor.post
        self._faults.begin(lambda: run_dir.path, put=lambda write: put(lambda: lane.put(write)), line=console.line)
        return disk

    def _start_guard(self, reactor: Reactor) -> Guardian:
        guardian = Guardian(reactor, incarnation=self._incarnation, notice=self._reporter.notice)
        self._cleanup.push(lambda kind, error, trace: guardian.unleash() if error else guardian.dismiss())
        guardian.start()
        self._mark("guard")
        return guardian

    def _open_rendezvous(
        self, reactor: Reactor, guardian: Guardian, handler: Backend, feed: Feed, hooks: Sequence[NamedHook]
    ) -> Rendezvous:
        def beside(what: Observation) -> None:
            """Publish what happens on another thread."""
            reactor.post(lambda: feed.publish(what))

        if any(named.takes_event(STORE_CALL) for named in hooks):
            measure_store(handler, beside)
        side = RunSide(
            reactor,
            agent=lambda: self._agent,
            guardian=guardian,
            handler=handler,
            settings=self._rdzv,
            port=self._port,
            masters=self._masters,
            notice=self._reporter.notice,
            backend=self._backend(),
            faults=self._faults,
            publish=feed.publish,
            assigned=lambda took_s: beside(RanksAssigned(took_s=took_s)),
        )
        return open_rendezvous(handler, side)

    def _hook_runner(
        self,
        reactor: Reactor,
        hooks: Sequence[NamedHook],
        handler: Backend,
        rendezvous: Rendezvous,
        run_dir: RunDirectory,
        feed: Feed,
    ) -> HookRunner:
        """Return what calls the hooks; it and all other observers take the feed."""
        self._actions = HookActions(
            reactor,
            reporter=self._reporter,
            store_place=partial(store_place, handler),
            workers=self._workers,
            agent=lambda: self._agent,
            rendezvous=rendezvous,
            run_dir=str(run_dir.path),
            publish=feed.publish,
            keep=run_dir.keep,
        )
        runner = HookRunner(
            hooks,
            post=reactor.post,
            call_later=reactor.call_later,
            log=self._reporter.notice,
            actions=self._actions,
            faults=self._faults,
        )
        self._cleanup.callback(runner.close)
        if self._outcome is not None:
            feed.subscribe(self._outcome.observe)
        for observer in (self._actions.observe, runner.observe):
            feed.subscribe(observer)
        if runner.feeds:
            feed.subscribe(lambda what: runner.publish(*described(what)))
        return runner

    def _policy_runner(self, reactor: Reactor, policy: FailureHandler) -> PolicyRunner:
        name = self._settings.restarts.name
        return PolicyRunner(
            policy,
            Intensity(self._policy),
            name=name,
            label=self._registry.label(FAILURE_GROUP, name),
            faults=self._faults,
            post=reactor.post,
            call_later=reactor.call_later,
        )

    def _end(self, reactor: Reactor, result: AgentResult, run_dir: RunDirectory) -> None:
        """Say what is left to say when the agent has ended, and end the run directory."""
        notice = self._reporter.notice
        if self._masters is not None:
            self._masters.close()
        if kept := self._workers.left_running():
            until = " until this process ends, as process 1" if os.getpid() == 1 else ""
            notice(f"left running on purpose (ELASTIC_KEEP=1){until}: {', '.join(kept)}")
        for text in self._faults.end():
            notice(text)
        while self._reporter.writing:  # what the run ended with is printed first
            reactor.turn()
        self._finish(result, run_dir)

    def _agent_options(self, run_dir: RunDirectory) -> AgentOptions:
        settings = self._settings
        return AgentOptions(
            run_id=settings.nodes.run_id,
            node_id=self._node_id,
            run_dir=str(run_dir.path),
            pid=os.getpid(),
            stops=settings.stops,
            join_timeout_s=settings.join_timeout_s,
            keep_interrupt=settings.workers.debug_rank is not None,
            start_up=self._start_up,
            longest_option_s=max((v for v in settings.hook_options.values() if isinstance(v, float)), default=0.0),
        )

    def _settle_in(self) -> None:
        """Do what can wait until the workers run."""
        self._reporter.warm()
        if self._own_process:
            gc.freeze()
            gc.enable()

    def _starters(
        self, calls: "CallStarter | None", loop: ReactorLoop, hooks: Sequence[NamedHook]
    ) -> list[WorkerStarter]:
        """Return those who start workers in place of the group, in the order in which they are asked."""
        starters: list[WorkerStarter] = [] if calls is None else [calls]
        if any(Power.STARTS in named.hook.powers for named in hooks):
            from elastic_core.hooks.starting import hook_starters  # few have any

            starters += [self._closing(starter) for starter in hook_starters(hooks, loop, self._faults)]
        return starters

    def _closing(self, thing: _C) -> _C:
        self._cleanup.callback(thing.close)
        return thing

    def _master_servers(
        self, loop: ReactorLoop, handler: Backend, hooks: Sequence[NamedHook]
    ) -> "MasterServers | None":
        """Return what hooks host for the workers to meet at, begun where it is sure to be needed; None: nothing."""
        hosts = [named for named in hooks if Power.HOSTS in named.hook.powers]
        if not hosts:
            return None
        from elastic_core.hooks.master_server import MasterServers  # few have any

        servers = self._closing(MasterServers(hosts, loop, faults=self._faults))
        if handler.use_agent_store:
            servers.leave(f"{self._settings.nodes.backend!r} has a store of its own")
        elif self._settings.nodes.max_nodes == 1 or self._settings.nodes.node_rank == 0:
            servers.prepare()
        return servers

    def _own_children(self, guardian: Guardian, handler: Backend, starters: Sequence[WorkerStarter]) -> frozenset[int]:
        """Return the children of this process that belong to no worker."""
        ours = guardian.pids() | handler.pids()
        ours = ours.union(*(starter.pids() for starter in starters))
        return ours if self._masters is None else ours | self._masters.pids()

    # --- what the agent asks for

    def _plan(self, command: SpawnWorkers, handler: Backend) -> list[WorkerLaunch]:
        settings = self._settings
        attempt = Attempt(
            round=command.round,
            restart_count=command.restart_count,
            membership_changes=command.membership_changes,
            incarnation=self._incarnation,
            node_id=command.round.node_id or self._node_id,
            changes=command.changes,
            use_agent_store=handler.use_agent_store or (self._masters is not None and self._masters.hosting),
        )
        if settings.entrypoint.function is not None and any(change.command for change in command.changes):
            self._reporter.notice("a hook's command can't be put before a function: the workers start without it")
        paths = self._files.take(command.round)
        launches, paths = self._logs.asked(worker_plan(settings, attempt, paths), paths)
        error_files = {rank: own.error_file for rank, own in paths.items()}
        self._actions.begin_round(command.round, launches, error_files)
        self._reporter.begin_round(paths, command.restart_count)
        if self._outcome is not None:
            self._outcome.begin_round(
                command.round, {launch.global_rank: error_files[launch.local_rank] for launch in launches}
            )
        return launches

    def _keeps(self, result: AgentResult, run_dir: RunDirectory) -> bool:
        """Return whether the run directory stays."""
        failed = result.ending is AgentEnd.FAILED and self._reporter.began
        return failed or self._logs.in_run_dir or self._faults.raised_any or bool(run_dir.kept_because)

    def _finish(self, result: AgentResult, run_dir: RunDirectory) -> None:
        """Keep what is worth keeping, and name it."""
        limit_s = min(END_S, self._settings.stops.shutdown_timeout_s)
        failed = result.ending is AgentEnd.FAILED and self._reporter.began
        if self._faults.raised_any:
            run_dir.keep("a plugin raised")
        if self._logs.in_run_dir:
            run_dir.keep("logs were asked for")
            self._reporter.notice(f"logs are in {str(run_dir.path)!r}")
        end = partial(
            self._entry.end,
            outcome=result.ending.value,
            exit_code=result.exit_code,
            result=self._reporter.cause or result.reason,
        )
        self._files.finish(success=not failed, record=end, within_s=limit_s)

    def _end_by(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record the end of a run that an error has ended."""
        if isinstance(error, EarlyStop):
            self._entry.end(outcome="stopped", exit_code=128 + error.signum, result=f"stopped by signal {error.signum}")
        elif error is not None:
            code = error.exit_code if isinstance(error, ElasticError) else 1
            self._entry.end(outcome="failed", exit_code=code, result=str(error) or type(error).__name__)


class _Closes(Protocol):
    def close(self) -> None: ...
