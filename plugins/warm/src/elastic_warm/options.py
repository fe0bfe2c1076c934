"""The options of `elastic run` from this distribution."""

from typing import Final

from elastic_core.api import RunOption

HOOK: Final = "elastic_warm.hook:Warm"
SOCKET_VARIABLE: Final = "ELASTIC_WARM_SOCKET"
"""The variable by which a worker finds its agent's socket. Empty if the agent keeps no worker."""
TIMEOUT_VARIABLE: Final = "ELASTIC_WARM_TIMEOUT"
"""The variable with the value of `--warm-timeout`, in seconds."""

WARM_TIMEOUT: Final = RunOption(
    name="warm_timeout",
    hook=HOOK,
    hook_name="warm",
    heading="Restarts",
    type="duration",
    unit="seconds",
    default=10.0,
    least=0.0,
    time_limit=True,
    help="How long a live worker whose script uses elastic_warm may take to leave its round, at most half of "
    "--shutdown-timeout, and to take its place in the next one. One that takes longer is stopped and started again, as "
    "all others are. 0: no worker is kept.",
)
