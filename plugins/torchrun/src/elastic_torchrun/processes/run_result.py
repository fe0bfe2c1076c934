"""The results of a set of workers."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_torchrun.processes.process_failure import ProcessFailure


# A dataclass, as in torch: callers make and change their own.
@dataclass
class RunProcsResult:
    """The results of workers that have all ended, by local rank.

    `return_values` has the results of functions, `None` for programs; it is empty if a worker failed. `failures` has
    every worker that failed by itself, each with its own time. If the caller has stopped them all (`close`), it has
    those with an exit code other than 0. `stdouts` and `stderrs` are the files of the streams, empty for the console.
    """

    return_values: dict[int, Any] = field(default_factory=dict)
    failures: "dict[int, ProcessFailure]" = field(default_factory=dict)
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Return whether a worker failed."""
        return bool(self.failures)
