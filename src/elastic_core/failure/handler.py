"""The interface of a restart policy."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from elastic_core.option_spec import OptionSpec
from elastic_core.types import Decision, Failure, PolicySettings


class FailureHandler(ABC):
    """Decides what happens after a failure. Subclass it and register the class under `elastic_core.failure`.

    Built once per run as `cls(settings)`. `decide` is pure: the same failure and history give the same decision; no
    I/O, no clock. One that raises, or takes longer than a second, is replaced for that failure by the built-in
    `intensity`, and an event says so.

    Threading: called on a thread of its own, one call at a time.
    """

    api_version: ClassVar[int]
    options: ClassVar[Sequence[OptionSpec]] = ()
    """The `--policy-conf` keys that this policy takes."""

    settings: PolicySettings

    def __init__(self, settings: PolicySettings) -> None:
        """Keep the settings."""
        self.settings = settings

    @abstractmethod
    def decide(self, failure: Failure, history: Sequence[Failure]) -> Decision:
        """Return what happens after `failure`; `history` has the run's earlier failures, oldest first.

        It has the last 64, without their logs and device faults, and with at most 200 characters of each message.
        `spent` of the last one is how many restarts all failures have cost, however long ago; its `rule_counts` is how
        often each rule has decided.
        """

    def explain(self, failure: Failure, history: Sequence[Failure]) -> Sequence[str]:
        """Return in lines for people why `decide` answers as it does; for `elastic policy simulate`. Default: nothing.

        As pure as `decide`; never called in a run.
        """
        return ()
