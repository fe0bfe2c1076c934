"""Metrics: torch's interface, the handlers, and the names under which the agent measures itself."""

from elastic_ops.metrics.api import (
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
    series,
    split_series,
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
    "series",
    "split_series",
]


def initialize_metrics(cfg: MetricsConfig | None = None) -> None:
    """Configure this process's handler as `cfg.params` says: `handler` is `console`, `null` or `jsonl:FILE`.

    Without it, or without that parameter, nothing changes.

    Raises:
        ConfigError: there is no such handler, or its file can't be opened.
    """
    chosen = "" if cfg is None else cfg.params.get("handler", "")
    if chosen:
        from elastic_ops.metrics.choosing import make_handler

        name, _, conf = chosen.partition(":")
        configure(make_handler(name, conf))
