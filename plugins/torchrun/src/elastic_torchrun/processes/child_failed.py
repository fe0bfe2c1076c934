"""The error for failed worker processes."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping

from elastic_core.api.workers import WorkerError
from elastic_ops.recording import get_error_handler
from elastic_torchrun.processes.process_failure import NOT_AVAILABLE, ProcessFailure

logger = logging.getLogger(__name__)

_MAX_RULE = 60
_LABEL = 10


class ChildFailedError(WorkerError):
    """Workers failed. A function wrapped by `record` passes on the error file of the first failed worker as its own.

    Args:
        name: Name of the program, for the title.
        failures: The failures by global rank; at least one.
    """

    def __init__(self, name: str, failures: Mapping[int, ProcessFailure]) -> None:
        """Keep the parts."""
        if not failures:
            raise ValueError("a ChildFailedError needs at least one failure")
        self.name = name
        self.failures = dict(failures)
        super().__init__(self.format_msg())
        code = self.get_first_failure()[1].exitcode
        if code:
            vars(self)["exit_code"] = 128 - code if code < 0 else code  # this one's own, over that of its class

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by name and failures."""
        return type(self), (self.name, self.failures)

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Return the rank that failed first, and its failure."""
        return min(self.failures.items(), key=lambda item: item[1].timestamp_ns)

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """Return the report of every failure, the first one last.

        Args:
            boarder_delim: One character for the lines around it.
            section_delim: One character for the lines between its parts.
        """
        title = f"{self.name} FAILED"
        first, _ = self.get_first_failure()
        blocks = {rank: _block(index, rank, each) for index, (rank, each) in enumerate(self.failures.items())}
        widest = max(len(line) for text in (title, *blocks.values()) for line in text.splitlines())
        width = min(widest, _MAX_RULE)
        others = [block for rank, block in blocks.items() if rank != first] or ["  <NO_OTHER_FAILURES>"]
        border, rule = boarder_delim * width, section_delim * width
        root = ("Root Cause (first observed failure):", blocks[first])
        return "\n".join(["", border, title, rule, "Failures:", *others, rule, *root, border])


def _block(index: int, rank: int, failure: ProcessFailure) -> str:
    name = failure.signal_name()
    rows = {
        "time": failure.timestamp_isoformat(),
        "host": socket.gethostname(),  # its full name may take a DNS server's time
        "rank": f"{rank} (local_rank: {failure.local_rank})",
        "exitcode": f"{failure.exitcode} (pid: {failure.pid})" + ("" if name == NOT_AVAILABLE else f" ({name})"),
        "error_file": failure.error_file,
        "traceback": _enriched(failure, _text(failure.message)),
    }
    return "\n".join([f"[{index}]:", *(f"  {label:<{_LABEL}}: {value}" for label, value in rows.items())])


def _enriched(failure: ProcessFailure, text: str) -> str:
    """Return the text of the process's error handler about a worker that a signal ended."""
    enrich = getattr(get_error_handler(), "maybe_enrich_signal_failure_message", None)
    if failure.exitcode >= 0 or enrich is None:
        return text
    try:
        return str(enrich(text, failure.error_file))
    except Exception:
        logger.warning("error handler failed at what a signal ended", exc_info=True)
        return text


def _text(message: object) -> str:
    """Return the traceback in a record, else its message, indented as the rest of the block."""
    if isinstance(message, dict):
        information = message.get("extraInfo")
        callstack = information.get("py_callstack") if isinstance(information, dict) else None
        message = callstack or message.get("message") or NOT_AVAILABLE
    return str(message).rstrip("\n").replace("\n", "\n  ")
