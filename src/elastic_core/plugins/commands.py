"""Commands of `elastic` from distributions: found by metadata, imported when one is used."""

import os
import re
import sys
from typing import TYPE_CHECKING, Final

from elastic_core.errors import PluginError
from elastic_core.plugins.discovery import COMMANDS_GROUP, PluginEntry, find_entries
from elastic_core.plugins.entry_import import Limit, import_entry, only_claim, plugin_refusal

if TYPE_CHECKING:
    import click

CORE_COMMANDS: Final = ("run", "runs", "plugins", "help", "completion")
"""Names that no distribution can use."""
CORE_GROUPS: Final = ("plugins",)
"""Groups to which a distribution can add a command, by an entry point such as `plugins NAME`."""
IMPORT_LIMIT_S: Final = 30.0
_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]*(?: [a-z][a-z0-9_.-]*)?")
_HEAD_CHARACTERS: Final = 2048
_DOCSTRING: Final = re.compile(r'(?:\s|#[^\n]*\n)*[rRuU]?("""|\'\'\'|"|\')(?P<text>.*?)(?:\1|\n\s*\n|\Z)', re.DOTALL)


class CommandPlugins:
    """The installed commands, including broken ones."""

    def __init__(self) -> None:
        self._entries = find_entries(COMMANDS_GROUP)

    def names(self, group: str = "") -> list[str]:
        """Return the usable names, sorted and without duplicates: of `elastic`, or of a group of the core."""
        words = f"{group} ".lstrip()
        usable = dict.fromkeys(entry.name for entry in self._entries if self._misnamed(entry) is None)
        return sorted(name.removeprefix(words) for name in usable if name.rpartition(" ")[0] == group)

    def entry(self, name: str) -> PluginEntry | None:
        """Return the entry point of a command. `None` if no distribution has it.

        Raises:
            PluginError: Two distributions have it.
        """
        return only_claim(entry for entry in self._entries if entry.name == name and self._misnamed(entry) is None)

    def help_line(self, name: str) -> str:
        """Return one line of help: the first of the module's docstring, read without importing it."""
        try:
            entry = self.entry(name)
        except PluginError:
            return "(two distributions have it: elastic plugins)"
        if entry is None:
            return ""
        return _docstring(entry.value.partition(":")[0].strip()) or f"A command of {entry.distribution}."

    def listed(self, *, load: bool) -> list[tuple[PluginEntry, str]]:
        """Return all entry points with the status of each for `elastic plugins`."""
        return [(entry, self._status(entry, load=load)) for entry in self._entries]

    def _status(self, entry: PluginEntry, *, load: bool) -> str:
        try:
            fault = self._misnamed(entry)
            if fault is not None:
                raise fault
            self.entry(entry.name)
            if not load:
                return "installed"
            load_command(entry)
        except PluginError as err:
            return str(err)
        return "loaded"

    def _misnamed(self, entry: PluginEntry) -> PluginError | None:
        name = entry.name
        group = name.rpartition(" ")[0]
        if name in CORE_COMMANDS:
            return plugin_refusal(entry, "the core has a command of that name")
        if not _NAME.fullmatch(name):
            return plugin_refusal(entry, "that can't be a command's name: small letters, digits, '-'")
        if group and group not in CORE_GROUPS:
            return plugin_refusal(entry, f"below {group!r} no other distribution can put one")
        return None


def load_command(entry: PluginEntry) -> "click.Command":
    """Import a command.

    Raises:
        PluginError: Its import raised or hangs, it is not a command, or it has another version of the interfaces.
    """
    import click

    from elastic_core.plugins.declaration_faults import check_api_version  # slow, and not needed for a list

    command = import_entry(entry, limit=Limit(IMPORT_LIMIT_S))
    if not isinstance(command, click.Command):
        found = f"the class {command.__qualname__}" if isinstance(command, type) else type(command).__name__
        raise plugin_refusal(entry, f"{entry.value} is {found}; expected a click.Command")
    check_api_version(entry, sys.modules[entry.value.partition(":")[0].strip()])
    return command


def _docstring(module: str) -> str:
    # Reads the source. Empty if it has no docstring or cannot be read.
    relative = module.replace(".", "/")
    for place in sys.path:
        for tail in (".py", "/__init__.py"):
            try:
                with open(f"{place or os.curdir}/{relative}{tail}", encoding="utf-8", errors="replace") as source:  # noqa: PTH123  # thrice as fast
                    match = _DOCSTRING.match(source.read(_HEAD_CHARACTERS))
            except OSError:
                continue
            return " ".join(match["text"].split()) if match else ""
    return ""
