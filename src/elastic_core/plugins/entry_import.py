"""The import of what an entry point names, and the words for what is wrong with one plugin.

Each error names the plugin and its distribution.
"""

import importlib
import threading
from collections.abc import Sequence
from typing import Any, Final

from elastic_core.errors import PluginError
from elastic_core.plugin_faults import PluginLabel, text_of
from elastic_core.plugins.discovery import (
    HOOKS_GROUP,
    KINDS,
    RENDEZVOUS_GROUP,
    PluginEntry,
    core_name,
    find_entries,
    is_built_in,
)

IN_CODE: Final = "in code"
"""Stands for the distribution of what was registered in code."""


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


def _answer(entry: PluginEntry) -> object:
    try:
        return _import(entry)
    except PluginError as err:
        return err


def _import(entry: PluginEntry) -> object:
    try:
        return import_value(entry.value)
    except (Exception, SystemExit) as err:
        raise refusal(
            entry, f"importing {entry.value} raised {text_of(err, entry.value)}", hint=_after(entry, err)
        ) from err


def _after(entry: PluginEntry, err: BaseException) -> str:
    """Return what helps after an import that has raised."""
    missing = (err.name or "" if isinstance(err, ModuleNotFoundError) else "").partition(".")[0]
    if not missing or missing == entry.value.partition(":")[0].strip().partition(".")[0]:
        return mend(entry)
    return f"install what brings the module {missing!r}, which {entry.distribution} needs"


def import_value(value: str) -> Any:  # noqa: ANN401  # a module, or whatever it has
    """Import what an entry point's value names, a module or `module:attribute`; raises whatever that raises."""
    module_name, _, attributes = value.partition(":")
    target: object = importlib.import_module(module_name.strip())
    for attribute in filter(None, attributes.strip().split(".")):
        target = getattr(target, attribute)
    return target


def refusal(entry: PluginEntry, what: str, *, hint: str = "") -> PluginError:
    """Return an error that names the plugin and its distribution; without a hint, what helps any that is broken."""
    off = f", or turn it off: -p no:{entry.name}" if entry.group == HOOKS_GROUP else ""
    return PluginError(
        f"{KINDS[entry.group]} {entry.name!r} ({entry.label}): {what}", hint=f"{hint or mend(entry)}{off}"
    )


def doubled(claims: Sequence[PluginEntry]) -> PluginError:
    """Return the error for a name that several distributions have, which can't be told apart."""
    owners = " and ".join(entry.label for entry in claims)
    others = " or ".join(entry.distribution for entry in claims if not is_built_in(entry))
    what = f"{KINDS[claims[0].group]} {claims[0].name!r} comes from {owners}"
    return PluginError(what, hint=f"pip uninstall {others}")


def one_line(err: BaseException) -> str:
    """Return an exception's text without its line breaks."""
    return " ".join(str(err).split())


def label_of(entry: PluginEntry) -> PluginLabel:
    """Return a plugin as the lines about a run have it."""
    off = f"-p no:{entry.name}, or " if entry.group == HOOKS_GROUP else ""
    kind = "backend" if entry.group == RENDEZVOUS_GROUP else KINDS[entry.group]
    hint = f"{off}report it to the authors of {entry.distribution}"
    if entry.distribution == IN_CODE:
        hint = f"{off}look at {entry.value}"
    return PluginLabel(kind, entry.name, entry.label, entry.value.partition(":")[0], hint)


def mend(entry: PluginEntry) -> str:
    """Return what a user can do about a plugin that is broken."""
    if entry.distribution == IN_CODE:
        return f"look at {entry.value}"
    from elastic_core.plugins.install_hint import upgrade_hint

    return f"{upgrade_hint(entry.distribution, core=core_name(find_entries()))}, or report it to its authors"
