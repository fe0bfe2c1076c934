"""The keys of a rule file, for the reader and the reference page."""

from typing import Final, NamedTuple


class Key(NamedTuple):
    """One key: its value, its default, and its effect."""

    name: str
    value: str
    default: str
    meaning: str


ACTIONS: Final = {
    "restart": "all workers start again, after the pause of `backoff`",
    "wait": "all workers start again, after `delay`, for example with a full disk or an unreachable store",
    "ignore": "that worker stays down, or a straggler runs on, and the others continue; if no worker failed, the "
    "rule is skipped",
    "fail": "the run ends as failed, with the failed worker's exit code",
    "done": "the run ends as done, with exit code 0",
}

EXHAUSTED: Final = {
    "fail": "the run ends as failed",
    "done": "the run ends as done",
    "ignore": "the worker stays down and the others continue",
    "next": "the rule is skipped, and the next rules are tried",
}

FILE_KEYS: Final = (
    Key("version", "`1`", "`1`", "the version of this format"),
    Key(
        "defaults",
        "mapping",
        "none",
        "`max`, `per`, `backoff`, `reset_after` and `exhausted` of rules without their own",
    ),
    Key("rules", "list of rules", "required", "tried from the top; the first that matches decides"),
    Key(
        "otherwise",
        "`intensity` or `fail`",
        "`intensity`",
        "what decides if no rule matches: the built-in policy, with `--max-restarts` and its other options; or the "
        "end of the run",
    ),
    Key("blame", "mapping, or `off`", "see below", "when a node that causes failure after failure is left out"),
)

RULE_KEYS: Final = (
    Key("name", "text", "`rule N`", "the name of the rule in reports and counters"),
    Key("match", "mapping", "every failure", "the conditions: all keys must match, and one entry of each list"),
    Key("action", "a word", "required", "what follows"),
    Key(
        "max",
        "0 to 50, or `unlimited`",
        "required with `restart` and `wait`",
        "how often the rule may decide; then `exhausted` applies",
    ),
    Key("per", "duration", "the whole run", "`max` counts only failures that are younger than this"),
    Key("backoff", "duration, mapping, or `off`", "as `--restart-backoff`", "the pause before a restart"),
    Key(
        "reset_after",
        "duration",
        "never",
        "if the workers had run this long before a failure, `max` and `backoff` count from the start again",
    ),
    Key("delay", "duration", "required with `wait`", "the pause of `wait`; it does not grow, and no backoff counts it"),
    Key("exhausted", "a word", "`fail`", "what follows once `max` is used up"),
    Key(
        "exclude", "`node`", "nothing", "the restart is without the node on which it failed, if enough others are left"
    ),
    Key("blame", "`yes` or `no`", "by class", "whether the failure counts against its node"),
    Key("reason", "text", "the rule's name", "the reason in the report if the rule ends the run"),
)

MATCH_KEYS: Final = (
    Key("class", "words", "", "the failure's class, as `incident.json` has it"),
    Key("exception", "names", "", "the exception's type: `ValueError`, or a dotted pattern such as `torch.*Error`"),
    Key("message", "patterns", "", "a regular expression that is found in the message or the summary"),
    Key("log", "patterns", "", "a regular expression, found in the last 4 KiB of the worker's stderr, if kept"),
    Key("exit_code", "codes, ranges", "", "the worker's exit code: `3`, `64-78`; 128 + N after signal N"),
    Key("signal", "names, numbers", "", "what killed the worker: `SIGKILL`, `KILL`, `9`"),
    Key("device", "words", "", "what failed about the accelerator: `ecc`, `lost`, `communication` …; see below"),
    Key("rank", "ranks, ranges", "", "the worker's global rank"),
    Key("node", "patterns", "", "the node's id, `*` and `?` as in file names: `gpu-1?`, `*@10.0.3.*`"),
    Key("uptime", "mapping", "", "`under` or `over` a duration, or both: how long the workers had run"),
    Key("repeats", "2 to 50", "", "the same failure that often, this one included, with no progress in between"),
)

BACKOFF_KEYS: Final = (
    Key("base", "duration", "required", "the first pause"),
    Key("factor", "1 to 100", "`2`", "factor by which each pause is longer than the last one"),
    Key("cap", "duration", "`5m`", "no pause is longer"),
    Key("jitter", "0 to 1", "`0`", "random part by which a pause is longer or shorter, by run and failure"),
)

UPTIME_KEYS: Final = (
    Key("under", "duration", "", "shorter than this"),
    Key("over", "duration", "", "this long or longer"),
)

BLAME_KEYS: Final = (
    Key("times", "1 to 50", "`2`", "number of failures after which a node is left out"),
    Key("within", "duration", "`1h`", "the time within which these failures count"),
    Key("exclude_for", "duration", "`10m`", "the duration of the first exclusion"),
    Key("factor", "1 to 100", "`2`", "factor by which each exclusion is longer than the last one"),
    Key("cap", "duration", "`1d`", "the longest exclusion"),
    Key(
        "classes",
        "words",
        "`signal`, `hang`, `node lost`, `health check`, `start-up`",
        "failures of these classes count against their node, unless the rule says `blame: no`",
    ),
)

DEFAULTS_KEYS: Final = tuple(
    key for key in RULE_KEYS if key.name in ("max", "per", "backoff", "reset_after", "exhausted")
)

MAX_COUNT: Final = 50
"""A run keeps its last 500 failures. Counts within a window, or until a reset, use these."""
