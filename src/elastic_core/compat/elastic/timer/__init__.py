"""`torch.distributed.elastic.timer`, by ours."""

from elastic_core.timer.api import TimerClient, TimerRequest, TimerServer, configure, expires
from elastic_core.timer.file_client import FileTimerClient
from elastic_core.timer.file_request import FileTimerRequest
from elastic_core.timer.file_server import FileTimerServer
from elastic_core.timer.local_timer import LocalTimerClient, LocalTimerServer

__all__ = [
    "FileTimerClient",
    "FileTimerRequest",
    "FileTimerServer",
    "LocalTimerClient",
    "LocalTimerServer",
    "TimerClient",
    "TimerRequest",
    "TimerServer",
    "configure",
    "expires",
]
