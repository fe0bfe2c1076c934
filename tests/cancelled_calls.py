"""What a call leaves behind whose wait was cancelled: nothing for Python's collector, which comes late."""

import gc
import threading
from collections.abc import Callable
from weakref import ref

from elastic_core.api import WaitBudget
from elastic_core.api.stores import WaitCancelledError


def cancelled(call: Callable[[WaitBudget], object], *, after_s: float = 0.2) -> bool:
    """Cancel a call after a time, and return whether all that knew its wait went with it."""
    wait = WaitBudget()
    known, canceller = ref(wait), threading.Timer(after_s, wait.cancel)
    gc.disable()
    try:
        canceller.start()
        try:
            call(wait)
        except WaitCancelledError:
            pass
        else:
            raise AssertionError("the call ended before it was cancelled")
        canceller.join()
        del wait, canceller
        return known() is None
    finally:
        gc.enable()
