"""The hook behind `--requeue`: ends a run that Slurm stops so that its job begins again."""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

from elastic_core.api import (
    SYSTEM_CLOCK,
    AgentHook,
    AgentStarted,
    AgentStopped,
    Clock,
    Draining,
    ElasticError,
    HookSettings,
    MembershipChanged,
    OptionSpec,
    Power,
    RoundJoined,
    RunTimer,
    WorkerEnded,
    WorkersStarted,
    WorkersStopping,
)
from elastic_core.api.feed import Agreed
from elastic_env_slurm import scheduler
from elastic_env_slurm.fate import End, Fate, fate_of, is_running
from elastic_env_slurm.options import AUTO, OFF, REQUEUE, REQUEUE_LIMIT
from elastic_env_slurm.progress import HEARTBEATS, OFFER, Progress, Saving, heartbeats_of, saving_of
from elastic_env_slurm.queue_time import SOON_S, TOPIC, queued_since_s, start_time_s
from elastic_env_slurm.step_nodes import StepNodes
from elastic_env_slurm.time_limits import line_about_stop, line_about_times

VERDICTS: Final = "ELASTIC_SLURM_VERDICTS"
"""The variable with the folder in which each agent writes its exit code, set by `elastic slurm submit`."""
_SPREAD_S: Final = 0.002
"""The delay between requests of successive nodes, so that a large job does not send all at once."""
_MOST_SPREAD_S: Final = 3.0
_OTHERS_S: Final = 5.0
"""How long other nodes wait for the first one to send the request."""
_LOOK_S: Final = 2.0
"""Seconds between two checks of the workers, until one has made a step."""
_RETURN_S: Final = 10.0
"""How long a lost agent may take to come back, as one does that was only disconnected."""
_NO_ROUND_CODE: Final = 4
"""The exit code of an agent that can't form a round, because its peers or their store are missing."""
_MARGIN_S: Final = 4.0
"""How long before Slurm kills the agent at a time limit the agent stops waiting for workers that save."""


