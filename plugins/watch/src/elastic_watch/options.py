"""The flags of `elastic run` that this distribution brings."""

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
    help="Workers that give no sign of life for so long hang, which is a failure: no heartbeat "
    "(elastic_core.worker.heartbeat), or, where the script sends none, nothing written or read. Stacks are kept at "
    "half of it. 0: never.",
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
    help="How long it may take from a worker's start to its first heartbeat, or first output. 0: any time.",
)
UNINTERRUPTIBLE_TIMEOUT: Final = RunOption(
    name="uninterruptible_timeout",
    hook="elastic_watch.sleep_hook:SleepWatch",
    hook_name="uninterruptible-sleep",
    heading=HEADING,
    type="duration",
    unit="seconds",
    default=0.0,
    help="How long a worker may be in uninterruptible sleep, held by a device or a file server, before that is a "
    "failure. 0: any time.",
)
