"""Handlers of the agent's metrics, and series: names with labels, as in Prometheus.

A metric has a group and a name. The group `torchelastic` has metrics under torch's names, the group `elastic` those
of elastic-ops (`elastic_ops.metrics.table`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final, NamedTuple

DEFAULT_GROUP: Final = "torchelastic"


class MetricData(NamedTuple):
    """One value. `timestamp`: seconds since the Unix epoch."""

    timestamp: float
    group_name: str
    name: str
    value: float


class MetricHandler(ABC):
    """Receives metrics. Threading: one thread of the agent."""

    @abstractmethod
    def emit(self, metric_data: MetricData) -> None:
        """Handle one value."""

    def close(self) -> None:
        """Release resources. Called: at the run's end."""
        return


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


def series(name: str, **labels: str) -> str:
    """Return the name of one series: `elastic_restarts_total{class="hang"}`.

    A label named `class_` is written `class`.
    """
    if not labels:
        return name
    written = ",".join(f'{key.rstrip("_")}="{_escaped(value)}"' for key, value in labels.items())
    return f"{name}{{{written}}}"


def split_series(text: str) -> tuple[str, Mapping[str, str]]:
    """Return name and labels. A name that `series` did not make has no labels."""
    name, opening, rest = text.partition("{")
    if not opening or not rest.endswith("}"):
        return text, {}
    import re  # only names with labels need it

    pairs = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"(?:,|}$)', rest)
    return name, {key: re.sub(r"\\(.)", lambda at: "\n" if at[1] == "n" else at[1], value) for key, value in pairs}


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