class Requeue(AgentHook):
    """Finds out why Slurm stops the run, on a thread of its own, and ends the agent's process accordingly."""

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.RUN})
    options: ClassVar[Sequence[OptionSpec]] = (REQUEUE, REQUEUE_LIMIT)
    clock: Clock = SYSTEM_CLOCK

    def __init__(self, settings: HookSettings) -> None:
        """Send no request yet."""
        super().__init__(settings)
        self._requeue = settings.option("requeue", str, OFF)
        self._limit = settings.option("requeue_limit", int, None)
        self._job = os.environ.get("SLURM_JOB_ID", "")
        self._node = _number("SLURM_NODEID")
        self._attempt = _number("SLURM_RESTART_COUNT")
        self._nodes = StepNodes(os.environ, settings.run_id, submitted=VERDICTS in os.environ)
        self._return: RunTimer | None = None
        self._fate = Fate()
        self._over = False
        self._saying = threading.Lock()
        """Held while a line is logged: the agent shows lines up to its end, and no code shows them afterwards."""
        self._code = 0
        self._asking: threading.Thread | None = None
        self._progress = Progress()
        self._known = threading.Event()
        """Set when a worker got anywhere, or when no worker can any more."""
        self._compared = False
        """A worker saves before planned stops, and the times were compared with that in mind."""
        self._save_s = 0.0
        """How long workers may take to save; 0: none is known to."""
        self._drained = False
        self._drained_s = 0.0
        # Since when the job was queued, in seconds since the Unix epoch; `None` until Slurm has responded. Only the
        # first node requests it. Threading: both are guarded by the lock.
        self._queued = threading.Lock()
        self._queued_s: int | None = None if self._job and not self._node and settings.own_process else 0
        self._submits = False
        self._agreed = not self._job
        self._began_ns = 0
        if not self._job:
            given = f"--requeue {self._requeue}" if self._requeue != OFF else f"--requeue-limit {self._limit}"
            self.notices = (f"{given} has no effect: this is no job of Slurm's",)
        elif self._limit is not None and self._requeue != AUTO:
            self.notices = (f"--requeue-limit {self._limit} has no effect without --requeue auto",)

    def on_agent_started(self, event: AgentStarted) -> None:
        """Compare Slurm's time limits with the run's, on the first node for all."""
        self._began_ns = self.clock.wall_ns()
        self._compare_times(None)

    def _compare_times(self, save_s: float | None) -> None:
        if self._job and not self._node and self.settings.own_process:
            threading.Thread(target=self._show_times, args=(save_s,), name="slurm", daemon=True).start()

    def _show_times(self, save_s: float | None) -> None:
        try:
            job, partition, config = self._described()
        except scheduler.SlurmError:
            self._submit_queued(0)
            return  # nothing depends on it
        self._submit_queued(queued_since_s(job, os.environ.get("SLURM_JOB_START_TIME", "")))
        stop_s, notice = self.settings.shutdown_timeout_s, bool(self.settings.preemption_signal)
        without, line = (
            line_about_times(job, partition, config, shutdown_s=stop_s, save_s=each, notice=notice)
            for each in (None, save_s)
        )
        if line and (save_s is None or line != without):  # else it was shown at the start
            self.run.notice(line, named=False)

    def _described(self) -> tuple[Mapping[str, str], Mapping[str, str], Mapping[str, str]]:
        """Return Slurm's fields of the job, of its partition, and of the cluster.

        Raises:
            SlurmError: Slurm does not respond.
        """
        job = scheduler.show("job", self._job)
        partition = scheduler.show("partition", job["Partition"]) if job.get("Partition") else {}
        return job, partition, scheduler.show("config")

    # --- how long the job was queued

    def _submit_queued(self, since_s: int | None = None) -> None:
        """Submit the time since which the job was queued, when it is known and workers run. Threading: any."""
        with self._queued:
            if since_s is not None and self._queued_s is None:
                self._queued_s = since_s
            ready = self._submits and self._queued_s is not None and not self._agreed
            if ready:
                self._submits = False
        if ready:
            self.run.agree(TOPIC, self._queued_s or 0)

    def on_agreed(self, event: Agreed) -> None:
        """Add the time since which the job was queued to the feed, if this agent began with the job."""
        if event.topic == TOPIC and not self._agreed:
            self._agreed = True
            started_s = start_time_s(os.environ.get("SLURM_JOB_START_TIME", ""))
            if event.value > 0 and self._began_ns / 1e9 - started_s < SOON_S:
                self.run.record("queued", {"since_ns": event.value * 10**9, "job": f"slurm {self._job}"})

    # --- how far the workers are

    def on_workers_started(self, event: WorkersStarted) -> None:
        """Begin to check the workers' progress, and agree on the time in the queue."""
        if self._job:
            with self._queued:
                self._submits = True
            self._submit_queued()
            self._look()

    def _look(self) -> None:
        saving = self._observe()
        if saving.asks and not self._compared:
            self._compared = True
            self._compare_times(saving.within_s)
        if not (self._progress.made and self._compared) and not self._drained and self.run.workers():
            self.run.call_later(_LOOK_S, self._look)

    def _observe(self) -> Saving:
        """Check the progress of this node's workers."""
        offers = self.run.offers()
        with suppress(ElasticError):  # the agent then observes fewer signs
            if HEARTBEATS in offers:
                self._progress.take_beats(heartbeats_of(offers[HEARTBEATS]({}).content))
        saving = Saving()
        with suppress(ElasticError):
            if OFFER in offers:
                saving = saving_of(offers[OFFER]({}).content)
        self._progress.take_saving(saving)
        self._save_s = saving.within_s if saving.asks else 0.0
        self._publish_progress()
        return saving

    def _publish_progress(self) -> None:
        if self._progress.made:
            self._known.set()

    def on_worker_exited(self, event: WorkerEnded) -> None:
        """Note a worker that ended by itself."""
        self._progress.take_exit(event.exit, draining=self._drained)
        self._publish_progress()

    def on_workers_stopping(self, event: WorkersStopping) -> None:
        """Note whether the workers saved; a planned stop is no longer held."""
        self._observe()

    # --- an agent that is lost

    def on_membership_changed(self, event: MembershipChanged) -> None:
        """End the run after a delay if an agent of this step is lost: it is not restarted, and others would wait."""
        if self._job and self._nodes.take(event.change) and self._return is None:
            self._observe()
            self._return = self.run.call_later(_RETURN_S, self._give_up)

    def on_round_joined(self, event: RoundJoined) -> None:
        """Continue: the lost agents are back, or the other nodes are enough."""
        self._nodes.lost = ()
        if self._return is not None:
            self._return.cancel()
            self._return = None

    def _give_up(self) -> None:
        if self._drained:  # another stop would have the workers killed
            return
        names = " and ".join(self._nodes.lost)
        line = f"{names} lost its agent, and nothing in a step of Slurm starts it again: this run ends"
        self.run.ask_drain(line if self._nodes.speaks else "", by_user=True)

    # --- a stop

    def on_drain(self, event: Draining) -> None:
        """Find out why; the agent does not wait for the result."""
        self._drained, self._drained_s = True, self.clock.monotonic_s()
        if self._job:
            self._observe()
        self._begin_to_ask(event.signum not in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT))

    def _begin_to_ask(self, warned: bool) -> None:
        if not self._job or self._requeue == OFF or self._asking is not None:
            return
        self._asking = threading.Thread(target=self._find_out, args=(warned,), name="slurm", daemon=True)
        self._asking.start()
        if self.settings.own_process:
            atexit.register(self._end)

    def on_agent_stopped(self, event: AgentStopped) -> None:
        """Write the exit code for the job's script: srun's code differs if a node was lost."""
        with self._saying:
            self._code, self._over = event.exit_code, True
        self._known.set()
        hosted = self._node and self.settings.backend == "c10d"
        if event.exit_code == _NO_ROUND_CODE and hosted and not self._drained and self._requeue == AUTO:
            self._nodes.take_end()
            if self._nodes.lost:
                self._begin_to_ask(warned=False)
        folder = os.environ.get(VERDICTS)
        if folder:
            Path(folder, str(self._node)).write_text(f"{event.exit_code}\n", encoding="ascii")

    # --- on a thread of its own

    @property
    def _spread_s(self) -> float:
        return min(self._node * _SPREAD_S, _MOST_SPREAD_S)

    def _find_out(self, warned: bool) -> None:
        _wait(self._spread_s)
        try:
            job, partition, config = self._described()
        except scheduler.SlurmError as err:
            self._say(f"Slurm does not say why job {self._job} was stopped: {err}")
            return
        needed_s = self._save_s + self.settings.shutdown_timeout_s
        if line := line_about_stop(job, partition, config, needed_s=needed_s):
            self._say(line)
        fate = fate_of(
            job,
            partition,
            config,
            requeue=self._requeue,
            attempt=self._attempt,
            warned=warned,
            limit=self._limit,
            lost=self._nodes.lost,
        )
        if fate.if_stuck and self._stuck(fate):
            fate = Fate(line=fate.if_stuck)
        self._fate = fate
        if fate.line:
            self._say(fate.line)
        if fate.end is End.ASK_NOW:
            self._ask()

    def _stuck(self, fate: Fate) -> bool:
        """Return whether no worker made progress in this attempt; workers may have to save first."""
        if self._limit is not None and not self._progress.observed:
            return False  # the number of attempts bounds them
        end_s = None if fate.within_s is None else self._drained_s + fate.within_s - _MARGIN_S
        self._known.wait(None if end_s is None else max(0.0, end_s - self.clock.monotonic_s()))
        return not self._progress.made

    def _say(self, text: str) -> None:
        """Log a line once for the job, on its first node with an agent; the run may be over by now."""
        if not self._nodes.speaks:
            return
        with self._saying:
            if self._over:
                sys.stderr.write(f"elastic: {text}\n")
            else:
                self.run.notice(text, named=False)

    def _ask(self, *, needed: bool = True) -> None:
        """Request another attempt, on the first node, or on another one if that does not.

        Without `needed`, Slurm begins the job again without a request.
        """
        if not self._nodes.speaks:
            _wait(_OTHERS_S + self._spread_s)
        try:
            restarts = scheduler.show("job", self._job).get("Restarts", "0")
            if not restarts.isdecimal() or int(restarts) <= self._attempt:
                scheduler.requeue(self._job)
        except scheduler.SlurmError as err:
            if needed:
                line = f"job {self._job} is not begun again: {err}. Try: scontrol requeue {self._job}"
                sys.stderr.write(f"elastic: {line}\n")

    # --- when all else is over

    def _end(self) -> None:
        """End the process as the job needs it. Threading: the main thread's, as its last function."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
        self._known.set()
        if self._asking is not None:
            self._asking.join(3 * scheduler.LIMIT_S + _MOST_SPREAD_S)
        if self._code == 0:  # the run has ended well meanwhile: there is nothing to go on with
            return
        if self._fate.end is End.ASK_LAST:
            self._ask()
        if self._fate.end is End.STAY:
            sys.stderr.flush()
            self._stay()

    def _stay(self) -> None:
        """Wait until Slurm has requeued the job, which it shows by another SIGTERM, or SIGKILL.

        When all nodes have saved, the first one requests the requeue at once, since another job waits for the nodes.
        """
        over_s = self.clock.monotonic_s()
        end_s, asks = over_s + self._fate.stay_s, not self._node
        while (left_s := end_s - self.clock.monotonic_s()) > 0:
            if asks and self._all_over(over_s):
                asks = False
                self._ask(needed=False)
            if signal.sigtimedwait({signal.SIGTERM}, min(left_s, _LOOK_S) if asks else left_s) is None:
                continue
            try:
                if not is_running(scheduler.show("job", self._job)):
                    return
            except scheduler.SlurmError:
                continue

    def _all_over(self, over_s: float) -> bool:
        """Return whether the agents of all nodes have stopped their workers. All began when Slurm stopped the job.

        Args:
            over_s: The time at which this node's agent had.
        """
        nodes, folder = _number("SLURM_STEP_NUM_NODES"), os.environ.get(VERDICTS, "")
        if nodes <= 1 or self.clock.monotonic_s() >= over_s + self.settings.shutdown_timeout_s + _MARGIN_S:
            return True
        try:
            return bool(folder) and sum(1 for _ in Path(folder).iterdir()) >= nodes
        except OSError:
            return False


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


def _number(name: str) -> int:
    text = os.environ.get(name, "").strip()
    return int(text) if text.isascii() and text.isdecimal() else 0
