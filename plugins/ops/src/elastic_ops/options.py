"""The options of `elastic run` from this distribution."""

from typing import Final

from elastic_core.api import RunOption

NO_CONTROL_PLANE: Final = RunOption(
    name="no_control_plane",
    hook="elastic_ops.control_plane.hook:ControlPlane",
    heading="Debugging",
    type="bool",
    default=False,
    help="The agent accepts no requests: 'elastic ctl' cannot reach the agent or its workers, and other hosts cannot "
    "read its logs.",
)
TIMINGS: Final = RunOption(
    name="timings",
    hook="elastic_ops.timings:TimingsHook",
    heading="Debugging",
    type="bool",
    default=False,
    help="At the end, print on stderr how many milliseconds each part of the run took.",
)
