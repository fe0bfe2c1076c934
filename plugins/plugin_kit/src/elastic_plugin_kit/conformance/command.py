"""The kit for commands of `elastic`: tests that the core can find, list and run a command, and show its help."""

import ast
import importlib
from pathlib import Path
from typing import ClassVar, Final

import click
import pytest

from elastic_core.api import API_VERSION
from elastic_plugin_kit.conformance.kit import Kit

LONGEST_HELP: Final = 80
"""Characters of the line that `elastic --help` shows."""


class CommandConformance(Kit):
    """Subclass it and set `entry_point` as in the package's metadata: `greetings.command:command`."""

    page: ClassVar[str] = "commands.md"

    entry_point: ClassVar[str] = ""

    @pytest.fixture
    def command(self) -> click.Command:
        """Return what the entry point leads to."""
        assert self.entry_point, f"{type(self).__name__} must set `entry_point`, as in the package's metadata"
        module, _, attributes = self.entry_point.partition(":")
        target: object = importlib.import_module(module)
        for attribute in filter(None, attributes.split(".")):
            target = getattr(target, attribute)
        assert isinstance(target, click.Command), f"{self.entry_point} is {target!r}; expected a click.Command"
        return target

    def test_the_module_states_its_api_version(self, command: click.Command) -> None:
        """A module for another version of the interfaces is refused in one line, not by an error of Python's."""
        stated = vars(importlib.import_module(self._module)).get("api_version")
        served = type(stated) is int and stated == API_VERSION
        assert served, f"{self._module} states api_version {stated!r}; expected {API_VERSION}"

    def test_the_module_begins_with_a_line_of_help(self, command: click.Command) -> None:
        """`elastic --help` shows the first line of the docstring, which it reads and does not run."""
        origin = importlib.import_module(self._module).__file__
        assert origin is not None, f"{self._module} has no file; expected a module with source code"
        line = (ast.get_docstring(ast.parse(Path(origin).read_text(encoding="utf-8"))) or "").partition("\n")[0]
        assert line, f"{self._module} has no docstring; expected a first line, which `elastic --help` shows"
        assert len(line) <= LONGEST_HELP, (
            f"the docstring's first line has {len(line)} characters; expected at most {LONGEST_HELP}"
        )

    def test_help_can_be_shown(self, command: click.Command) -> None:
        """Of the command, and of every command below it."""
        _show(command, command.name or "")

    @property
    def _module(self) -> str:
        return self.entry_point.partition(":")[0]


def _show(command: click.Command, path: str) -> None:
    from click.testing import CliRunner

    done = CliRunner().invoke(command, ["--help"], prog_name=path)
    assert done.exit_code == 0, (
        f"{path} --help: exit code {done.exit_code}; expected 0: {done.output or done.exception!r}"
    )
    for name, below in command.commands.items() if isinstance(command, click.Group) else ():
        _show(below, f"{path} {name}")
