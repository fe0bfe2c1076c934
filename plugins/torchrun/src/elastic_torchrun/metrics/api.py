"""Metrics under torch's names: `put_metric` publishes a value, and `configure` sets a handler.

A metric has a group and a name. The group `torchelastic` has the agent's metrics under torch's names, the group
`elastic` those under the names of elastic-ops.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Final, NamedTuple, ParamSpec, TypeVar, overload

from elastic_core.api import SYSTEM_CLOCK

DEFAULT_GROUP: Final = "torchelastic"

_P = ParamSpec("_P")
_R = TypeVar("_R")


class MetricData(NamedTuple):
    """One value. `timestamp`: seconds since the Unix epoch."""

    timestamp: float
    group_name: str
    name: str
    value: float


class MetricsConfig:
    """A launcher's configuration of metrics, as text by name."""

    __slots__ = ["params"]

    def __init__(self, params: dict[str, str] | None = None) -> None:
        """Keep the parameters."""
        self.params: dict[str, str] = {} if params is None else params


class MetricHandler(ABC):
    """Receives metrics. Threading: the caller of `put_metric`; for metrics of an agent, a thread of its own."""

    @abstractmethod
    def emit(self, metric_data: MetricData) -> None:
        """Handle one value."""


class ConsoleMetricHandler(MetricHandler):
    """Prints each value as a line on stdout."""

    def emit(self, metric_data: MetricData) -> None:
        """Print it without a delay, even if stdout is a pipe."""
        timestamp, group, name, value = metric_data
        print(f"[{timestamp}][{group}]: {name}={value}", flush=True)  # noqa: T201  # that is what it is for


class NullMetricHandler(MetricHandler):
    """Drops all values; the default."""

    def emit(self, metric_data: MetricData) -> None:
        """Drop it."""


class MetricStream:
    """One group with its handler."""

    def __init__(self, group_name: str, handler: MetricHandler) -> None:
        """Bind them."""
        self.group_name = group_name
        self.handler = handler

    def add_value(self, metric_name: str, metric_value: float) -> None:
        """Pass a value to the handler, with the time."""
        self.handler.emit(MetricData(_now_s(), self.group_name, metric_name, metric_value))


_by_group: dict[str, MetricHandler] = {}
_default: list[MetricHandler] = [NullMetricHandler()]


def configure(handler: MetricHandler, group: str | None = None) -> None:
    """Set the handler of one group's metrics. `None` means all groups without their own handler."""
    if group is None:
        _default[0] = handler
    else:
        _by_group[group] = handler


def getStream(group: str) -> MetricStream:  # torch's name
    """Return the stream of a group's values."""
    return MetricStream(group, _by_group.get(group, _default[0]))


def is_configured() -> bool:
    """Return whether metrics of this process are handled."""
    return any(not isinstance(handler, NullMetricHandler) for handler in (*_default, *_by_group.values()))


def put_metric(metric_name: str, metric_value: float, metric_group: str = DEFAULT_GROUP) -> None:
    """Publish one value."""
    getStream(metric_group).add_value(metric_name, metric_value)


@overload
def prof(fn: Callable[_P, _R], group: str = ...) -> Callable[_P, _R]: ...
@overload
def prof(fn: None = None, group: str = ...) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]: ...
def prof(
    fn: Callable[_P, _R] | None = None, group: str = DEFAULT_GROUP
) -> Callable[_P, _R] | Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Publish the result of each call of a function: `NAME.success` or `NAME.failure`, and `NAME.duration.ms`.

    NAME is `Class.method`, or `module.function` with the module's last part. Use it as `@prof` or `@prof(group=…)`.
    """

    def wrap(func: Callable[_P, _R]) -> Callable[_P, _R]:
        return _measured(func, _metric_name(func), group)

    return wrap if fn is None else wrap(fn)


def _metric_name(func: Callable[..., object]) -> str:
    qualified: str = func.__qualname__
    module = (func.__module__ or "").rpartition(".")[2]
    return qualified if "." in qualified or not module else f"{module}.{qualified}"


def _measured(func: Callable[_P, _R], name: str, group: str) -> Callable[_P, _R]:
    @wraps(func)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        began_s = _now_s()
        try:
            result = func(*args, **kwargs)
        except Exception:
            put_metric(f"{name}.failure", 1, group)
            raise
        else:
            put_metric(f"{name}.success", 1, group)
            return result
        finally:
            put_metric(f"{name}.duration.ms", get_elapsed_time_ms(began_s), group)

    return wrapper


def profile(group: str | None = None) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Like `prof`, with the function's bare name. Deprecated: use `prof`."""
    warnings.warn("profile is deprecated: use prof(group=…)", FutureWarning, stacklevel=2)

    def wrap(func: Callable[_P, _R]) -> Callable[_P, _R]:
        return _measured(func, func.__name__, DEFAULT_GROUP if group is None else group)

    return wrap


def publish_metric(metric_group: str, metric_name: str, metric_value: float) -> None:
    """Publish one value. Deprecated: use `put_metric`."""
    warnings.warn("publish_metric is deprecated: use put_metric(name, value, group)", FutureWarning, stacklevel=2)
    put_metric(metric_name, metric_value, metric_group)


def get_elapsed_time_ms(start_time_in_seconds: float) -> int:
    """Return the milliseconds since a time in seconds since the Unix epoch."""
    return int((_now_s() - start_time_in_seconds) * 1000)


def _now_s() -> float:
    return SYSTEM_CLOCK.wall_ns() / 1e9


class ConfiguredMetrics:
    """The handler `configured` of elastic-ops: passes the agent's metrics to handlers that this process configured."""

    def emit(self, metric_data: tuple[float, str, str, float]) -> None:
        """Handle one value."""
        data = MetricData(*metric_data)
        getStream(data.group_name).handler.emit(data)
