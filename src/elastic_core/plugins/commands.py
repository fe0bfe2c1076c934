"""Commands of `elastic` that distributions bring: found by metadata alone, imported when one is used."""

import os
import re
import sys
from typing import TYPE_CHECKING, Final

from elastic_core.errors import PluginError
from elastic_core.plugins.discovery import COMMANDS_GROUP, PluginEntry, find_entries
from elastic_core.plugins.entry_import import mend, only_claim, plugin_refusal

if TYPE_CHECKING:
    import click

CORE_COMMANDS: Final = ("run", "runs", "plugins", "help", "completion")
"""Names that no distribution can take."""
CORE_GROUPS: Final = ("plugins",)
"""Commands of the core below which a distribution may put one: its entry point is called `plugins NAME`."""
IMPORT_LIMIT_S: Final = 30.0
_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]*(?: [a-z][a-z0-9_.-]*)?")
_HEAD_CHARACTERS: Final = 2048
_DOCSTRING: Final = re.compile(r'(?:\s|#[^\n]*\n)*[rRuU]?("""|\'\'\'|"|\')(?P<text>.*?)(?:\1|\n\s*\n|\Z)', re.DOTALL)


class CommandPlugins:
    """The commands that are installed, broken ones among them."""

    def __init__(self) -> None:
        self._entries = find_entries(COMMANDS_GROUP)

    def names(self, group: str = "") -> list[str]:
        """Return the names that can be used, in order, each once: of `elastic`, or of a group of the core's."""
        words = f"{group} ".lstrip()
        usable = dict.fromkeys(entry.name for entry in self._entries if self._misnamed(entry) is None)
        return sorted(name.removeprefix(words) for name in usable if name.rpartition(" ")[0] == group)

    def entry(self, name: str) -> PluginEntry | None:
        """Return the entry point of a command; None: no distribution has it.

        Raises:
            PluginError: two distributions have it.
        """
        return only_claim(entry for entry in self._entries if entry.name == name and self._misnamed(entry) is None)

    def help_line(self, name: str) -> str:
        """Return what a command does, in a line: the first of its module's docstring, which is read and not run."""
        try:
            entry = self.entry(name)
        except PluginError:
            return "(two distributions have it: elastic plugins)"
        if entry is None:
            return ""
        return _docstring(entry.value.partition(":")[0].strip()) or f"A command of {entry.distribution}."

    def listed(self, *, load: bool) -> list[tuple[PluginEntry, str]]:
        """Return all entry points with the status of each, as `elastic plugins` shows it."""
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
            return plugin_refusal(entry, "the core has a command of that name", hint=mend(entry))
        if not _NAME.fullmatch(name):
            return plugin_refusal(entry, "that can't be a command's name: small letters, digits, '-'", hint=mend(entry))
        if group and group not in CORE_GROUPS:
            return plugin_refusal(entry, f"below {group!r} no other distribution can put one", hint=mend(entry))
        return None


def load_command(entry: PluginEntry) -> "click.Command":
    """Import a command.

    Raises:
        PluginError: importing it raised or hangs, it is no command, or for another version of the interfaces.
    """
    import click

    from elastic_core.plugins.declaration_faults import check_api_version  # not for a list of commands
    from elastic_core.plugins.entry_import import Limit, import_entry

    command = import_entry(entry, limit=Limit(IMPORT_LIMIT_S))
    if not isinstance(command, click.Command):
        found = f"the class {command.__qualname__}" if isinstance(command, type) else type(command).__name__
        raise plugin_refusal(entry, f"{entry.value} is {found}; expected a click.Command", hint=mend(entry))
    check_api_version(entry, sys.modules[entry.value.partition(":")[0].strip()])
    return command


def _docstring(module: str) -> str:
    """Return the first line of a module's docstring, from the source; empty: there is none that can be read."""
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
