"""The interface of environments: schedulers and other launch environments that propose options of a run."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from elastic_core.types import Record


class Proposal(Record, frozen=True, kw_only=True):
    """A value that an environment proposes for one option of `elastic run`. A value that the user gave overrides it.

    A proposal for an option of a hook chooses that hook, as if the user had given the option. A proposal for an option
    that no installed distribution has is ignored.
    """

    option: str
    """The option's identifier, such as `rdzv_id`."""
    value: str
    """The value as a user would type it; `1` for a flag."""
    reason: str
    """The source of the value for users, such as the name of a variable."""
    contradiction: str = ""
    """One line that is printed if the user gave another value. Empty means that any value is accepted silently."""
    must: bool = False
    """Whether another value cannot work: the line is then an error, before the run starts."""


def fault_of_answer(proposals: object, notices: object) -> str:
    """Return what is wrong with the proposals and notices of an environment. Empty if they are right."""
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
    """A place where agents are started, such as a scheduler, pods or a list of hosts.

    The name of its entry point is the name of the variable that marks the environment, such as `SLURM_JOB_ID`. If that
    variable is unset or empty, the distribution is not imported. The class is built once as `cls(variables)` before a
    run's options are resolved, within the time limit of a hook's import. It must use neither the network nor commands.

    Threading: one thread, one call at a time.
    """

    api_version: ClassVar[int]
    title: ClassVar[str]
    """The name for users, such as `Slurm`; in lower case it is the name for `--environment`."""

    notices: Sequence[str] = ()
    """Lines for the user before the run starts, set by `propose`."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = variables

    @abstractmethod
    def propose(self, given: Mapping[str, str]) -> Sequence[Proposal]:
        """Return the values that this environment proposes for a run's options, at most one for each.

        Called: once.

        Args:
            given: The options that the user gave, by a flag or by an option's variable: identifier to text, `1` for a
                flag.

        Raises:
            ConfigError: no agent can start here, for example because it would be the second one on its node.
        """
