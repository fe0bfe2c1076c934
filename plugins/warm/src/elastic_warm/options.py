"""The options of `elastic run` from this distribution."""

from typing import Final

from elastic_core.api import RunOption

HOOK: Final = "elastic_warm.hook:Warm"
SOCKET_VARIABLE: Final = "TRAINING_WARM_SOCKET"
"""The variable by which a worker finds its agent's socket. Empty if the agent keeps no worker."""
TIMEOUT_VARIABLE: Final = "TRAINING_WARM_TIMEOUT"
"""The variable with the value of `--warm-timeout`, in seconds."""

DIR_VARIABLE: Final = "TRAINING_WARM_DIR"
"""The variable with the folder for commits that outlive their worker."""
BYTES_VARIABLE: Final = "TRAINING_WARM_BYTES"
"""The variable with the bytes that one worker may have there."""
MIB: Final = 1 << 20

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
WARM_MEMORY: Final = RunOption(
    name="warm_memory",
    hook=HOOK,
    hook_name="warm",
    heading="Restarts",
    type="int",
    unit="MiB",
    default=0,
    least=0,
    help="How much memory of this node each worker may use for its last two commits, so that they outlive it and a "
    "worker that starts anew continues from them. It is in /dev/shm, for this user alone, and is released at the end "
    "of the run. 0: commits end with their worker, and come from other ranks.",
)
