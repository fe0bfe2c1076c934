"""The options about metrics and events."""

from typing import Final

from elastic_core.options.choices import Choices, Draft
from elastic_core.options.option import OptionRow, Section, row
from elastic_core.types import Record


class ObservingSettings(Record, frozen=True, kw_only=True):
    """Where metrics and events go."""

    metrics_handlers: tuple[str, ...] = ()
    """Where the agent's metrics go, each `NAME` or `NAME:CONF`."""
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    """Where they are served for Prometheus; 0: a free port, None: nowhere."""
    event_log_handler: str = "null"
    """Where events go: `NAME` or `NAME:CONF`."""


OBSERVING: Final[tuple[OptionRow, ...]] = (
    row(
        Section.OBSERVING,
        "metrics-handler",
        "NAME[:CONF]",
        "Where the agent's metrics go (repeatable): console, jsonl:FILE, null, or what 'elastic plugins' lists; jsonl "
        "alone writes metrics.jsonl to the run directory.",
        many=True,
        field="observing.metrics_handlers",
    ),
    row(
        Section.OBSERVING,
        "metrics-port",
        "[HOST:]PORT",
        "Serve the agent's metrics for Prometheus as http://HOST:PORT/metrics, while the run lasts; on the loopback "
        "address, unless HOST is given. 0: a free port. Needs the extra 'prometheus'.",
        default_note="not served",
        field="observing.metrics_port",
    ),
    row(
        Section.OBSERVING,
        "event-log-handler",
        "NAME[:CONF]",
        "Where events are recorded: console, jsonl:FILE, null, or what 'elastic plugins' lists; jsonl alone writes "
        "events.jsonl to the run directory.",
        default="null",
        torch=True,
        field="observing.event_log_handler",
    ),
)


def take_observing(draft: Draft) -> None:
    """Settle where metrics and events go."""
    choices = draft.choices
    handlers = _named(choices, "metrics_handler", choices.texts("metrics_handler"))
    draft.take("metrics_handler", handlers)
    host, port = _address(choices)
    draft.set("observing.metrics_host", host, choices.origin("metrics_port"))
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
