"""The hook behind `--requeue`: ends a run that Slurm has stopped so that its job begins again."""

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
    OptionSpec,
    Power,
    WorkerEnded,
    WorkersStarted,
    WorkersStopping,
)
from elastic_env_slurm import scheduler
from elastic_env_slurm.fate import End, Fate, fate_of, is_running
from elastic_env_slurm.options import AUTO, OFF, REQUEUE, REQUEUE_LIMIT
from elastic_env_slurm.progress import OFFER, Progress, Saving, saving_of
from elastic_env_slurm.time_limits import line_about_times

VERDICTS: Final = "ELASTIC_SLURM_VERDICTS"
"""The variable with the folder in which each agent leaves its exit code, as `elastic slurm submit` sets it."""
_SPREAD_S: Final = 0.002
"""How much later than the node before it a node asks, so that a large job does not ask all at once."""
_MOST_SPREAD_S: Final = 3.0
_OTHERS_S: Final = 5.0
"""How long other nodes leave it to the first one to ask."""
_LOOK_S: Final = 2.0
"""Seconds between two looks at the workers, until one has made a step."""
_MARGIN_S: Final = 4.0
"""How long before Slurm kills the agent at a time limit the agent no longer waits for workers that save."""


class Requeue(AgentHook):
    """Finds out why Slurm stops the run, on a thread of its own, and what the agent's process does when it is over."""

    api_version: ClassVar[int] = 2
    powers: ClassVar[frozenset[Power]] = frozenset({Power.RUN, Power.BEATS})
    options: ClassVar[Sequence[OptionSpec]] = (REQUEUE, REQUEUE_LIMIT)
    clock: Clock = SYSTEM_CLOCK

    def __init__(self, settings: HookSettings) -> None:
        """Ask nothing yet."""
        super().__init__(settings)
        self._requeue = settings.option("requeue", str, OFF)
        self._limit = settings.option("requeue_limit", int, None)
        self._job = os.environ.get("SLURM_JOB_ID", "")
        self._node = _number("SLURM_NODEID")
        self._attempt = _number("SLURM_RESTART_COUNT")
        self._fate = Fate()
        self._over = False
        self._saying = threading.Lock()
        """Held while a line is said: the agent shows it up to its end, from which on nobody else does."""
        self._code = 0
        self._asking: threading.Thread | None = None
        self._progress = Progress()
        self._known = threading.Event()
        """Set when a worker got anywhere, or when no worker can any more."""
        self._compared = False
        """A worker saves before planned stops, and the times were compared with that in mind."""
        self._drained = False
        self._drained_s = 0.0
        if not self._job:
            given = f"--requeue {self._requeue}" if self._requeue != OFF else f"--requeue-limit {self._limit}"
            self.notices = (f"{given} has no effect: this is no job of Slurm's",)
        elif self._limit is not None and self._requeue != AUTO:
            self.notices = (f"--requeue-limit {self._limit} has no effect without --requeue auto",)

    def on_agent_started(self, event: AgentStarted) -> None:
        """Compare times that are Slurm's with ours: on the first node, for all."""
        self._compare_times(None)

    def _compare_times(self, save_s: float | None) -> None:
        if self._job and not self._node and self.settings.own_process:
            threading.Thread(target=self._show_times, args=(save_s,), name="slurm", daemon=True).start()

    def _show_times(self, save_s: float | None) -> None:
        try:
            job, partition, config = self._described()
        except scheduler.SlurmError:
            return  # nothing depends on it
        stop_s, notice = self.settings.shutdown_timeout_s, bool(self.settings.preemption_signal)
        without, line = (
            line_about_times(job, partition, config, shutdown_s=stop_s, save_s=each, notice=notice)
            for each in (None, save_s)
        )
        if line and (save_s is None or line != without):  # else it was shown at the start
            self.run.notice(line, named=False)

    def _described(self) -> tuple[Mapping[str, str], Mapping[str, str], Mapping[str, str]]:
        """Return what Slurm shows of the job, of its partition, and of the cluster.

        Raises:
            SlurmError: it does not answer.
        """
        job = scheduler.show("job", self._job)
        partition = scheduler.show("partition", job["Partition"]) if job.get("Partition") else {}
        return job, partition, scheduler.show("config")

    # --- how far the workers are

    def on_workers_started(self, event: WorkersStarted) -> None:
        """Look from now on how far they are."""
        if self._job:
            self._look()

    def _look(self) -> None:
        saving = self._observe()
        if saving.asks and not self._compared:
            self._compared = True
            self._compare_times(saving.within_s)
        if not (self._progress.made and self._compared) and not self._drained and self.run.workers():
            self.run.call_later(_LOOK_S, self._look)

    def _observe(self) -> Saving:
        """Look how far this node's workers are."""
        self._progress.take_beats(self.run.beats())
        saving, answer = Saving(), self.run.offers().get(OFFER)
        if answer is not None:
            with suppress(ElasticError):  # the agent then observes fewer signs
                saving = saving_of(answer({}).content)
        self._progress.take_saving(saving)
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
        """Note whether the workers saved: a planned stop is held no longer."""
        self._observe()

    # --- a stop

    def on_drain(self, event: Draining) -> None:
        """Ask why; the agent does not wait for the answer."""
        self._drained, self._drained_s = True, self.clock.monotonic_s()
        if self._job:
            self._observe()
        if not self._job or self._requeue == OFF or self._asking is not None:
            return
        warned = event.signum not in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
        self._asking = threading.Thread(target=self._find_out, args=(warned,), name="slurm", daemon=True)
        self._asking.start()
        if self.settings.own_process:
            atexit.register(self._end)

    def on_agent_stopped(self, event: AgentStopped) -> None:
        """Leave the exit code where the job's script looks for it: srun's is another where a node was lost."""
        with self._saying:
            self._code, self._over = event.exit_code, True
        self._known.set()
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
        fate = fate_of(
            job, partition, config, requeue=self._requeue, attempt=self._attempt, warned=warned, limit=self._limit
        )
        if fate.if_stuck and self._stuck(fate):
            fate = Fate(line=fate.if_stuck)
        self._fate = fate
        if fate.line:
            self._say(fate.line)
        if fate.end is End.ASK_NOW:
            self._ask()

    def _stuck(self, fate: Fate) -> bool:
        """Return whether no worker got anywhere in this attempt; workers may have to save first."""
        if self._limit is not None and not self._progress.observed:
            return False  # the number of attempts bounds them
        end_s = None if fate.within_s is None else self._drained_s + fate.within_s - _MARGIN_S
        self._known.wait(None if end_s is None else max(0.0, end_s - self.clock.monotonic_s()))
        return not self._progress.made

    def _say(self, text: str) -> None:
        """Say it once for the job, on its first node; the run may be over by now."""
        if self._node:
            return
        with self._saying:
            if self._over:
                sys.stderr.write(f"elastic: {text}\n")
            else:
                self.run.notice(text, named=False)

    def _ask(self) -> None:
        """Ask for another attempt: the first node does, and another where that one does not."""
        if self._node:
            _wait(_OTHERS_S + self._spread_s)
        try:
            restarts = scheduler.show("job", self._job).get("Restarts", "0")
            if not restarts.isdecimal() or int(restarts) <= self._attempt:
                scheduler.requeue(self._job)
        except scheduler.SlurmError as err:
            sys.stderr.write(f"elastic: job {self._job} is not begun again: {err}. Try: scontrol requeue {self._job}\n")

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
        """Wait until Slurm has taken the job back: it says so by another SIGTERM, or SIGKILL."""
        end_s = self.clock.monotonic_s() + self._fate.stay_s
        while (left_s := end_s - self.clock.monotonic_s()) > 0:
            if signal.sigtimedwait({signal.SIGTERM}, left_s) is None:
                return
            try:
                if not is_running(scheduler.show("job", self._job)):
                    return
            except scheduler.SlurmError:
                continue


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


def _number(name: str) -> int:
    text = os.environ.get(name, "").strip()
    return int(text) if text.isascii() and text.isdecimal() else 0
