"""Options about metrics and events."""

from elastic_core.options.option import OptionRow, Section, row

OBSERVING: tuple[OptionRow, ...] = (
    row(
        Section.OBSERVING,
        "metrics-handler",
        "NAME[:CONF]",
        "Where the agent's metrics go (repeatable): console, jsonl:FILE, null, or what 'elastic plugins' lists; jsonl "
        "alone writes metrics.jsonl to the run directory.",
        many=True,
    ),
    row(
        Section.OBSERVING,
        "metrics-port",
        "[HOST:]PORT",
        "Serve the agent's metrics for Prometheus as http://HOST:PORT/metrics, while the run lasts; on the loopback "
        "address, unless HOST is given. 0: a free port. Needs the extra 'prometheus'.",
        default_note="not served",
    ),
    row(
        Section.OBSERVING,
        "event-log-handler",
        "NAME[:CONF]",
        "Where events are recorded: console, jsonl:FILE, null, or what 'elastic plugins' lists; jsonl alone writes "
        "events.jsonl to the run directory.",
        default="null",
        torch=True,
    ),
)
