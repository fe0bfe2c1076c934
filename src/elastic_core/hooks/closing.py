"""The end of hooks, whether or not their run has begun."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from elastic_core.hooks.handler import DECLARED_FROM, AgentHook
from elastic_core.hooks.runner import NamedHook

DEADLINE_S: Final = 5.0


def close_hooks(hooks: Sequence[NamedHook], *, within_s: float = DEADLINE_S) -> None:
    """Close each hook that has something to close, and wait for it no longer than the deadline."""
    for named in hooks:
        kind = type(named.hook)
        if kind.close is not AgentHook.close and kind.api_version >= DECLARED_FROM:
            thread = threading.Thread(target=_close, args=(named.hook,), name="elastic-hooks", daemon=True)
            thread.start()
            thread.join(within_s)


def _close(hook: AgentHook) -> None:
    with suppress(Exception):  # the run is over: nobody is left to be told
        hook.close()
