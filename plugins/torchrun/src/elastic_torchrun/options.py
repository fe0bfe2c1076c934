"""The hooks of this distribution that an option or torch's variables enable."""

from typing import Final

from elastic_core.api import RunOption

AGENT_STORE: Final = RunOption(
    name="agent_store",
    hook="elastic_torchrun.store.hook:AgentStore",
    heading="Nodes and rendezvous",
    type="bool",
    help="Host the workers' torch store in a process next to node 0's agent, and not in the worker with rank 0. The "
    "first start waits until that process has imported torch.",
)
FILE_TIMER: Final = RunOption(
    name="file_timer",
    variable="TORCHELASTIC_ENABLE_FILE_TIMER",
    hook="elastic_torchrun.timer.hook:FileTimers",
    metavar="1",
    help="1: workers may set timers through a pipe, and the agent ends a worker when a timer expires.",
)
HEALTH_CHECK_PORT: Final = RunOption(
    name="health_check_port",
    variable="TORCHELASTIC_HEALTH_CHECK_PORT",
    hook="elastic_torchrun.agent.health_hook:HealthChecks",
    metavar="PORT",
    help="Port on which the agent answers health checks over HTTP; 0: a free port.",
)
