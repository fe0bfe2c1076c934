"""The composition root: runs a job from its settings and returns the exit code."""

import gc
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from elastic_core.agent.feed import Feed, described
from elastic_core.agent.guard.guardian import Guardian
from elastic_core.agent.loop import Agent
from elastic_core.agent.machine.states import AgentEnd, Outcome
from elastic_core.agent.parts import AgentOptions
from elastic_core.errors import ElasticError
from elastic_core.failure.console import FailureConsole
from elastic_core.failure.handler import FailureHandler
from elastic_core.failure.incidents import Incidents
from elastic_core.failure.intensity import Intensity
from elastic_core.failure.runner import PolicyRunner
from elastic_core.hooks.members import NamedHook, close_hooks
from elastic_core.hooks.runner import HookRunner
from elastic_core.launcher.agent_side import RunSide, open_rendezvous
from elastic_core.launcher.early_stop import EarlyStop, early_stops, held
from elastic_core.launcher.hook_actions import HookActions
from elastic_core.launcher.injected import NOTHING, Injected
from elastic_core.launcher.logs import RunLogs, choose_logs_specs
from elastic_core.launcher.plan import hook_settings
from elastic_core.launcher.planner import WorkerPlanner
from elastic_core.launcher.round_maker import RoundMaker, RoundPort
from elastic_core.launcher.run_files import RunFiles
from elastic_core.logger import Logger, print_line
from elastic_core.moments import AgentStarted, Power
from elastic_core.options.settings import Resolution, RunSettings
from elastic_core.plugin_faults import PluginFaults, PluginLabel
from elastic_core.plugins.discovery import FAILURE_GROUP, RENDEZVOUS_GROUP
from elastic_core.plugins.entry_import import owner_of
from elastic_core.plugins.registry import PluginRegistry
from elastic_core.processes.group import WorkerGroup
from elastic_core.processes.output.disk import END_S, Disk
from elastic_core.processes.output.sink import Console
from elastic_core.processes.sweep import Sweeper, become_subreaper, has_strangers
from elastic_core.rendezvous.coordinated import Backend, CoordinatedRendezvous
from elastic_core.rendezvous.handler import takes_restarts
from elastic_core.reports import ChosenOption
from elastic_core.rundir.directory import RunDirectory
from elastic_core.rundir.incident_files import IncidentFiles
from elastic_core.rundir.run_records import RunEntry
from elastic_core.starters import ReactorLoop, WorkerStarter
from elastic_core.system.clock import SYSTEM_CLOCK
from elastic_core.system.reactor import Reactor
from elastic_core.types import Capability

if TYPE_CHECKING:
    from elastic_core.hooks.master_server import MasterServers
    from elastic_core.launcher.outcome import RunOutcome
    from elastic_core.starters import BegunCall, CallStarter

WARM_AFTER_S = 0.5
STORE_CALL = "store_call"
"""The feed's event for a call to the store."""
_WITHOUT_STORE = ("local", "static")


def run_job(
    settings: RunSettings,
    *,
    own_process: bool = True,
    began: Mapping[str, float] | None = None,
    origins: Mapping[str, str] | None = None,
    outcome: "RunOutcome | None" = None,
    injected: Injected = NOTHING,
) -> int:
    """Run to the end on this node and return the exit code.

    `own_process`: this process exists for the run alone (`elastic run`) and may become a subreaper; a library call
    leaves its process unchanged. `began` are the earlier phases of this process, in order, each with its end in
    monotonic seconds, and `origins` the origin of each setting's value for users; `None` if not known. `outcome` is
    filled at the end, for a caller that needs more than the exit code.

    Raises:
        ElasticError: The run could not begin; all that was begun is undone.
    """
    try:
        with ExitStack() as cleanup:
            # First of all: with fork, workers are copies of this process as it is now.
            call = settings.entrypoint.function
            begun = None if call is None else call.begin()
            if begun is not None:
                cleanup.callback(begun.close)
            if own_process:
                cleanup.enter_context(early_stops(settings.stops.ending))
            resolution = Resolution(settings=settings, origins=origins or {})
            job = _Job(resolution, cleanup, own_process=own_process, began=began, outcome=outcome, injected=injected)
            return job.run(begun)
    except EarlyStop as stop:
        return 128 + stop.signum


