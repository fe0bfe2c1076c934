"""The flags of `elastic run` that this distribution brings."""

from typing import Final

from elastic_core.api import RunOption

HEADING: Final = "Hangs"

UNINTERRUPTIBLE_TIMEOUT: Final = RunOption(
    name="uninterruptible_timeout",
    hook="elastic_hangs.sleep_hook:SleepWatch",
    heading=HEADING,
    type="float",
    unit="seconds",
    minimum=0,
    default=0.0,
    help="How long a worker may be in uninterruptible sleep, held by a device or a file server, before that is a "
    "failure. 0: any time.",
)
