"""The flags of `elastic run` that this distribution brings."""

from typing import Final

from elastic_core.api import RunOption

HOOK: Final = "elastic_standby.hook:Standby"
HEADING: Final = "Restarts"

STANDBY: Final = RunOption(
    name="standby",
    hook=HOOK,
    hook_name="standby",
    heading=HEADING,
    type="bool",
    help="Keep a spare interpreter beside each worker, with torch imported, that takes its place at a restart: workers "
    "are back without the seconds that the import takes. Costs memory: about 160 MiB for each worker with a CPU build "
    "of torch.",
)
STANDBY_IMPORTS: Final = RunOption(
    name="standby_imports",
    hook=HOOK,
    hook_name="standby",
    heading=HEADING,
    metavar="MODULES",
    default="torch,torch.distributed",
    help="What standby workers import ahead; nothing that starts threads, opens a device, or looks at its rank.",
)
