"""The options of `elastic run` from this distribution."""

from typing import Final

from elastic_core.api import RunOption

HEADING: Final = "Hangs"

HANG_TIMEOUT: Final = RunOption(
    name="hang_timeout",
    hook="elastic_watch.hook:Watch",
    hook_name="watch",
    heading=HEADING,
    type="duration",
    unit="seconds",
    default=0.0,
    time_limit=True,
    help="Workers without activity for this time hang, which is a failure. Activity is a heartbeat "
    "(elastic_core.worker.heartbeat), or any reading or writing if the script sends no heartbeats. Stacks are "
    "recorded at half of this time. 0: no limit.",
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
