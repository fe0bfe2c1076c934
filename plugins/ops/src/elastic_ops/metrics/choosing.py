"""The built-in handlers of metrics by name: `console`, `null`, `jsonl:FILE`."""

from collections.abc import Callable
from typing import Final

from elastic_ops.built_in_handlers import make
from elastic_ops.metrics.handler import ConsoleMetricHandler, MetricHandler, NullMetricHandler

BUILT_IN: Final = ("console", "jsonl", "null")


def make_handler(name: str, conf: str = "") -> MetricHandler:
    """Build a handler.

    Args:
        name: One of `BUILT_IN`.
        conf: The file of `jsonl`; the others accept none.

    Raises:
        ConfigError: there is no such handler, or it can't be built with this file.
    """
    from elastic_ops.metrics.jsonl import JsonlMetricHandler

    plain: dict[str, Callable[[], MetricHandler]] = {"console": ConsoleMetricHandler, "null": NullMetricHandler}
    return make("metrics", name, conf, plain=plain, jsonl=JsonlMetricHandler, example="metrics.jsonl")
