"""Metrics of the agent: their handlers, and the names under which the agent measures itself."""

from elastic_ops.metrics.handler import (
    ConsoleMetricHandler,
    MetricData,
    MetricHandler,
    NullMetricHandler,
    series,
    split_series,
)

__all__ = [
    "ConsoleMetricHandler",
    "MetricData",
    "MetricHandler",
    "NullMetricHandler",
    "series",
    "split_series",
]
