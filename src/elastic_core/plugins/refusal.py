"""Words for what is wrong with one plugin: each error names it and its distribution."""

from collections.abc import Sequence
from typing import Final

from elastic_core.errors import PluginError
from elastic_core.plugins.core_name import is_built_in
from elastic_core.plugins.discovery import PluginEntry
from elastic_core.plugins.missing import HOOKS_GROUP, KINDS

IN_CODE: Final = "in code"
"""Stands for the distribution of what was registered in code."""


def refusal(entry: PluginEntry, what: str, *, hint: str) -> PluginError:
    """Return an error that names the plugin and its distribution."""
    off = f", or turn it off: -p no:{entry.name}" if entry.group == HOOKS_GROUP else ""
    return PluginError(f"{KINDS[entry.group]} {entry.name!r} ({entry.label}): {what}", hint=f"{hint}{off}")


def doubled(claims: Sequence[PluginEntry]) -> PluginError:
    """Return the error for a name that several distributions have, which can't be told apart."""
    owners = " and ".join(entry.label for entry in claims)
    others = " or ".join(entry.distribution for entry in claims if not is_built_in(entry))
    what = f"{KINDS[claims[0].group]} {claims[0].name!r} comes from {owners}"
    return PluginError(what, hint=f"pip uninstall {others}")


def one_line(err: BaseException) -> str:
    """Return an exception's text without its line breaks."""
    return " ".join(str(err).split())


def mend(entry: PluginEntry) -> str:
    """Return what a user can do about a plugin that is broken."""
    if entry.distribution == IN_CODE:
        return f"look at {entry.value}"
    return f"pip install --upgrade {entry.distribution}, or report it to its authors"
