"""Built-in handlers of metrics and events, by name: `console`, `null`, `jsonl:FILE`."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from elastic_core.api import ConfigError

H = TypeVar("H")


def make(
    what: str, name: str, conf: str, *, plain: Mapping[str, Callable[[], H]], jsonl: Callable[[str], H], example: str
) -> H:
    """Build a handler.

    Args:
        what: `metrics` or `event`.
        name: One of `plain`, or `jsonl`.
        conf: The file of `jsonl`; the others accept none.
        plain: Builders of the handlers without a file.
        jsonl: Builds the handler that appends to a file.
        example: An example of such a file's name.

    Raises:
        ConfigError: there is no such handler, or it can't be built with these arguments.
    """
    if name != "jsonl":
        if name not in plain:
            names = ", ".join(sorted({*plain, "jsonl"}))
            raise ConfigError(f"there is no {what} handler {name!r} here", hint=f"one of {names}")
        if conf:
            raise ConfigError(f"{what} handler {name!r} takes nothing after its name, {conf!r} was given", hint=name)
        return plain[name]()
    if not conf:
        raise ConfigError(f"{what} handler 'jsonl' needs a file", hint=f"jsonl:{example}")
    try:
        return jsonl(conf)
    except OSError as err:
        raise ConfigError(
            f"{what} file {conf!r} can't be opened: {err.strerror}", hint="jsonl:FILE with a file that can be written"
        ) from err
