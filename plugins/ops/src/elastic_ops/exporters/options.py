"""The options of `elastic run` for metrics and events."""

from typing import Final

from elastic_core.api import RunOption

HOOK: Final = "elastic_ops.exporters.hook:Exporters"
HEADING: Final = "Metrics and events"
LOOPBACK: Final = "127.0.0.1"
_HIGHEST_PORT: Final = 65_535


def address(text: str) -> tuple[str, int] | None:
    """Return host and port of `[HOST:]PORT`. `None` if it has another form."""
    host, colon, digits = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else LOOPBACK
    if not host or not (digits.isascii() and digits.isdigit()) or int(digits) > _HIGHEST_PORT:
        return None
    return host, int(digits)


def _nameless(text: str) -> str:
    return "" if text.partition(":")[0].strip() else "the name of a handler"


def _no_address(text: str) -> str:
    return "" if not text.strip() or address(text) is not None else "a port, 0 to 65535, or HOST:PORT"


METRICS_HANDLER: Final = RunOption(
    name="metrics_handler",
    hook=HOOK,
    hook_name="exporters",
    heading=HEADING,
    metavar="NAME[:CONF]",
    many=True,
    fault=_nameless,
    hint="console, or jsonl:FILE",
    help="Where the agent writes its metrics: console, jsonl:FILE, null, or a handler that 'elastic plugins' lists. "
    "jsonl alone writes metrics.jsonl to the run directory.",
)
METRICS_PORT: Final = RunOption(
    name="metrics_port",
    hook=HOOK,
    hook_name="exporters",
    heading=HEADING,
    metavar="[HOST:]PORT",
    default_note="not served",
    fault=_no_address,
    hint="--metrics-port 9400",
    help="Serve the agent's metrics for Prometheus at http://HOST:PORT/metrics during the run, on the loopback "
    "address if HOST is not given. 0: a free port. Needs the extra 'prometheus'.",
)
EVENT_LOG_HANDLER: Final = RunOption(
    name="event_log_handler",
    hook=HOOK,
    hook_name="exporters",
    heading=HEADING,
    metavar="NAME[:CONF]",
    torch=True,
    default="null",
    fault=_nameless,
    hint="console, or jsonl:FILE",
    help="Where events are written: console, jsonl:FILE, null, or a handler that 'elastic plugins' lists. jsonl alone "
    "writes events.jsonl to the run directory.",
)
