"""Metrics of the agent: their handlers, and their names."""

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
