"""What torch's variables choose of this distribution."""

from typing import Final

from elastic_core.api import RunOption

FILE_TIMER: Final = RunOption(
    name="file_timer",
    variable="TORCHELASTIC_ENABLE_FILE_TIMER",
    hook="elastic_torchrun.timer.hook:FileTimers",
    metavar="1",
    help="1: workers may set timers through a pipe, and are ended when they run down.",
)
HEALTH_CHECK_PORT: Final = RunOption(
    name="health_check_port",
    variable="TORCHELASTIC_HEALTH_CHECK_PORT",
    hook="elastic_torchrun.agent.health_hook:HealthChecks",
    metavar="PORT",
    help="Where probes of the agent are answered over HTTP; 0: any free port.",
)
