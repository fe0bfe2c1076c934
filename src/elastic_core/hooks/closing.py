"""The end of hooks, whether or not their run has begun."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from elastic_core.hooks.handler import DECLARED_FROM, AgentHook
from elastic_core.hooks.runner import NamedHook
from elastic_core.plugin_faults import PluginFaults, print_line

DEADLINE_S: Final = 5.0


def close_hooks(
    hooks: Sequence[NamedHook],
    *,
    notice: Callable[[str], None] = lambda text: print_line(f"elastic: {text}"),
    faults: PluginFaults | None = None,
    within_s: float = DEADLINE_S,
) -> None:
    """Close each hook that has something to close, and wait for it no longer than the deadline.

    Args:
        hooks: Those of the run.
        notice: Takes a line about one that raises, or does not return; there is no loop any more that would print it.
            Threading: the caller's.
        faults: Keeps what they raise; None: nobody reads it.
        within_s: The deadline of each.
    """
    kept = PluginFaults() if faults is None else faults
    for named in hooks:
        kind = type(named.hook)
        if kind.close is not AgentHook.close and kind.api_version >= DECLARED_FROM:
            lines: list[str] = []
            thread = threading.Thread(target=_close, args=(named, kept, lines), name="elastic-hooks", daemon=True)
            thread.start()
            thread.join(within_s)
            if thread.is_alive():
                lines.append(f"{named.label}: close has not returned after {within_s:g} s; the run ends without it")
            for line in lines:
                notice(line)


def _close(named: NamedHook, faults: PluginFaults, lines: list[str]) -> None:
    try:
        named.hook.close()
    except BaseException as err:  # noqa: BLE001  # plugin code on its own thread: all that it raises is told
        lines.append(f"{named.label}: close raised {faults.raised(named.label, 'close', err).text}")
