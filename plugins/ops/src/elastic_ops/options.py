"""The flags of `elastic run` that this distribution brings."""

from typing import Final

from elastic_core.api import RunOption

NO_CONTROL_PLANE: Final = RunOption(
    name="no_control_plane",
    hook="elastic_ops.control_plane.hook:ControlPlane",
    heading="Debugging",
    type="bool",
    default=False,
    help="Have the agent listen to nobody: 'elastic ctl' can't reach it or its workers, nor others its logs.",
)
TIMINGS: Final = RunOption(
    name="timings",
    hook="elastic_ops.timings:TimingsHook",
    heading="Debugging",
    type="bool",
    default=False,
    help="At the end, say on stderr where this run's milliseconds went.",
)
