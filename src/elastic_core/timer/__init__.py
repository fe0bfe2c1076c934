"""Countdown timers: a block of code that takes too long costs its worker. torch's interface and wire format.

`expires` sets one in a worker; a server of this room, or the agent (`TORCHELASTIC_ENABLE_FILE_TIMER=1`), heeds them.
Importing the room loads nothing: each name is fetched when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from elastic_core.timer.api import RequestQueue, TimerClient, TimerRequest, TimerServer, configure, expires
    from elastic_core.timer.debug_info_logging import log_debug_info_for_expired_timers
    from elastic_core.timer.file_client import FileTimerClient
    from elastic_core.timer.file_request import FileTimerRequest
    from elastic_core.timer.file_server import FileTimerServer
    from elastic_core.timer.local_timer import LocalTimerClient, LocalTimerServer, MultiprocessingRequestQueue

__all__ = [
    "FileTimerClient",
    "FileTimerRequest",
    "FileTimerServer",
    "LocalTimerClient",
    "LocalTimerServer",
    "MultiprocessingRequestQueue",
    "RequestQueue",
    "TimerClient",
    "TimerRequest",
    "TimerServer",
    "configure",
    "expires",
    "log_debug_info_for_expired_timers",
]

_HOMES: Final = {
    "FileTimerClient": "file_client",
    "FileTimerRequest": "file_request",
    "FileTimerServer": "file_server",
    "LocalTimerClient": "local_timer",
    "LocalTimerServer": "local_timer",
    "MultiprocessingRequestQueue": "local_timer",
    "log_debug_info_for_expired_timers": "debug_info_logging",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'api')}")
    return getattr(home, name)