def _compared(settings: RunSettings) -> dict[str, str]:
    # The settings that other nodes compare when this one joins. Empty without a store.
    if settings.nodes.backend in _WITHOUT_STORE:
        return {}
    from elastic_core.options.run_fingerprint import run_fingerprint  # slow, and needed with a store only
    from elastic_core.rendezvous.identity import ALLOWABLE

    made = run_fingerprint(settings)
    # If everything may differ (a library call), later nodes are not compared with this one either.
    fixed = {key: text for key, text in made.items() if key not in ALLOWABLE}
    return fixed if ALLOWABLE.issubset(settings.nodes.allow_mismatch) else made


def _completed(settings: RunSettings) -> RunSettings:
    # Adds values that only the agent has, and the policy's values from the rendezvous.
    nodes = replace(
        settings.nodes,
        node_id=settings.nodes.node_id or os.uname().nodename,
        incarnation=os.urandom(16).hex(),
        fingerprint=_compared(settings),
    )
    restarts = replace(settings.restarts, run_id=nodes.run_id, min_nodes=nodes.min_nodes, max_nodes=nodes.max_nodes)
    return replace(settings, nodes=nodes, restarts=restarts)


class _Job:
    def __init__(
        self,
        resolution: Resolution,
        cleanup: ExitStack,
        *,
        own_process: bool,
        began: Mapping[str, float] | None,
        outcome: "RunOutcome | None",
        injected: Injected,
    ) -> None:
        self._resolution = resolution
        self._chosen_id = resolution.settings.nodes.node_id
        settings = self._settings = _completed(resolution.settings)
        self._cleanup = cleanup
        self._own_process = own_process
        # Processes that exist before the run starts its own, and their children, are not the run's.
        self._strangers = own_process and has_strangers()
        self._start_up = dict(began or {})
        self._outcome = outcome
        self._injected = injected
        self._masters: MasterServers | None = None
        self._faults = PluginFaults()
        self._registry = PluginRegistry(disabled=settings.disabled_plugins, hooks=settings.hooks, faults=self._faults)
        if own_process:  # an embedding program keeps its own hook
            places = (settings.nodes.backend, settings.restarts.name, *settings.hooks)
            cleanup.enter_context(self._faults.threads(partial(owner_of, places=places)))

    def run(self, call: "BegunCall | None" = None) -> int:
        settings = self._settings
        self._call = call
        registry = self._registry
        handler = self._handler()
        if Capability.CONTROL in handler.capabilities:
            # The handler adds the node's address to the host name, unless the user chose an id.
            handler.settings = replace(handler.settings, node_id=self._chosen_id)
        policy = registry.make_policy(settings.restarts.name, settings.restarts, settings.policy_conf)
        chosen = choose_logs_specs(settings, self._injected.logs_specs)
        self._mark("plugins")
        with held(settings.stops.ending if self._own_process else ()):
            run_dir = RunDirectory(settings.output.run_dir, settings.nodes.run_id, settings.nodes.node_id)
            self._logs = RunLogs(settings, run_dir=run_dir.path, chosen=chosen)
            self._files = RunFiles(self._cleanup.enter_context(closing(run_dir)), self._logs)
            self._cleanup.callback(self._files.discard_unused)
            self._entry = RunEntry.begin(
                run_id=settings.nodes.run_id,
                node_id=settings.nodes.node_id,
                script=settings.entrypoint.name,
                run_dir=str(run_dir.path),
            )
            self._cleanup.push(self._end_by)
        self._logs.prepare()
        of_hooks = replace(
            hook_settings(settings, str(run_dir.path)),
            restarts_nodes=isinstance(handler, CoordinatedRendezvous) or takes_restarts(handler),
            own_process=self._own_process,
        )
        hooks, warnings = registry.make_hooks(of_hooks, settings.hook_options)
        if hooks:
            log = Logger(print_line, times=settings.output.log_times)
            self._cleanup.callback(close_hooks, hooks, faults=self._faults, log=log)
        self._mark("run directory")
        notices = (*registry.warnings, *warnings, *filter(None, [run_dir.notice]))
        return self._supervise(handler, policy, hooks, notices, run_dir).exit_code

    def _handler(self) -> Backend:
        nodes = self._settings.nodes
        if self._injected.rendezvous is not None:
            return self._injected.rendezvous(nodes)
        return self._registry.make_rendezvous(nodes.backend, nodes, self._settings.rdzv_conf)

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
    ) -> Outcome:
        reactor, settings = self._cleanup.enter_context(closing(Reactor())), self._settings
        console = self._cleanup.enter_context(closing(Console(reactor)))
        log = self._log = Logger(console.line, times=settings.output.log_times, colours=console.colours)
        for text in (*settings.notices, *warnings, *(self._call.warnings if self._call is not None else ())):
            log.notice(text)
        disk = self._open_disk(reactor, run_dir)
        incidents = self._incidents = self._make_incidents(disk, run_dir)
        port = self._cleanup.enter_context(closing(RoundPort(settings.nodes.master_port, log)))
        guardian = self._start_guard(reactor)
        subreaper = self._own_process and become_subreaper()
        feed = Feed()
        loop = ReactorLoop(reactor, log=log, own_process=self._own_process)
        masters = self._masters = self._master_servers(loop, handler, hooks)
        calls = None if self._call is None else self._cleanup.enter_context(closing(self._call.on(loop)))
        starters: list[WorkerStarter] = []
        workers = self._workers = WorkerGroup(
            reactor,
            console=console,
            sweeper=Sweeper(
                settings.nodes.incarnation,
                subreaper=subreaper,
                strangers=self._strangers,
                spared=lambda: self._own_children(guardian, handler, starters),
            ),
            log=log,
            starters=starters,
            disk=disk,
            sent_to_all=guardian.signalled,
            read_ahead=incidents.read_ahead,
        )
        self._cleanup.callback(workers.end_left)  # once the starters are closed, which the next line begins
        with held(settings.stops.ending if self._own_process else ()):  # a starter may have begun a process
            starters += self._starters(calls, loop, hooks)
        self._cleanup.enter_context(closing(workers))
        planner = WorkerPlanner(
            settings,
            files=self._files,
            logs=self._logs,
            workers=workers,
            starters=starters,
            hosts_store=lambda: handler.use_agent_store or (masters is not None and masters.hosting),
            incidents=incidents,
            outcome=self._outcome,
            log=log,
        )
        agent = Agent(
            self._agent_options(run_dir),
            reactor=reactor,
            feed=feed,
            guardian=guardian,
            workers=workers,
            planner=planner,
            policy=self._policy_runner(reactor, policy),
            incidents=incidents,
            log=log,
        )
        workers.attach(on_exit=agent.on_worker_exit, on_stopped=agent.on_workers_stopped, on_recorded=agent.on_recorded)
        side = RunSide(
            reactor,
            agent=agent,
            guardian=guardian,
            handler=handler,
            rounds=RoundMaker(reactor, settings.nodes, handler=handler, port=port, masters=masters, feed=feed),
            backend=self._backend(),
            faults=self._faults,
            feed=feed,
            log=log,
        )
        rendezvous = self._cleanup.enter_context(closing(open_rendezvous(handler, side)))
        if any(named.takes_event(STORE_CALL) for named in hooks):
            rendezvous.measure_store()
        actions = HookActions(
            agent=agent,
            rendezvous=rendezvous,
            planner=planner,
            handler=handler,
            run_dir=run_dir,
            record_dir=self._entry.make_files,
            options=self._options,
            feed=feed,
            log=log,
        )
        runner = self._hook_runner(reactor, hooks, actions, feed)
        agent.attach(rendezvous=rendezvous, hooks=runner, progress=actions.progress)
        reactor.call_later(WARM_AFTER_S, self._settle_in)
        result = agent.run()
        if not workers.left_pids:  # kept workers end when the starters are closed
            guardian.release()  # now: its process ends while files are removed
        runner.close(run_dir_kept=lambda: self._keeps(result, run_dir))
        self._end(reactor, result, run_dir)
        if self._outcome is not None:
            value = calls.value if calls is not None else lambda _: None
            self._outcome.take(result, value, incidents.final_failure, rendezvous.error)
        disk.close(within_s=min(END_S, settings.stops.shutdown_timeout_s))
        console.flush()
        return result

    def _options(self) -> tuple[ChosenOption, ...]:
        from elastic_core.launcher.chosen_options import chosen_options  # few hooks show options

        return chosen_options(self._resolution)

    def _open_disk(self, reactor: Reactor, run_dir: RunDirectory) -> Disk:
        # Also writes the run's files and the plugins' errors.
        disk = self._cleanup.enter_context(closing(Disk(reactor, log=self._log)))
        self._files.begin(disk, log=self._log)
        lane = disk.lane("the errors of plugins")
        put = reactor.post
        self._faults.begin(lambda: run_dir.path, put=lambda write: put(lambda: lane.put(write)), log=self._log)
        return disk

    def _make_incidents(self, disk: Disk, run_dir: RunDirectory) -> Incidents:
        settings, log = self._settings, self._log
        console = FailureConsole(
            log,
            settings.nodes.run_id,
            endpoint=settings.nodes.endpoint,
            max_restarts=settings.restarts.restart_budget,
        )
        return Incidents(
            settings.nodes.run_id,
            files=IncidentFiles(run_dir.path),
            disk=disk,
            log=log,
            console=console,
            node_id=settings.nodes.node_id,
            script=settings.entrypoint.script,
        )

    def _start_guard(self, reactor: Reactor) -> Guardian:
        guardian = Guardian(reactor, incarnation=self._settings.nodes.incarnation, log=self._log)
        self._cleanup.push(lambda kind, error, trace: guardian.unleash() if error else guardian.dismiss())
        guardian.start()
        self._mark("guard")
        return guardian

    def _hook_runner(
        self, reactor: Reactor, hooks: Sequence[NamedHook], actions: HookActions, feed: Feed
    ) -> HookRunner:
        # The runner and all other observers receive the feed.
        runner = HookRunner(
            hooks,
            post=reactor.post,
            call_later=reactor.call_later,
            log=self._log,
            actions=actions,
            faults=self._faults,
        )
        self._cleanup.callback(runner.close)
        if self._outcome is not None:
            feed.subscribe(self._outcome.observe)
        for observer in (self._incidents.observe, actions.observe, runner.observe):
            feed.subscribe(observer)
        if runner.feeds:
            feed.subscribe(lambda what: runner.publish(*described(what)))
        return runner

    def _policy_runner(self, reactor: Reactor, policy: FailureHandler) -> PolicyRunner:
        name = self._settings.restarts.name
        return PolicyRunner(
            policy,
            Intensity(self._settings.restarts),
            name=name,
            label=self._registry.label(FAILURE_GROUP, name),
            faults=self._faults,
            post=reactor.post,
            call_later=reactor.call_later,
        )

    def _end(self, reactor: Reactor, result: Outcome, run_dir: RunDirectory) -> None:
        if self._masters is not None:
            self._masters.close()
        if kept := self._workers.left_running():
            until = " until this process ends, as process 1" if os.getpid() == 1 else ""
            self._log.notice(f"left running on purpose (ELASTIC_KEEP=1){until}: {', '.join(kept)}")
        for text in self._faults.end():
            self._log.notice(text)
        while self._incidents.writing:  # the last incident is printed first
            reactor.turn()
        self._finish(result, run_dir)

    def _agent_options(self, run_dir: RunDirectory) -> AgentOptions:
        settings = self._settings
        return AgentOptions(
            started=AgentStarted(
                run_id=settings.nodes.run_id,
                node_id=settings.nodes.node_id,
                run_dir=str(run_dir.path),
                pid=os.getpid(),
                start_up=self._start_up,
            ),
            stops=settings.stops,
            join_timeout_s=settings.join_timeout_s,
            keep_interrupt=settings.workers.debug_rank is not None,
            longest_option_s=max((v for v in settings.hook_options.values() if isinstance(v, float)), default=0.0),
        )

    def _settle_in(self) -> None:
        # Work that can wait until the workers run.
        self._incidents.warm()
        if self._own_process:
            gc.freeze()
            gc.enable()

    def _starters(
        self, calls: "CallStarter | None", loop: ReactorLoop, hooks: Sequence[NamedHook]
    ) -> list[WorkerStarter]:
        # In the order in which they are called.
        starters: list[WorkerStarter] = [] if calls is None else [calls]
        if any(Power.STARTS in named.hook.powers for named in hooks):
            from elastic_core.hooks.starting import hook_starters  # few have any

            made = hook_starters(hooks, loop, self._faults)
            starters += [self._cleanup.enter_context(closing(starter)) for starter in made]
        return starters

    def _master_servers(
        self, loop: ReactorLoop, handler: Backend, hooks: Sequence[NamedHook]
    ) -> "MasterServers | None":
        # Slow work begins now if this node is certain to have rank 0.
        hosts = [named for named in hooks if Power.HOSTS in named.hook.powers]
        if not hosts:
            return None
        from elastic_core.hooks.master_server import MasterServers  # few have any

        servers = self._cleanup.enter_context(closing(MasterServers(hosts, loop, faults=self._faults)))
        if handler.use_agent_store:
            servers.leave(f"{self._settings.nodes.backend!r} has a store of its own")
        elif self._settings.nodes.max_nodes == 1 or self._settings.nodes.node_rank == 0:
            servers.prepare()
        return servers

    def _own_children(self, guardian: Guardian, handler: Backend, starters: Sequence[WorkerStarter]) -> frozenset[int]:
        # Children of this process that are no workers.
        ours = guardian.pids() | handler.pids()
        ours = ours.union(*(starter.pids() for starter in starters))
        return ours if self._masters is None else ours | self._masters.pids()

    # --- the end

    def _keeps(self, result: Outcome, run_dir: RunDirectory) -> bool:
        failed = result.ending is AgentEnd.FAILED and self._incidents.began
        return failed or self._logs.in_run_dir or self._faults.raised_any or bool(run_dir.kept_because)

    def _finish(self, result: Outcome, run_dir: RunDirectory) -> None:
        limit_s = min(END_S, self._settings.stops.shutdown_timeout_s)
        failed = result.ending is AgentEnd.FAILED and self._incidents.began
        if self._faults.raised_any:
            run_dir.keep("a plugin raised")
        if self._logs.in_run_dir:
            run_dir.keep("logs were asked for")
            self._log.notice(f"logs are in {str(run_dir.path)!r}")
        end = partial(
            self._entry.end,
            outcome=result.ending.value,
            exit_code=result.exit_code,
            result=self._incidents.cause or result.reason,
        )
        self._files.finish(success=not failed, record=end, within_s=limit_s)

    def _end_by(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Called when an error or a signal ends the run.
        if isinstance(error, EarlyStop):
            self._entry.end(outcome="stopped", exit_code=128 + error.signum, result=f"stopped by signal {error.signum}")
        elif error is not None:
            code = error.exit_code if isinstance(error, ElasticError) else 1
            self._entry.end(outcome="failed", exit_code=code, result=str(error) or type(error).__name__)
