"""The interface of a restart policy: `FailureHandler`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from elastic_core.option_spec import OptionSpec
from elastic_core.types import Decision, Failure, PolicySettings


class FailureHandler(ABC):
    """Decides what happens after a failure. Subclass it and register the class under `elastic_core.failure`.

    The agent creates it once per run as `cls(settings)`. `decide` is pure: the same failure and history give the same
    decision, without I/O or clock. If it raises, or takes longer than a second, the built-in policy `intensity` decides
    about that failure, and an event reports that.

    Threading: called on its own thread, one call at a time.
    """

    api_version: ClassVar[int]
    options: ClassVar[Sequence[OptionSpec]] = ()
    """The `--policy-conf` keys that this policy accepts."""

    settings: PolicySettings

    def __init__(self, settings: PolicySettings) -> None:
        """Keep the settings."""
        self.settings = settings

    @abstractmethod
    def decide(self, failure: Failure, history: Sequence[Failure]) -> Decision:
        """Return the decision about `failure`; `history` has the run's earlier failures, oldest first.

        `history` has the last 64 failures, without logs and device faults, and at most 200 characters of each message.
        The last failure's `spent` is how many restarts all failures have cost so far, and its `rule_counts` is how
        often each rule has decided.
        """

    def explain(self, failure: Failure, history: Sequence[Failure]) -> Sequence[str]:
        """Return lines that explain the result of `decide`, for `elastic policy simulate`. The default returns none.

        It must be as pure as `decide`, and is never called in a run.
        """
        return ()
