"""The option of `elastic run` from this distribution."""

from typing import Final

from elastic_core.api import RunOption

NUMA_BINDING: Final = RunOption(
    name="numa_binding",
    hook="elastic_numa.hook:NumaBinding",
    heading="Binding to processors",
    metavar="MODE",
    torch=True,
    choices=("node", "socket", "exclusive", "core-complex"),
    help="Bind each worker to processors near its GPU: node (the whole NUMA node), socket, exclusive (cores of its "
    "own) or core-complex (cores that share a cache). Without GPUs, workers are spread evenly.",
)
