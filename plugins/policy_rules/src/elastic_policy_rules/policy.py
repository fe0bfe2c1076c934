"""The policy `rules`: reads its file once, before the first worker starts."""

from collections.abc import Sequence
from typing import ClassVar

from elastic_core.api import Decision, Failure, FailureHandler, OptionSpec, PolicySettings
from elastic_policy_rules.engine import Engine
from elastic_policy_rules.reader import read_file


class Rules(FailureHandler):
    """Decides by a rule file: `--policy rules.yaml`, or `--policy rules --policy-conf file=rules.yaml`.

    Threading: pure; called on a thread of the supervisor's.

    Raises:
        ConfigError: the file can't be read, or has problems; its notes list each of them.
    """

    api_version: ClassVar[int] = 1
    options: ClassVar[Sequence[OptionSpec]] = (
        OptionSpec(name="file", required=True, help="the rule file, YAML: see the reference page 'Rule files'"),
    )

    def __init__(self, settings: PolicySettings) -> None:
        """Read and check the whole file."""
        super().__init__(settings)
        self._engine = Engine(read_file(settings.option("file", str)), settings)

    def decide(self, failure: Failure, history: Sequence[Failure]) -> Decision:
        """Return the decision of the first matching rule."""
        return self._engine.judge(failure, history).decision

    def explain(self, failure: Failure, history: Sequence[Failure]) -> Sequence[str]:
        """Return the rules that do not match, the one that matches, and its counters."""
        return self._engine.judge(failure, history).why
