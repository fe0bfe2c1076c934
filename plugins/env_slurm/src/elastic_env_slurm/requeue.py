"""The hook behind `--requeue`: ends a run that Slurm has stopped so that its job begins again."""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from elastic_core.api import (
    SYSTEM_CLOCK,
    AgentHook,
    AgentStarted,
    AgentStopped,
    Clock,
    Draining,
    HookSettings,
    OptionSpec,
    Power,
)
from elastic_env_slurm import scheduler
from elastic_env_slurm.fate import End, Fate, fate_of, is_running, seconds_of
from elastic_env_slurm.options import OFF, REQUEUE

VERDICTS: Final = "ELASTIC_SLURM_VERDICTS"
"""The variable with the folder in which each agent leaves its exit code, as `elastic slurm submit` sets it."""
_SPREAD_S: Final = 0.002
"""How much later than the node before it a node asks, so that a large job does not ask all at once."""
_MOST_SPREAD_S: Final = 3.0
_OTHERS_S: Final = 5.0
"""How long other nodes leave it to the first one to ask."""


class Requeue(AgentHook):
    """Finds out why Slurm stops the run, on a thread of its own, and what the agent's process does when it is over."""

    api_version: ClassVar[int] = 2
    powers: ClassVar[frozenset[Power]] = frozenset({Power.RUN})
    options: ClassVar[Sequence[OptionSpec]] = (REQUEUE,)
    clock: Clock = SYSTEM_CLOCK

    def __init__(self, settings: HookSettings) -> None:
        """Ask nothing yet."""
        super().__init__(settings)
        self._requeue = settings.option("requeue", str, OFF)
        self._job = os.environ.get("SLURM_JOB_ID", "")
        self._node = _number("SLURM_NODEID")
        self._attempt = _number("SLURM_RESTART_COUNT")
        self._fate = Fate()
        self._over = False
        self._saying = threading.Lock()
        """Held while a line is said: the agent shows it up to its end, from which on nobody else does."""
        self._code = 0
        self._asking: threading.Thread | None = None
        if not self._job:
            self.notices = (f"--requeue {self._requeue} has no effect: this is no job of Slurm's",)

    def on_agent_started(self, event: AgentStarted) -> None:
        """Compare times that are Slurm's with ours: on the first node, for all."""
        if self._job and not self._node and self.settings.own_process:
            threading.Thread(target=self._compare_times, name="slurm", daemon=True).start()

    def _compare_times(self) -> None:
        try:
            text = scheduler.show("config").get("KillWait", "")
        except scheduler.SlurmError:
            return  # nothing depends on it
        kill_wait_s, ours_s = seconds_of(text), self.settings.shutdown_timeout_s
        if kill_wait_s is not None and ours_s > kill_wait_s:
            self.run.notice(
                f"Slurm kills what is left {kill_wait_s:g} s after it has stopped a job (KillWait), and "
                f"--shutdown-timeout is {ours_s:g} s. Try: --shutdown-timeout {max(kill_wait_s - 5, 1):g}",
                named=False,
            )

    def on_drain(self, event: Draining) -> None:
        """Ask why; the agent does not wait for the answer."""
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
            job = scheduler.show("job", self._job)
            partition = scheduler.show("partition", job["Partition"]) if job.get("Partition") else {}
            config: Mapping[str, str] = scheduler.show("config")
        except scheduler.SlurmError as err:
            self._say(f"Slurm does not say why job {self._job} was stopped: {err}")
            return
        fate = fate_of(job, partition, config, requeue=self._requeue, attempt=self._attempt, warned=warned)
        self._fate = fate
        if fate.line:
            self._say(fate.line)
        if fate.end is End.ASK_NOW:
            self._ask()

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
