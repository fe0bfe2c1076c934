"""Time limits in scripts: a text with a unit, or seconds."""

import math
from datetime import timedelta

from elastic_train.variables import error


def time_limit(timeout: float | str | timedelta | None, owner: str) -> timedelta | None:
    """Return a time limit from `"10m"`, a number of seconds or a `timedelta`. `None` means none was given.

    Raises:
        ConfigError: it is not a time, or not above 0.
    """
    if timeout is None:
        return None
    if isinstance(timeout, timedelta):
        seconds = timeout.total_seconds()
    elif isinstance(timeout, str):
        from elastic_core.api import duration_s

        seconds = duration_s(timeout) or 0.0
    else:
        seconds = float(timeout)
    if not 0 < seconds < math.inf:
        raise error(f"{owner}(timeout={timeout!r}); expected a time above 0, with its unit", "timeout='10m'")
    return timedelta(seconds=seconds)
