"""Reads the options about metrics and events."""

from elastic_core.options.choices import Choices
from elastic_core.options.draft import Draft


def take_observing(draft: Draft) -> None:
    """Settle where metrics and events go."""
    choices = draft.choices
    handlers = _named(choices, "metrics_handler", choices.texts("metrics_handler"))
    draft.take("metrics_handlers", handlers, "metrics_handler")
    host, port = _address(choices)
    draft.take("metrics_host", host, "metrics_port")
    draft.take("metrics_port", port)
    (event_handler,) = _named(choices, "event_log_handler", (choices.text("event_log_handler") or "",))
    draft.take("event_log_handler", event_handler)


def _named(choices: Choices, dest: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        if not text.partition(":")[0].strip():
            choices.reject(dest, "the name of a handler", hint="console, or jsonl:FILE")
    return tuple(text.strip() for text in texts)


def _address(choices: Choices) -> tuple[str, int | None]:
    text = (choices.text("metrics_port") or "").strip()
    if not text:
        return "127.0.0.1", None
    host, colon, digits = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else "127.0.0.1"
    if not host or not (digits.isascii() and digits.isdigit()) or int(digits) > 65_535:
        choices.reject("metrics_port", "a port, 0 to 65535, or HOST:PORT", hint="--metrics-port 9400")
    return host, int(digits)
