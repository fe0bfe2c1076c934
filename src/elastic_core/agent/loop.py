"""The loop around the agent machine: it passes events in and carries out commands, on one thread.

`machine` makes all decisions; this module only connects the parts. Other threads only post to the reactor.
"""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import assert_never

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core import moments
from elastic_core.agent.feed import Feed, Phases, StepTaken
from elastic_core.agent.guard.guardian import Guardian
from elastic_core.agent.machine import states as s
from elastic_core.agent.machine.table import advance
from elastic_core.agent.parts import AgentOptions, Planner
from elastic_core.agent.run_decision import FailureContext, RunDecision
from elastic_core.agent.stop_ladder import StopLadder
from elastic_core.errors import ElasticError, WorkerError, is_momentary
from elastic_core.failure.incidents import Incidents
from elastic_core.failure.runner import PolicyRunner
from elastic_core.hooks.runner import HookRunner
from elastic_core.logger import Logger
from elastic_core.moments import LaunchChange, Refuse
from elastic_core.processes.group import WorkerGroup
from elastic_core.rendezvous.events import Rendezvous
from elastic_core.reports import FailureReport, NodeReport
from elastic_core.system.clock import SYSTEM_CLOCK
from elastic_core.system.reactor import Reactor, Timer
from elastic_core.types import (
    Decision,
    Failure,
    Ignore,
    Restart,
    Round,
    RoundEnded,
    Stop,
    StopOrdered,
    WorkerExit,
)

FENCED = "this agent stood still for longer than its lease"
# Seconds after the end of a worker, or of another child, until the guard is informed and ended orphans are reaped.
_ENDING_S = 0.1
"""An interpreter that is stopped so soon after an uncaught exception would have ended by itself, with its code."""
_TIDY_S = 0.02


