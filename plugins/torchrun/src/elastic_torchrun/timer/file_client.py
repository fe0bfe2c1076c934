"""The worker's end of timers over a named pipe. It works with torch's servers, too."""

import json
import os
import signal
from errno import EAGAIN, ENOENT, ENXIO
from typing import Final

from elastic_core.api import WaitBudget
from elastic_torchrun.timer.api import TimerClient
from elastic_torchrun.timer.file_request import LONGEST_LINE, FileTimerRequest

TRIES: Final = 10
PAUSE_S: Final = 0.1
_PERHAPS_LATER: Final = {EAGAIN, ENOENT, ENXIO}
"""The pipe is full, does not exist yet, or has no reader yet."""


class FileTimerClient(TimerClient):
    """Sets timers for this process.

    Args:
        file_path: The pipe; with the agent's server that is `TORCHELASTIC_TIMER_FILE`.
        signal: The signal that ends this process when a timer expires. 0 or less means that it is only reported.

    Raises:
        BrokenPipeError: (`acquire`, `release`) the pipe has had no reader for a second.
        RuntimeError: (`acquire`, `release`) the scope's name is longer than one write to a pipe.

    Threading: any.
    """

    def __init__(self, file_path: str, signal: int = signal.SIGKILL) -> None:
        self._file_path = file_path
        self.signal = signal

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Set a timer."""
        self._send(FileTimerRequest(os.getpid(), scope_id, expiration_time, self.signal))

    def release(self, scope_id: str) -> None:
        """Release it."""
        self._send(FileTimerRequest(os.getpid(), scope_id, -1, 0))

    def _send(self, request: FileTimerRequest) -> None:
        line = f"{request.to_json()}\n".encode()
        if len(line) > LONGEST_LINE:  # several writers' lines would mix
            what = f"a timer's scope of {len(json.dumps(request.scope_id))} bytes"
            raise RuntimeError(f"{what} is too long: a request may have {LONGEST_LINE}. Try: a short scope=")
        pause = WaitBudget()
        for left in reversed(range(TRIES)):
            try:
                return self._write(line)
            except OSError as err:
                if err.errno not in _PERHAPS_LATER or not left:
                    what = f"no timer server reads {self._file_path!r} ({err.strerror})"
                    hint = "TORCHELASTIC_ENABLE_FILE_TIMER=1 for the agent"
                    raise BrokenPipeError(f"{what}. Try: {hint}") from err
            pause.sleep(PAUSE_S)
        return None

    def _write(self, line: bytes) -> None:
        # Opened each time, and without waiting: the server may be gone, or be another.
        fd = os.open(self._file_path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)
