"""The log of a server about expired timers."""

import logging
from collections.abc import Mapping, Sequence

_log = logging.getLogger(__name__)


def log_debug_info_for_expired_timers(run_id: str, expired_timers: Mapping[int, Sequence[str]]) -> None:
    """Log the expired timers, by worker; nothing if there are none."""
    if expired_timers:
        _log.info("run %r: timers have run down: %s", run_id, dict(expired_timers))
