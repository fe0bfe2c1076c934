"""The part of a worker's interpreter that notices the import of `torch.distributed`, and has no other effect.

A script without torch imports this small module, and no other one of the recorder.
"""

import os
import sys

from elastic_watch import beat_layout as layout

# Not from typing: importing it costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_NAME = "torch.distributed"


def arm() -> None:
    """Switch the recorder on when the script imports `torch.distributed`, or now if it is imported already.

    Called: by the agent's hook in each worker's interpreter (`LaunchChange.startup`); again in a kept process, for each
    further round.
    """
    if not os.environ.get(layout.FILE_VARIABLE):
        return
    if _NAME in sys.modules:  # a standby interpreter, now a worker, imported it
        _start()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):  # of an earlier round
        # First, since a finder behind the one that finds the module is not called.
        sys.meta_path.insert(0, _Finder(os.getpid()))


class _Finder:
    """An entry of `sys.meta_path` that finds no module.

    It is never removed: a change of the list while another thread imports would hide a module from that thread.

    Args:
        pid: The worker's. Its forked children have the finder, too.
    """

    __slots__ = ("_pid",)

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def find_spec(self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None) -> None:
        """Note the import, and leave it to the other finders."""
        if name == _NAME and os.getpid() == self._pid:
            _start()


def _start() -> None:
    try:
        from elastic_watch.recorder import worker

        worker.start()
    except Exception:  # noqa: BLE001  # a script must run whether or not its recorder can be read
        return
