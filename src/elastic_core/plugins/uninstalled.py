"""Plugins that are named by where their class is, `module:Class`, and need not be installed."""

import os
import sys

from elastic_core.plugins.discovery import PluginEntry
from elastic_core.plugins.entry_import import NOT_INSTALLED


def entry_at(group: str, place: str) -> PluginEntry | None:
    """Return the entry of what is at `module:Class`; None: the text is no such place.

    From here on the working directory is where modules are looked for first, as `python -m` has it.
    """
    module, colon, name = place.partition(":")
    if not colon or not all(word.isidentifier() for word in (*module.split("."), *name.split("."))):
        return None
    here = os.getcwd()  # noqa: PTH109  # for sys.path, which has texts
    if not {"", here} & set(sys.path):
        sys.path.insert(0, here)
    return PluginEntry(group=group, name=place, value=place, distribution=NOT_INSTALLED, version="")
