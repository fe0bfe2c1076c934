"""The interface of an environment: where agents are started, and what it knows of a run: a scheduler, say."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from elastic_core.types import Record


class Proposal(Record, frozen=True, kw_only=True):
    """What an environment knows of one option of `elastic run`; a value that somebody gave stands against it.

    One for an option of a hook chooses that hook, as if a user had given it. One for an option that nothing installed
    has is left out.
    """

    option: str
    """The option's identifier, `rdzv_id`."""
    value: str
    """As a user would type it; `1` for a flag."""
    reason: str
    """Where it is from, for people: the name of a variable, say."""
    contradiction: str = ""
    """What a user is told who gave another value: one line; empty: nothing, it is theirs to choose."""
    must: bool = False
    """Whether another value can't work: the line is an error then, before anything is started."""


def fault_of_answer(proposals: object, notices: object) -> str:
    """Return what is wrong with what `propose` has answered, and with the lines that it has set; empty: nothing."""
    if not isinstance(proposals, list | tuple) or not all(isinstance(each, Proposal) for each in proposals):
        return f"propose answered {proposals!r}; expected proposals"
    values: dict[str, str] = {}
    for each in proposals:
        if values.setdefault(each.option, each.value) != each.value:
            both = f"{values[each.option]!r} and {each.value!r}"
            return f"propose answered {both} for the option {each.option!r}; expected one proposal for each option"
        for field in each.__struct_fields__:
            value, kind = getattr(each, field), bool if field == "must" else str
            if not isinstance(value, kind):
                needed = "True or False" if kind is bool else "text"
                return f"propose answered a Proposal with {field} {value!r}; expected {needed}"
    if not isinstance(notices, list | tuple) or not all(isinstance(line, str) for line in notices):
        return f"has notices {notices!r}; expected a list of lines"
    return ""


class Environment(ABC):
    """Where agents are started: by a scheduler, in pods, over a list of hosts.

    The name of its entry point is that of the variable that shows it, `SLURM_JOB_ID`: where that is unset or empty,
    nothing of the distribution is imported. Built once as `cls(variables)` before a run's options are settled, in the
    time that a hook's import may take. It asks nobody: neither a network nor a command.

    Threading: one thread, one call at a time.
    """

    api_version: ClassVar[int]
    title: ClassVar[str]
    """What people call it, `Slurm`; in small letters the name for `--environment`."""

    notices: Sequence[str] = ()
    """Lines for the user before anything starts, set by `propose`."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        """Keep the variables that this process was started with."""
        self.variables = variables

    @abstractmethod
    def propose(self, given: Mapping[str, str]) -> Sequence[Proposal]:
        """Return what is known here of a run's options, at most one proposal for each.

        Called: once.

        Args:
            given: What somebody gave, by a flag or by an option's variable: identifier to text, `1` for a flag.

        Raises:
            ConfigError: no agent can begin here: it would be a second one of its node, say.
        """
