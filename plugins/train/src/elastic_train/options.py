"""The options of `elastic run` from this distribution."""

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
    help="How long workers have to save before a planned stop (a node joins or leaves, a drain, a requested restart), "
    "in addition to --shutdown-timeout. If it is given, the agent waits for each worker until the worker reports that "
    "it is ready, or ends; otherwise only for workers that call elastic_core.worker.should_stop.",
)
SAVE_SIGNAL: Final = RunOption(
    name="save_signal",
    hook=_HOOK,
    heading=HEADING,
    type="str",
    metavar="SIGNAL",
    fault=_fault_of_signal,
    hint="--save-signal USR1",
    help="Signal that the agent sends to workers when a stop is planned, for scripts that cannot call should_stop. "
    "The agent waits for them as with --save-timeout.",
)
