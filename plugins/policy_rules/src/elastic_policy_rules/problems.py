"""Problems of a rule file, with their places and suggestions."""

import difflib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from elastic_core.api import ConfigError


class Problem(NamedTuple):
    """A problem. `hint` is a suggested text; empty if there is none."""

    line: int
    column: int
    what: str
    hint: str


class RuleFileError(ConfigError):
    """A rule file with problems. Its notes list all of them, one a line."""

    def __init__(self, name: str, problems: Sequence[Problem]) -> None:
        """Report the number of problems; a single one is the message."""
        ordered = sorted(set(problems))  # what rules share is looked at for each of them
        lines = [told(name, problem) for problem in ordered]
        if len(lines) == 1:
            super().__init__(f"rule file {lines[0].what}", hint=lines[0].hint)
        else:
            super().__init__(f"rule file {name!r} has {len(lines)} problems")
            for line in lines:
                self.add_note(str(line))
        self.problems = tuple(ordered)


class Told(NamedTuple):
    """A problem as text."""

    what: str
    hint: str

    def __str__(self) -> str:
        """Return both on one line."""
        return f"{self.what}. Try: {self.hint}" if self.hint else self.what


def told(name: str, problem: Problem) -> Told:
    """Return `rules.yaml:4:5: unknown key 'acton'` and its hint."""
    return Told(f"{name}:{problem.line}:{problem.column}: {problem.what}", problem.hint)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the most similar known word; empty if none is similar."""
    return next(iter(difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)), "")
