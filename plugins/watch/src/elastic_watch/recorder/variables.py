"""The variables of torch's flight recorder, set in the worker before it makes its first process group."""

import re

# Not from typing: training scripts import this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

BUFFER_SIZE = 2000
"""The number of operations that the recorder keeps: torch's own default since the new names."""
FILE_PREFIX = "rank_"

_SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_STACKS = ("TORCH_INCLUDE_STACK_TRACE",)
NAMES = (*_SIZE, *_FILE, *_STACKS)
"""The variables that matter here."""
_RENAMED = (2, 9)
"""The release that has the first name of each pair. It warns of the second one."""


def recorder_variables(version: str, environment: "Mapping[str, str]", *, folder: str) -> dict[str, str]:
    """Return the variables to set for this version of torch. None that the user has set, by either name, is among them.

    Args:
        version: Such as `2.13.0+cpu`. If it can't be parsed, it counts as a new one.
        environment: Those of `NAMES` that the worker has.
        folder: The folder for the files that torch writes by itself when a collective times out. Empty means none.
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    new = match is None or (int(match[1]), int(match[2])) >= _RENAMED
    wanted: list[tuple[tuple[str, ...], str]] = [(_SIZE, str(BUFFER_SIZE))]
    if folder:
        # For stacks, the thread that writes the file needs the interpreter, which the hang may hold.
        wanted += [(_FILE, f"{folder}/{FILE_PREFIX}"), (_STACKS, "false")]
    return {
        names[0 if new else -1]: value for names, value in wanted if not any(environment.get(name) for name in names)
    }
