"""The built-in handlers by the names that people choose them by: `console`, `null`, `jsonl:FILE`."""

from typing import Final

from elastic_core.api import ConfigError
from elastic_ops.metrics.api import ConsoleMetricHandler, MetricHandler, NullMetricHandler

BUILT_IN: Final = ("console", "jsonl", "null")


def make_handler(name: str, conf: str = "") -> MetricHandler:
    """Build one.

    Args:
        name: One of `BUILT_IN`.
        conf: The file of `jsonl`; the others take none.

    Raises:
        ConfigError: there is no such handler, or it can't be built so.
    """
    if name == "jsonl":
        return _jsonl(conf)
    if name not in BUILT_IN:
        raise ConfigError(f"there is no metrics handler {name!r} here", hint=f"one of {', '.join(BUILT_IN)}")
    if conf:
        raise ConfigError(f"metrics handler {name!r} takes nothing after its name, {conf!r} was given", hint=name)
    return ConsoleMetricHandler() if name == "console" else NullMetricHandler()


def _jsonl(path: str) -> MetricHandler:
    from elastic_ops.metrics.jsonl import JsonlMetricHandler

    if not path:
        raise ConfigError("metrics handler 'jsonl' needs a file", hint="jsonl:metrics.jsonl")
    try:
        return JsonlMetricHandler(path)
    except OSError as err:
        raise ConfigError(
            f"metrics file {path!r} can't be opened: {err.strerror}", hint="jsonl:FILE with a file that can be written"
        ) from err
