"""The processes of torch's data loaders, which must end quickly when a loop over their batches is left."""

import functools
import sys
from typing import Any, Final

JOIN_S: Final = 0.02
"""How long a loader that is abandoned waits for each of its processes before it terminates it."""
_UTILS: Final = "torch.utils.data._utils"
_LOADERS: Final = "torch.utils.data.dataloader"
_INTERVAL: Final = "MP_STATUS_CHECK_INTERVAL"


def end_quickly() -> None:
    """Have loaders whose loop is left by an exception wait only `JOIN_S` for each process that is busy, and not 5 s.

    The samples that it loads are of no use any more. A loop that ends with its last batch waits as always. Does nothing
    if torch is not imported.
    """
    iterator: Any = getattr(sys.modules.get(_LOADERS), "_MultiProcessingDataLoaderIter", None)
    utils: Any = sys.modules.get(_UTILS)
    abandon = getattr(iterator, "__del__", None)
    if abandon is None or hasattr(abandon, "__wrapped__") or not hasattr(utils, _INTERVAL):
        return

    @functools.wraps(abandon)
    def abandon_quickly(self: object) -> None:
        before = getattr(utils, _INTERVAL)
        setattr(utils, _INTERVAL, min(before, JOIN_S))
        try:
            abandon(self)
        finally:
            setattr(utils, _INTERVAL, before)

    iterator.__del__ = abandon_quickly
