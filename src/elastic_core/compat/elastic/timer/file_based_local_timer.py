"""`torch.distributed.elastic.timer.file_based_local_timer`, by ours."""

from elastic_core.timer.file_client import FileTimerClient
from elastic_core.timer.file_request import FileTimerRequest
from elastic_core.timer.file_server import FileTimerServer

__all__ = ["FileTimerClient", "FileTimerRequest", "FileTimerServer"]
