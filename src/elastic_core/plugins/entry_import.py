"""The import of what an entry point names; whatever goes wrong becomes one line with its distribution."""

import importlib
import threading

from elastic_core.errors import PluginError
from elastic_core.plugins.discovery import PluginEntry
from elastic_core.plugins.refusal import mend, one_line, refusal


def import_entry(entry: PluginEntry, *, within_s: float | None = None) -> object:
    """Import what an entry point names, and return it.

    Args:
        entry: What was found.
        within_s: How long it may take; one that takes longer is left to a thread of its own, which nobody waits for.

    Raises:
        PluginError: importing it raised, or took longer.
    """
    if within_s is None:
        return _import(entry)
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(_answer(entry)), daemon=True, name=f"import {entry.name}")
    thread.start()
    thread.join(within_s)
    if not found:
        raise refusal(entry, f"importing {entry.value} takes longer than {within_s:g} s", hint=mend(entry))
    if isinstance(found[0], PluginError):
        raise found[0]
    return found[0]


def described(err: BaseException) -> str:
    """Return an exception as a user reads it: its class, and its text on one line."""
    return f"{type(err).__name__}: {one_line(err)}".removesuffix(": ")


def _answer(entry: PluginEntry) -> object:
    try:
        return _import(entry)
    except PluginError as err:
        return err


def _import(entry: PluginEntry) -> object:
    module_name, _, attributes = entry.value.partition(":")
    try:
        target: object = importlib.import_module(module_name.strip())
        for attribute in filter(None, attributes.strip().split(".")):
            target = getattr(target, attribute)
    except (Exception, SystemExit) as err:
        raise refusal(entry, f"importing {entry.value} raised {described(err)}", hint=mend(entry)) from err
    return target
