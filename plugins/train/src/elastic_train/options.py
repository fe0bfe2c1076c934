"""The flags of `elastic run` that this distribution brings."""

from typing import Final

from elastic_core.api import RunOption

HEADING: Final = "Training"
_HOOK: Final = "elastic_train.planned_stops:PlannedStops"


def _fault_of_signal(text: str) -> str:
    import signal

    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    if name in ("SIGKILL", "SIGSTOP", "SIGCHLD") or name not in signal.Signals.__members__:
        return "a signal that a worker can take, such as USR1"
    return ""


SAVE_TIMEOUT: Final = RunOption(
    name="save_timeout",
    hook=_HOOK,
    heading=HEADING,
    type="duration",
    unit="seconds",
    default_note="as --shutdown-timeout",
    help="How long workers have to save before a planned stop (a node that joins or leaves, a drain, a restart that is "
    "asked for), on top of --shutdown-timeout. Given, every worker is waited for, until it says that it is ready or "
    "ends; else only those that ask elastic_core.worker.should_stop.",
)
SAVE_SIGNAL: Final = RunOption(
    name="save_signal",
    hook=_HOOK,
    heading=HEADING,
    type="str",
    metavar="SIGNAL",
    fault=_fault_of_signal,
    hint="--save-signal USR1",
    help="Send workers this signal when a stop is planned: for scripts that can't call should_stop. They are waited "
    "for as with --save-timeout.",
)
