"""The server's end of timers over a named pipe, for programs without `elastic run`, which has its own server."""

import logging
import os
import select
import threading
from collections.abc import Callable
from typing import Final

from elastic_torchrun.timer.api import SHORTEST_WAIT_S, now_s
from elastic_torchrun.timer.deadlines import MOST
from elastic_torchrun.timer.debug_info_logging import log_debug_info_for_expired_timers
from elastic_torchrun.timer.file_request import FileTimerRequest, Lines, parse
from elastic_torchrun.timer.pipe import TimerPipe
from elastic_torchrun.timer.processes import Processes

STARTED: Final = "watchdog started"
EXPIRED: Final = "timer expired"
KILLED: Final = "kill worker process"
STOPPED: Final = "watchdog stopped"
_SHOWN: Final = 100

_log = logging.getLogger(__name__)


class FileTimerServer:
    """Ends processes with expired timers by the signal in the request, except the server's own process.

    Args:
        file_path: The pipe. It is made here for this user only, and removed by `stop`.
        run_id: For the log.
        max_interval: The longest pause between checks, in seconds. Expired timers are handled at once.
        daemon: Whether the process may end while its thread runs.
        log_event: Called with `watchdog started`, `timer expired`, `kill worker process` and `watchdog stopped`, and
            the request.

    Raises:
        FileExistsError: `file_path` is another kind of file, or a pipe with a reader.
        OSError: the pipe can't be made.

    Threading: `log_event` is called on the server's thread; at its start and stop, on the caller's.
    """

    def __init__(
        self,
        file_path: str,
        run_id: str,
        max_interval: float = 10,
        daemon: bool = True,
        log_event: Callable[[str, FileTimerRequest | None], None] | None = None,
    ) -> None:
        self._run_id = run_id
        self._max_interval = max_interval
        self._daemon = daemon
        self._log_event = log_event or (lambda name, request: None)
        self._timers: dict[tuple[int, str], FileTimerRequest] = {}
        self._processes = Processes()
        self._lines = Lines()
        self._told: set[str] = set()
        self._heard = False
        self._progress_s = int(now_s())
        self._once = False
        self._wake: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None
        self._pipe = TimerPipe(file_path)

    # --- life

    def start(self) -> None:
        """Begin."""
        self._wake = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, name="elastic-timers", daemon=self._daemon)
        self._log_event(STARTED, None)
        self._thread.start()

    def stop(self) -> None:
        """End, and remove the pipe."""
        self._end()
        self._log_event(STOPPED, None)

    def run_once(self) -> None:
        """Handle all requests so far, and end."""
        self._once = True
        self._end()

    def _end(self) -> None:
        thread, self._thread = self._thread, None
        if self._wake is not None:
            os.close(self._wake[1])
        if thread is not None:
            thread.join()
        if self._wake is not None:
            os.close(self._wake[0])
            self._wake = None
        self._processes.close()
        self._pipe.close()

    def get_last_progress_time(self) -> int:
        """Return the time of the last check, in whole seconds since the Unix epoch; now, if no timer was set."""
        return self._progress_s if self._heard else int(now_s())

    @staticmethod
    def is_process_running(pid: int) -> bool:
        """Return whether there is such a process, which this one may signal."""
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return True

    # --- timers

    def register_timers(self, timer_requests: list[FileTimerRequest]) -> None:
        """Set timers, and release those with a negative time."""
        for request in timer_requests:
            key = (request.worker_pid, request.scope_id)
            if request.expiration_time < 0:
                self._timers.pop(key, None)
            else:
                if self._processes.hold(request.worker_pid):
                    self._forget(request.worker_pid)  # of one that has ended, and had this pid
                if key in self._timers or len(self._timers) < MOST:
                    self._timers[key] = request
                else:
                    self._tell("most", f"more than {MOST} are set at the same time; further ones are left out")
        self._let_go()

    def clear_timers(self, worker_pids: set[int]) -> None:
        """Forget the timers of these processes, and of those that have ended."""
        self._timers = {
            key: request
            for key, request in self._timers.items()
            if key[0] not in worker_pids and self.is_process_running(key[0])
        }
        self._let_go()

    def get_expired_timers(self, deadline: float) -> dict[int, list[FileTimerRequest]]:
        """Return the timers that expire by `deadline`, by pid."""
        expired: dict[int, list[FileTimerRequest]] = {}
        for (pid, _), request in self._timers.items():
            if request.expiration_time <= deadline:
                expired.setdefault(pid, []).append(request)
        return expired

    def _forget(self, pid: int) -> None:
        self._timers = {key: request for key, request in self._timers.items() if key[0] != pid}

    def _let_go(self) -> None:
        self._processes.keep({pid for pid, _ in self._timers})

    # --- the thread

    def _serve(self) -> None:
        assert self._wake is not None
        poll = select.poll()
        poll.register(self._pipe.fd, select.POLLIN)
        poll.register(self._wake[0], select.POLLIN)
        going_on = True
        while going_on:
            going_on = self._wake[0] not in dict(poll.poll(self._wait_s() * 1000))
            if going_on or self._once:
                self._read(to_the_end=not going_on)
                self._look()
            self._progress_s = int(now_s())

    def _wait_s(self) -> float:
        due_s = min((request.expiration_time for request in self._timers.values()), default=None)
        left_s = self._max_interval if due_s is None else max(SHORTEST_WAIT_S, due_s - now_s())
        return min(left_s, self._max_interval)

    def _read(self, *, to_the_end: bool) -> None:
        while chunk := self._pipe.read():
            self._heard = True
            self.register_timers([request for line in self._lines.feed(chunk) for request in self._parsed(line)])
            if not to_the_end:
                break
        if self._lines.too_long:
            self._tell("size", "a line is too long; it is left out, as others may be")

    def _parsed(self, line: bytes) -> list[FileTimerRequest]:
        try:
            return [parse(line)]
        except ValueError as err:
            self._tell("form", f"{line[:_SHOWN]!r} is no timer request ({err}); it is left out, as others may be")
            return []

    def _tell(self, kind: str, text: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            _log.warning("timers of run %r: %s", self._run_id, text)

    def _look(self) -> None:
        expired = self.get_expired_timers(now_s())
        if not expired:
            return
        told = {pid: [request.to_json() for request in requests] for pid, requests in expired.items()}
        log_debug_info_for_expired_timers(self._run_id, told)
        for pid, requests in expired.items():
            self._end_process(pid, sorted(requests, key=lambda request: request.expiration_time))

    def _end_process(self, pid: int, requests: list[FileTimerRequest]) -> None:
        for request in requests:
            self._timers.pop((pid, request.scope_id), None)
            self._log_event(EXPIRED, request)
            if request.signal > 0:
                self._signal(pid, request)
                self.clear_timers({pid})
                return
        self._let_go()

    def _signal(self, pid: int, request: FileTimerRequest) -> None:
        if pid == os.getpid():
            _log.warning("the server's own process is over its time for %r; it goes on", request.scope_id)
            return
        try:
            self._processes.send(pid, request.signal)
        except OSError as err:
            _log.warning("process %s is over its time for %r, but can't be signalled: %s", pid, request.scope_id, err)
            return
        _log.warning("process %s was over its time for %r: signal %s", pid, request.scope_id, request.signal)
        self._log_event(KILLED, request)
