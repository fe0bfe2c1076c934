"""What a run's workers say of themselves, where anybody wants to know: a hook, or a policy that looks at steps."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from elastic_core.processes.spec import WorkerPaths

if TYPE_CHECKING:
    from elastic_core.agent.watch.beat_file import BeatFile, BeatFiles


class Heartbeats:
    """The memory that each worker beats into; nothing at all where nobody wants to know.

    Args:
        for_hooks: Whether a hook does.
        for_policy: Whether the policy does.
        notice: Takes one line for people.
    """

    def __init__(self, *, for_hooks: bool, for_policy: bool, notice: Callable[[str], None]) -> None:
        self._for_hooks = for_hooks
        self._notice = notice
        self.files: BeatFiles | None = None
        if for_hooks or for_policy:
            from elastic_core.agent.watch import beat_file

            self.files = beat_file.BeatFiles()

    def with_files(self, paths: Mapping[int, WorkerPaths]) -> dict[int, WorkerPaths]:
        """Return the files of a round's workers with those that they are to beat into."""
        if self.files is None:
            return dict(paths)
        try:
            files = self.files.open(paths)
        except OSError as error:
            files = {}
            if not self._for_hooks:  # they know, and have their own ways
                self._notice(f"heartbeats can't be taken ({error}): the policy does not know of steps")
        return {rank: replace(own, beat_file=files.get(rank, "")) for rank, own in paths.items()}

    def progress(self) -> int | None:
        """Return the furthest step of this node's workers; None: none has said one, or nobody listens."""
        return None if self.files is None else self.files.progress()

    def file(self, local_rank: int) -> "BeatFile | None":
        """Return what a worker beats into, and writes its stacks to; None: nothing."""
        return None if self.files is None else self.files.get(local_rank)

    def close(self) -> None:
        """Give everything back."""
        if self.files is not None:
            self.files.close()
