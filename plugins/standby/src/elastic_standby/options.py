"""The options of `elastic run` from this distribution."""

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
    help="Keep a spare interpreter with torch imported next to each worker. It replaces the worker at a restart, so "
    "that a restart does not wait for the import. Costs about 160 MiB of memory per worker with a CPU build of torch.",
)
STANDBY_IMPORTS: Final = RunOption(
    name="standby_imports",
    hook=HOOK,
    hook_name="standby",
    heading=HEADING,
    metavar="MODULES",
    default="torch,torch.distributed",
    help="Modules that standby workers import in advance. They must not start threads, open a device, or read the "
    "rank.",
)
