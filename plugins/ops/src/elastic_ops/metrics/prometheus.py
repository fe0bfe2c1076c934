"""A metric handler for Prometheus: the newest values as text over HTTP. Needs the extra `prometheus`."""

import re
import threading
from collections.abc import Iterable
from typing import Any, Final

from elastic_core.api import ConfigError
from elastic_ops.control_plane.handlers import Pages, Response
from elastic_ops.control_plane.listeners import TcpServer
from elastic_ops.metrics.handler import MetricData, MetricHandler, split_series
from elastic_ops.metrics.table import BY_NAME, GROUP, Family, Kind

LOOPBACK: Final = "127.0.0.1"
MAX_SERIES: Final = 10_000
"""The limit of names: endless new names (for example with a step in them) must not fill the memory."""

_Labels = tuple[str, ...]


class _Kept:
    """The series of one family; for a summary, count and sum."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.values: dict[_Labels, tuple[float, int]] = {}

    def take(self, labels: _Labels, value: float) -> None:
        before, count = self.values.get(labels, (0.0, 0))
        self.values[labels] = (before + value if self.family.kind is Kind.SUMMARY else value, count + 1)


class PrometheusMetricHandler(MetricHandler):
    """Keeps the newest value of each series and serves `GET /metrics` on a thread of its own, until `close`.

    Metrics in the group `elastic` have the kind and labels of the agent's table. Any other metric is a gauge, named by
    its group and name. Threading: any.
    """

    def __init__(self, port: int, host: str = LOOPBACK) -> None:
        """Begin to serve. Port 0 means any free port.

        Raises:
            ConfigError: the library is missing, or the port can't be opened.
        """
        client = _client()
        self._client = client
        self._lock = threading.Lock()
        self._families: dict[str, _Kept] = {}
        self._count = 0
        self._registry = client.CollectorRegistry()
        self._registry.register(self)
        try:
            self._server = TcpServer(host, port, Pages(self._page), name="elastic-metrics")
        except OSError as err:
            raise ConfigError(
                f"metrics can't be served on {place(host, port)}: {err.strerror or err}",
                hint="--metrics-port with a port that is free, or 0 for any",
            ) from err
        self.url = f"http://{place(host, self._server.port)}/metrics"

    def emit(self, metric_data: MetricData) -> None:
        """Keep the value."""
        name, labels = split_series(metric_data.name)
        known = BY_NAME.get(name) if metric_data.group_name == GROUP else None
        if known is None:
            name = _legal(f"{metric_data.group_name}_{name}")
        with self._lock:
            kept = self._families.get(name)
            if kept is None:
                if self._count >= MAX_SERIES:
                    return
                family = known or Family(
                    name=name,
                    kind=Kind.GAUGE,
                    labels=tuple(labels),
                    help=f"{metric_data.group_name} {metric_data.name}",
                )
                kept = self._families[name] = _Kept(family)
            key = tuple(labels.get(label, "") for label in kept.family.labels)
            if key not in kept.values:
                if self._count >= MAX_SERIES:
                    return
                self._count += 1
            kept.take(key, metric_data.value)

    def text(self) -> tuple[str, str]:
        """Return the response to a scrape, and its MIME type."""
        return self._client.generate_latest(self._registry).decode(), str(self._client.CONTENT_TYPE_LATEST)

    def _page(self, path: str) -> Response:
        response = Response()
        response.set_content(*self.text())
        return response

    def collect(self) -> Iterable[object]:
        """Return all families. Called: by the library, for each scrape."""
        with self._lock:
            found = [(kept.family, dict(kept.values)) for kept in self._families.values()]
        for family, values in found:
            yield self._metric(family, values)

    def describe(self) -> Iterable[object]:
        """Return nothing, as names are not known beforehand. Called: by the library, when this is registered."""
        return ()

    def _metric(self, family: Family, values: dict[_Labels, tuple[float, int]]) -> Any:  # noqa: ANN401  # one of three
        core = self._client.metrics_core
        if family.kind is Kind.SUMMARY:
            summary = core.SummaryMetricFamily(family.name, family.help, labels=family.labels)
            for labels, (total, count) in values.items():
                summary.add_metric(labels, count_value=count, sum_value=total)
            return summary
        kind = core.CounterMetricFamily if family.kind is Kind.COUNTER else core.GaugeMetricFamily
        metric = kind(family.name, family.help, labels=family.labels)
        for labels, (value, _) in values.items():
            metric.add_metric(labels, value)
        return metric

    def close(self) -> None:
        """Stop serving; idempotent."""
        self._server.shutdown()


def place(host: str, port: int) -> str:
    """Return an address in the form of URLs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _legal(name: str) -> str:
    legal = re.sub(r"[^a-zA-Z0-9_:]", "_", name)
    return f"_{legal}" if legal[:1].isdigit() else legal


def _client() -> Any:  # noqa: ANN401  # a module that need not be installed
    try:
        import prometheus_client
        import prometheus_client.metrics_core
    except ImportError as err:
        raise ConfigError(
            "--metrics-port needs the library prometheus-client, which is not installed",
            hint="pip install 'prometheus-client>=0.19'",
        ) from err
    return prometheus_client
