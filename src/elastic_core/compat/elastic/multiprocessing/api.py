"""`torch.distributed.elastic.multiprocessing.api`, by ours."""

from elastic_core.multiprocessing import (
    DefaultLogsSpecs,
    LogsDest,
    LogsSpecs,
    MultiprocessContext,
    PContext,
    ProcessFailure,
    RunProcsResult,
    SignalException,
    Std,
    SubprocessContext,
    to_map,
)
from elastic_core.multiprocessing.redirects import get_std_cm, redirect_stderr, redirect_stdout
from elastic_core.multiprocessing.subprocess_handler import SubprocessHandler, get_subprocess_handler
from elastic_core.multiprocessing.tail_log import TailLog

__all__ = [
    "DefaultLogsSpecs",
    "LogsDest",
    "LogsSpecs",
    "MultiprocessContext",
    "PContext",
    "ProcessFailure",
    "RunProcsResult",
    "SignalException",
    "Std",
    "SubprocessContext",
    "SubprocessHandler",
    "TailLog",
    "get_std_cm",
    "get_subprocess_handler",
    "redirect_stderr",
    "redirect_stdout",
    "to_map",
]
