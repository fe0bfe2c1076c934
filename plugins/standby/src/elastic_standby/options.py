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
    help="Start workers without waiting for the import of torch, at the first start and at each restart: one "
    "interpreter per node imports torch while the nodes meet, and the workers are forked from it and share its memory. "
    "--standby-start has the alternative for imports that do not allow it.",
)
STANDBY_START: Final = RunOption(
    name="standby_start",
    hook=HOOK,
    hook_name="standby",
    heading=HEADING,
    metavar="HOW",
    default="auto",
    choices=("auto", "fork", "spawn"),
    help="How --standby starts workers: from forks of one interpreter (fork), from a spare interpreter beside each "
    "worker, which costs about 160 MiB for each and helps at restarts only (spawn), or from forks, and from spares "
    "where forks are not possible (auto).",
)
STANDBY_IMPORTS: Final = RunOption(
    name="standby_imports",
    hook=HOOK,
    hook_name="standby",
    heading=HEADING,
    metavar="MODULES",
    default="torch,torch.distributed,elastic_warm.ahead",
    help="Modules that --standby imports in advance. They must not start threads or processes, open a device, or read "
    "the rank. With DistributedDataParallel, add torch._dynamo.",
)
