"""What came of a set of workers."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_torchrun.processes.process_failure import ProcessFailure


# A dataclass, as in torch: callers make and change their own.
@dataclass
class RunProcsResult:
    """What came of workers that have all ended; everything by local rank.

    `return_values` has what functions returned, None for programs, and nothing where a worker failed. `failures` has
    every worker that failed by itself, each with its own time; where the caller has stopped them all (`close`), those
    whose exit code is not 0. `stdouts` and `stderrs` are the files of the streams, empty where one went to the console.
    """

    return_values: dict[int, Any] = field(default_factory=dict)
    failures: "dict[int, ProcessFailure]" = field(default_factory=dict)
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Return whether a worker failed."""
        return bool(self.failures)
