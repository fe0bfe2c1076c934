"""`torch.distributed.elastic.metrics`, under torch's names."""

from elastic_core.api import ConfigError
from elastic_torchrun.metrics.api import (
    ConsoleMetricHandler,
    MetricData,
    MetricHandler,
    MetricsConfig,
    MetricStream,
    NullMetricHandler,
    configure,
    get_elapsed_time_ms,
    getStream,
    prof,
    profile,
    publish_metric,
    put_metric,
)

__all__ = [
    "ConsoleMetricHandler",
    "MetricData",
    "MetricHandler",
    "MetricStream",
    "MetricsConfig",
    "NullMetricHandler",
    "configure",
    "getStream",
    "get_elapsed_time_ms",
    "initialize_metrics",
    "prof",
    "profile",
    "publish_metric",
    "put_metric",
]


def initialize_metrics(cfg: MetricsConfig | None = None) -> None:
    """Configure this process's handler from `cfg.params`: `handler` is `console` or `null`.

    Without `cfg` or that parameter, nothing changes.

    Raises:
        ConfigError: there is no such handler.
    """
    chosen = "" if cfg is None else cfg.params.get("handler", "")
    if not chosen:
        return
    known: dict[str, type[MetricHandler]] = {"console": ConsoleMetricHandler, "null": NullMetricHandler}
    if chosen not in known:
        raise ConfigError(f"there is no metrics handler {chosen!r} here", hint=f"one of {', '.join(known)}")
    configure(known[chosen]())