class Agent:
    """Supervises this node's workers. Create it on the thread that will call `run`."""

    def __init__(
        self,
        options: AgentOptions,
        *,
        reactor: Reactor,
        feed: Feed,
        guardian: Guardian,
        workers: WorkerGroup,
        planner: Planner,
        policy: PolicyRunner,
        incidents: Incidents,
        log: Logger,
    ) -> None:
        """Set the parts that do not need the agent; `attach` sets the others."""
        self._options = options
        self._reactor = reactor
        self._feed = feed
        self._guardian = guardian
        self._workers = workers
        self._planner = planner
        self._policy = policy
        self._incidents = incidents
        self._log = log
        self._phases = Phases()
        self._clock = SYSTEM_CLOCK
        self._state: s.AgentState = s.Created()
        self._events: deque[m.AgentEvent] = deque()
        self._dispatching = False
        self._timers = _Timers(reactor, lambda name: self.dispatch(m.TimerFired(name=name)))
        self._round: Round | None = None
        self._exits: list[WorkerExit] = []
        self._recorded: dict[int, WorkerExit] = {}
        """Expected exits of workers that have recorded an exception and not ended, by local rank."""
        self._examined_s: float | None = None
        self._evidence_timer: Timer | None = None
        self._restart_count = 0
        self._question = 0
        self._spawned_s = 0.0
        self._restarting = False
        self._failed_code: int | None = None

    def attach(self, *, rendezvous: Rendezvous, hooks: HookRunner, progress: Callable[[], int | None]) -> None:
        """Set the parts that report to the agent, and so are created after it. Called: once, before the first event.

        `progress` returns the highest step of this node's workers; `None` if unknown.
        """
        self._rendezvous = rendezvous
        self._hooks = hooks
        options, reactor = self._options, self._reactor
        self._ladder = StopLadder(
            workers=self._workers,
            log=self._log,
            feed=self._feed,
            longest_grace_s=options.stops.shutdown_timeout_s,
            longest_option_s=options.longest_option_s,
            ask_holds=hooks.ask_holds,
            call_later=reactor.call_later,
            now_s=reactor.now_s,
        )
        self._context = FailureContext(options.started.node_id, self._clock, progress=progress)
        self._run_decision = RunDecision(
            incidents=self._incidents,
            rendezvous=rendezvous,
            policy=self._policy,
            feed=self._feed,
            clock=self._clock,
            context=self._context,
        )

    # --- life

    def run(self) -> s.Outcome:
        """Run until the end; return the result. Threading: the caller's; the main thread handles signals until then."""
        options = self._options
        self._handle_signals()
        self._feed.publish(options.started)
        rendezvous = self._rendezvous
        self.dispatch(
            m.StartRequested(
                control=rendezvous.control,
                gathers=rendezvous.gathers,
                stop_signals=options.stops.ending,
                stands_aside=rendezvous.stands_aside,
                join_timeout_s=options.join_timeout_s,
                spread=os.urandom(1)[0] / 256,  # importing `random` takes a millisecond
            )
        )
        while not isinstance(self._state, s.Ended):
            self._reactor.turn()
        outcome = self._state.outcome
        code = outcome.exit_code
        if outcome.ending is s.AgentEnd.FAILED and self._failed_code is not None:
            # The first failed worker of the run sets the exit code, even if it was on another node.
            code = self._failed_code
        if code == 0 and any(exit.unreapable for exit in self._exits):
            self._log.notice("exit code 1: a worker is still in uninterruptible sleep, and holds what it has")
            code = 1
        self._feed.publish(moments.AgentStopped(exit_code=code, reason=outcome.reason, outcome=outcome.ending.value))
        return replace(outcome, exit_code=code)

    def _handle_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # Python delivers signals to the main thread only, and its owner handles them
        # A signal that was ignored at the agent's start (nohup) stays ignored, here and in the workers.
        asked = (*self._options.stops.ending, *self._options.stops.forwarded, signal.SIGTSTP)
        wanted = [signum for signum in asked if signal.getsignal(signum) is not signal.SIG_IGN]
        self._reactor.handle_signals([*wanted, signal.SIGCHLD], self._on_signal)

    def _on_signal(self, signum: int) -> None:
        stops = self._options.stops
        if signum == signal.SIGCHLD:
            self._workers.reap()
            self._reactor.call_once(_TIDY_S, self._tidy)
        # Ctrl-C in the debugger of one rank: the kernel sends SIGINT to the agent too, and the run must continue.
        elif signum == signal.SIGINT and self._options.keep_interrupt:
            return
        elif signum in stops.ending:
            self.dispatch(m.StopRequested(signum=signum))
        elif signum == signal.SIGTSTP and signum not in stops.forwarded:
            from elastic_core.agent.suspension import suspend_node  # only for users at a terminal, and batch systems

            suspend_node(self._reactor, self._workers, self._guardian, log=self._log)
        else:
            self.dispatch(m.SignalForwarded(signum=signum))

    def _tidy(self) -> None:
        # Once for all workers that end together: for each, it would take as long as all else that its end needs.
        self._note_alive()
        self._workers.reap_adopted()

    def dispatch(self, event: m.AgentEvent) -> None:
        """Pass an event to the machine and carry out its commands; events that arise meanwhile are queued."""
        self._events.append(event)
        if self._dispatching:
            return
        self._dispatching = True
        try:
            while self._events:
                self._step(self._events.popleft())
        finally:
            self._dispatching = False

    def _step(self, event: m.AgentEvent) -> None:
        now_s = self._clock.monotonic_s()
        if isinstance(event, m.RoundChanged) and isinstance(event.change, StopOrdered):
            self._run_decision.stop_ordered()
        step = advance(self._state, event, now_s=now_s)
        entered = type(step.state) is not type(self._state)
        self._state = step.state
        phases = tuple(self._phases.enter(step.state, now_s)) if entered else ()
        self._feed.publish(StepTaken(event=event, step=step, at_s=now_s, entered=entered, phases=phases))
        for command in step.commands:
            self._perform(command)

    # --- what others report

    def on_worker_exit(self, exit: WorkerExit) -> None:
        """Process the end of a worker. Called: by the worker group."""
        recorded = self._recorded.pop(exit.local_rank, exit)
        if recorded.stop_signal is None and exit.code == -signal.SIGTERM and exit.at_s - recorded.at_s < _ENDING_S:
            # Its interpreter was ending by the exception when it was stopped with the others.
            exit = replace(exit, code=recorded.code)
        self._exits.append(exit)
        self._reactor.call_once(_TIDY_S, self._tidy)
        self._feed.publish(moments.WorkerEnded(round_index=self._round_index, exit=exit))
        if exit.code == -signal.SIGKILL and exit.stop_signal is None and self._guardian.fence_passed(exit.at_s):
            # The guard killed it, so the worker did not fail by itself; the round continues without this node.
            ended = RoundEnded(reason=FENCED, lost=(self.node_id,), stop_within_s=0.0)
            self.dispatch(m.RoundChanged(change=ended))
        self.dispatch(m.WorkerExited(exit=exit))
        self._judge_again()
        self._ladder.worker_ended()

    def on_recorded(self, exit: WorkerExit) -> None:
        """Keep the expected exit of a worker that has recorded an uncaught exception. Called: by the worker group."""
        if all(known.local_rank != exit.local_rank for known in self._exits):
            self._recorded[exit.local_rank] = exit
            self._judge_again()
            self._await_end(exit)

    def _await_end(self, exit: WorkerExit) -> None:
        if self._options.stops.exit_timeout_s > 0:
            self._reactor.call_later(self._options.stops.exit_timeout_s, partial(self._end_overdue, exit))

    def _end_overdue(self, exit: WorkerExit) -> None:
        """Report a worker that recorded an uncaught exception and does not end."""
        if self._recorded.get(exit.local_rank) is not exit:  # it ended, or its failure is ignored
            return
        self._await_end(exit)
        state = self._state
        if not isinstance(state, s.Running) or exit.local_rank not in state.alive & self._workers.alive:
            return
        late = f"{self._options.stops.exit_timeout_s:g} s after its exception, for its threads or exit handlers"
        self._log.notice(f"rank {exit.global_rank} has not ended {late}: it has failed (--exit-timeout)")
        self.dispatch(m.HangFound(failure=self._examine((exit,), state.round)))

    def _note_alive(self) -> None:
        pids, alive = self._workers.pids, self._workers.alive
        self._guardian.note_workers([*(pids[rank] for rank in alive if rank in pids), *self._workers.left_pids])

    def report_failure(self, hook: str, report: FailureReport) -> None:
        """Process a failure that a hook found, unless another is being decided or the workers are being stopped."""
        state, now_s = self._state, self._reactor.now_s()
        if not isinstance(state, s.Running):
            return
        failure = self._incidents.reported(
            state.round, report, self._workers.pids, hook=hook, uptime_s=now_s - self._spawned_s
        )
        for fault in report.workers:
            if fault.signal > 0:
                self._workers.send(fault.local_rank, fault.signal)
        self.dispatch(m.HangFound(failure=failure))

    def release_stop(self, hook: str) -> None:
        """End one hook's hold on the stop sequence."""
        self._ladder.release(hook)

    def on_workers_stopped(self) -> None:
        """Process the end of the stop sequence. Called: by the worker group."""
        self._incidents.note_kept(len(self._workers.left_pids))
        self.dispatch(m.WorkersStopped())

    # --- commands

    def _perform(self, command: m.AgentCommand) -> None:
        match command:
            case m.AskToJoin():
                self._exits, self._recorded = [], {}  # the last round's exits are in its incident
                self._ask_to_join(command)
            case m.JoinRendezvous():
                self._rendezvous.post(command)
            case m.AskToStart(round=round_, restart_count=count):
                # From here on, failures are about this round, whether or not its workers ever start.
                self._round = round_
                self._context.joined(round_)
                self._run_decision.begin_round()
                starting = moments.WorkersStarting(round=round_, restart_count=count)
                self._feed.publish(starting)
                self._hooks.ask_start(starting, self._on_start_answer)
            case m.SpawnWorkers():
                self._spawn(command)
            case m.StopWorkers():
                self._ladder.stop(command, self._round_index)
            case m.NoneMayLeave():
                self._ladder.forbid_leaving()
            case m.ShortenGrace(grace_s=grace_s, at_once=at_once):
                self._ladder.shorten(grace_s, at_once=at_once)
            case m.AnnounceDrain(signum=signum):
                self._ladder.announce_drain(signum)
            case m.KillWorkers():
                self._ladder.kill()
            case m.ForwardSignal(signum=signum):
                self._workers.forward(signum)
            case m.Examine():
                self._examined_s = None
                self._judge()
            case m.AskPolicy(failure=failure, history=history):
                self._ask_policy(failure, history)
            case m.RecordIncident(failure=failure, decision=decision, evidence=evidence):
                # No `ReportDecision` precedes the end of the run: hooks receive that decision here.
                if evidence:
                    self._run_decision.publish_decision(failure, decision, evidence=evidence)
                self._failed_code = self._incidents.record(
                    self._round, self._exits, failure, decision, evidence=evidence, stop_s=self._phases.stop_s
                )
                self._restarting = isinstance(decision, Restart)
            case m.PublishDecision(failure=failure):
                assert failure is not None
                self._rendezvous.post(replace(command, failure=self._located(failure)))
            case m.ReportDecision(failure=failure, decision=decision, evidence=evidence):
                self._incidents.followed(failure, decision, evidence, restarts=command.restart_count)
                if evidence:
                    self._run_decision.publish_decision(failure, decision, evidence=evidence)
            case m.OrderStop(failure=failure):
                assert self._round is not None
                ends = (*self._exits, *self._recorded.values())
                self._run_decision.order_stop(self._located(failure), self._round, ends, self._restart_count)
            case m.ReportEvidence(round=round_, final=final):
                self._rendezvous.post(self._report(round_, final=final))
            case m.DecideAlone():
                self._decide_alone(command)
            case (
                m.StandAside()
                | m.WatchRound()
                | m.CancelRendezvous()
                | m.RequestRestart()
                | m.ReportFinishing()
                | m.ReportDone()
                | m.AnnounceDeparture()
                | m.LeaveRendezvous()
            ):
                self._rendezvous.post(command)
            case m.PrintLine(text=text):
                self._log.notice(text)
            case m.SetTimer(name=name, delay_s=delay_s):
                self._timers.set(name, delay_s)
            case m.CancelTimer(name=name):
                self._timers.cancel(name)
            case m.NotifyHooks(moment=moment):
                self._feed.publish(moment)
            case _:
                assert_never(command)

    def _ask_to_join(self, command: m.AskToJoin) -> None:
        def join() -> None:
            joining = moments.RoundJoining(round_index=command.round_index)
            self._feed.publish(joining)
            self._hooks.ask_join(joining, self._on_join_answer)

        def answer(changes: tuple[LaunchChange, ...], refusal: Refuse | None, hook: str) -> None:
            if refusal is not None:
                self._on_join_answer(refusal, hook)
            elif isinstance(self._state, s.Gating):  # else this agent is leaving
                join()

        if command.refused is None:
            self._planner.before_join(lambda: join() if isinstance(self._state, s.Gating) else None)
            return
        again = moments.WorkersStarting(round=command.refused, restart_count=command.restart_count, asked_again=True)
        self._hooks.ask_start(again, answer)

    def _on_join_answer(self, refusal: Refuse | None, hook: str) -> None:
        if refusal is None:
            self.dispatch(m.JoinAllowed())
        else:
            self.dispatch(m.JoinRefused(hook=hook, reason=refusal.reason, again_s=refusal.again_s))

    def _on_start_answer(self, changes: tuple[LaunchChange, ...], refusal: Refuse | None, hook: str) -> None:
        if refusal is not None:
            self.dispatch(m.StartRefused(hook=hook, reason=refusal.reason, again_s=refusal.again_s))
            return
        if not isinstance(self._state, s.Preparing):  # the agent is stopping: create no more files of workers
            return
        round_ = self._state.round

        def prepared() -> None:
            if isinstance(self._state, s.Preparing) and self._state.round is round_:  # else the agent is stopping
                self.dispatch(m.StartAllowed(changes=changes))

        self._planner.prepare(round_, prepared)

    def _spawn(self, command: m.SpawnWorkers) -> None:
        self._restart_count, self._spawned_s = command.restart_count, self._reactor.now_s()
        self._context.spawning()
        try:
            self._start_workers(command)
        except ElasticError as err:
            failure = self._context.no_start(err, command.round)
            self.dispatch(m.SpawnFailed(failure=failure, alive=self._workers.alive))
            return
        self._note_alive()
        pids = self._workers.pids
        self.dispatch(m.WorkersSpawned())
        by_rank = tuple(pids[rank] for rank in sorted(pids))
        self._feed.publish(moments.WorkersStarted(round=command.round, pids=by_rank, kept=self._workers.kept_ranks))
        if self._restarting:
            self._restarting = False
            self._incidents.restarted(
                rendezvous_s=self._phases.rendezvous_s, start_s=self._clock.monotonic_s() - self._phases.formed_s
            )

    def _start_workers(self, command: m.SpawnWorkers) -> None:
        try:
            self._workers.start(self._planner.plan(command))
        except (OSError, RuntimeError) as err:
            # No process or descriptor is free now (EAGAIN, EMFILE): the policy may retry. Other errors are defects, and
            # end the agent.
            if not is_momentary(err):
                raise
            raise WorkerError(f"the workers can't be started: {err}") from err

    def _examine(self, exits: tuple[WorkerExit, ...], round_: Round) -> Failure:
        known = {exit.local_rank for exit in exits}
        exits = (*exits, *(exit for rank, exit in self._recorded.items() if rank not in known))
        return self._context.of_worker(self._incidents.examine(round_, exits, self._restart_count), exits, round_)

    def _judge(self) -> None:
        """Report that the evidence was read, as soon as no other evidence can change the first cause."""
        if self._evidence_timer is not None:
            self._evidence_timer.cancel()
        state, self._evidence_timer = self._state, None
        if not isinstance(state, s.Deciding) or state.running is None:
            return  # the user or the run has decided meanwhile
        failure, now_s = self._examine(state.exits, state.round), self._reactor.now_s()
        if self._examined_s is None:  # the wait begins now, because an examination can take long on a busy machine
            self._examined_s = now_s
        others = state.running.alive - state.running.ignored - self._recorded.keys()
        peers = state.ledger.gathers and state.round.node_count > 1
        wait_s = self._incidents.wait_s(others, stop_signals=state.ledger.stop_signals, peers=peers)
        left_s = self._examined_s + wait_s - now_s
        if left_s > 0:
            self._evidence_timer = self._reactor.call_later(left_s, self._judge)
        else:
            self.dispatch(m.Examined(failure=failure))

    def _judge_again(self) -> None:
        if self._evidence_timer is not None:
            self._judge()

    # --- one decision for the whole run

    def _report(self, round_: Round, *, final: bool) -> NodeReport:
        ends = (*self._exits, *self._recorded.values())
        return self._run_decision.report(round_, ends, self._restart_count, final=final)

    def decide_for_run(self, reports: Sequence[NodeReport], history: Sequence[Failure], question: str) -> None:
        """Request the policy's decision for all nodes; the result goes to the rendezvous."""
        self._run_decision.decide(reports, history, question)

    def _decide_alone(self, command: m.DecideAlone) -> None:
        failure = self._report(command.round, final=True).failure
        if failure is None:
            failure = self._context.no_store(command.reason, command.round)
        if command.final:
            self.dispatch(m.DecisionMade(failure=failure, decision=Stop(reason=command.reason, rule="store")))
        else:
            self._ask_policy(failure, command.history)

    @property
    def _run_decides(self) -> bool:
        """Whether the whole run decides about restart and stop: this node's policy can then only ignore a failure."""
        state = self._state
        return isinstance(state, s.Deciding) and state.ledger.gathers and not state.alone

    @property
    def node_id(self) -> str:
        """This node's id in the roster of its last round."""
        return self._context.node_id

    @property
    def _round_index(self) -> int:
        return -1 if self._round is None else self._round.index

    def _located(self, failure: Failure) -> Failure:
        """Return a failure with node, round and time added if they are missing."""
        return self._context.of_machine(failure, self._round)

    def _ask_policy(self, failure: Failure, history: tuple[Failure, ...]) -> None:
        stamped = self._located(failure)
        self._run_decision.begin_failure()
        self._run_decision.publish_failure(stamped)
        self._question += 1
        asked = self._question

        def decide(decision: Decision, fallback_reason: str) -> None:
            if asked != self._question or not isinstance(self._state, s.Deciding):
                return  # the user or the run has decided meanwhile
            if isinstance(decision, Ignore) and stamped.local_rank is not None:
                self._recorded.pop(stamped.local_rank, None)
            if isinstance(decision, Ignore) or not self._run_decides:
                self._incidents.decided(stamped, decision, fallback_reason)
                self._run_decision.publish_decision(stamped, decision, fallback_reason)
            self.dispatch(m.DecisionMade(failure=stamped, decision=decision))

        self._policy.decide(stamped, history, decide)


class _Timers:
    """The machine's timers, at most one of each name; `fired` is called with the name of a timer that is due."""

    def __init__(self, reactor: Reactor, fired: Callable[[str], None]) -> None:
        self._reactor = reactor
        self._fired = fired
        self._pending: dict[str, Timer] = {}

    def set(self, name: str, delay_s: float) -> None:
        """Start the timer, or restart it."""
        self.cancel(name)
        self._pending[name] = self._reactor.call_later(delay_s, lambda: self._fire(name))

    def cancel(self, name: str) -> None:
        """Cancel the timer if it is set."""
        timer = self._pending.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _fire(self, name: str) -> None:
        self._pending.pop(name, None)
        self._fired(name)
