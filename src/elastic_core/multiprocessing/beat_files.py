"""The memory that the agent shares with each worker of a round."""

from collections.abc import Iterable

from elastic_core.multiprocessing.beat_file import BeatFile


class BeatFiles:
    """By local rank; those of a worker that has ended stay readable until the next round's are made."""

    def __init__(self) -> None:
        """Make none yet."""
        self._files: dict[int, BeatFile] = {}

    def open(self, ranks: Iterable[int]) -> dict[int, str]:
        """Make one for each rank in place of the last round's, and return what the workers are to open.

        Raises:
            OSError: there is none to be had, in this system or for us.
        """
        self.close()
        try:
            for rank in ranks:
                self._files[rank] = BeatFile()
        except AttributeError as err:
            self.close()
            raise OSError(f"no shared memory without a name in this system: {err}") from err
        except OSError:
            self.close()
            raise
        return {rank: file.path for rank, file in self._files.items()}

    def get(self, rank: int) -> BeatFile | None:
        """Return one worker's; None: it has none."""
        return self._files.get(rank)

    def progress(self) -> int | None:
        """Return the furthest step that any worker has said; None: none has."""
        steps = [file.read().step for file in self._files.values()]
        return max((step for step in steps if step is not None), default=None)

    def close(self) -> None:
        """Give them back; workers that have theirs keep it. Idempotent."""
        for file in self._files.values():
            file.close()
        self._files = {}
