"""The options of `elastic run` from this distribution."""

from typing import Final

from elastic_core.api import RunOption

HEADING: Final = "Hangs"
HANG_TOPIC: Final = "watch-hang"
"""The topic of the question to all nodes about a hang."""
AUTO: Final = "auto"
HANG_TIMEOUT: Final = RunOption(
    name="hang_timeout",
    hook="elastic_watch.hook:Watch",
    hook_name="watch",
    heading=HEADING,
    type="duration",
    unit="seconds",
    default=0.0,
    words=(AUTO,),
    metavar="SECONDS|auto",
    time_limit=True,
    help="Workers without activity for this time hang, which is a failure. Activity is a heartbeat "
    "(elastic_core.worker.heartbeat), a step (elastic_train.should_stop, or commit() of an elastic_warm.State), or any "
    "reading or writing if the script reports neither. Stacks are recorded at half of this time. auto: the run learns "
    "the limit from its longest step, at least 5 minutes. 0: no limit.",
)
STARTUP_TIMEOUT: Final = RunOption(
    name="startup_timeout",
    hook="elastic_watch.hook:Watch",
    hook_name="watch",
    heading=HEADING,
    type="duration",
    unit="seconds",
    default=0.0,
    time_limit=True,
    help="How long a worker may take from its start to its first heartbeat or output. 0: no limit.",
)
ON_HANG: Final = RunOption(
    name="on_hang",
    hook="elastic_watch.hook:Watch",
    hook_name="watch",
    heading=HEADING,
    default="fail",
    choices=("fail", "note"),
    help="Whether a hang is a failure, about which the policy decides (fail), or is only printed and published, while "
    "the workers go on (note).",
)
ON_STRAGGLER: Final = RunOption(
    name="on_straggler",
    hook="elastic_watch.hook:Watch",
    hook_name="watch",
    heading=HEADING,
    choices=("note", "report", "off"),
    default="note",
    help="What follows if a rank or node is lastingly slower than the others: a line, the status and metrics (note), "
    "also a failure of the class straggler, about which the policy decides and which the built-in policy ignores "
    "(report), or nothing, and nothing is measured (off).",
)
STRAGGLER_INTERVAL: Final = RunOption(
    name="straggler_interval",
    hook="elastic_watch.hook:Watch",
    hook_name="watch",
    heading=HEADING,
    type="duration",
    unit="seconds",
    default=30.0,
    least=1.0,
    help="How often the work of ranks is compared. A straggler is slow in three comparisons in a row.",
)
UNINTERRUPTIBLE_TIMEOUT: Final = RunOption(
    name="uninterruptible_timeout",
    hook="elastic_watch.sleep_hook:SleepWatch",
    hook_name="uninterruptible-sleep",
    heading=HEADING,
    type="duration",
    unit="seconds",
    default=0.0,
    help="How long a worker may stay in uninterruptible sleep (state D), held by a device or a file server, before it "
    "counts as failed. 0: no limit.",
)
