"""What torch's variables choose of this distribution."""

from typing import Final

from elastic_core.api import RunOption

HEALTH_CHECK_PORT: Final = RunOption(
    name="health_check_port",
    variable="TORCHELASTIC_HEALTH_CHECK_PORT",
    hook="elastic_torchrun.agent.health_hook:HealthChecks",
    metavar="PORT",
    help="Where probes of the agent are answered over HTTP; 0: any free port.",
)
