"""The agent's end of the memory page and the file that it shares with each worker for planned stops."""

import mmap
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from elastic_core.api import Record, encode_json
from elastic_train import stop_page as layout
from elastic_train.holding import Seen
from elastic_train.progress import WorkerProgress, progress_of, step_times

_FOLDER = "stop"


class Notice(Record, frozen=True, kw_only=True):
    """The content of a worker's file while a stop is held."""

    reason: str
    within_s: float


class WorkerPages:
    """The pages of a round's workers.

    Args:
        count: The number of workers on this node.
        run_dir: Directory of the files.
        all_count: Whether every worker is waited for, even if it does not call `should_stop`.

    Raises:
        OSError: there is not enough memory.
    """

    def __init__(self, count: int, run_dir: Path, *, all_count: bool) -> None:
        self._folder = run_dir / _FOLDER
        self._all_count = all_count
        self._pages: list[_Page] = []
        self._lock = threading.Lock()
        """So that no reader of the progress sees a page that is being reset."""
        self._written = False
        try:
            for _ in range(count):
                self._pages.append(_Page())
        except OSError:
            self.close()
            raise

    def fit(self, count: int, run_dir: Path) -> bool:
        """Return whether the pages fit this number of workers, with files in this directory."""
        return (len(self._pages), self._folder) == (count, run_dir / _FOLDER)

    def renew(self) -> None:
        """Reset the pages. All workers that used them have ended."""
        self._remove_files()
        with self._lock:
            for page in self._pages:
                page.clear()

    def places(self) -> Mapping[int, Mapping[str, str]]:
        """Return the variables of each worker, by local rank."""
        places = {rank: {layout.PAGE_VARIABLE: page.path} for rank, page in enumerate(self._pages)}
        if self._all_count:
            for rank, place in places.items():
                place[layout.FILE_VARIABLE] = str(self._file(rank))
        return places

    def ask(self, reason: str, within_s: float) -> None:
        """Request the workers to save within this number of seconds."""
        for page in self._pages:
            page.words[layout.ASKED] = 1
        if not self._all_count:
            return  # no worker that reads the file would be waited for
        content = encode_json(Notice(reason=reason, within_s=within_s)) + b"\n"
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for rank in range(len(self._pages)):
                part = self._file(rank).with_suffix(".part")
                part.write_bytes(content)
                part.replace(self._file(rank))  # complete when a reader sees it
            self._written = True
        except OSError:
            return  # programs that read the file see nothing; other workers have the memory

    def answer(self, step: int | None) -> None:
        """Publish the first step that no worker begins. `None` means that it is not known."""
        for page in self._pages:
            page.words[layout.STOP_STEP] = 0 if step is None else step
            page.words[layout.STEP_KNOWN] = 2 if step is None else 1

    def read(self, ranks: Mapping[int, int]) -> dict[int, Seen]:
        """Return the state of the workers, by global rank. `ranks` has those that run, by local rank."""
        return {
            ranks[local]: page.seen(all_count=self._all_count, removed=self._removed(local))
            for local, page in enumerate(self._pages)
            if local in ranks
        }

    def looked_at(self) -> bool:
        """Return whether any worker calls `should_stop`. Threading: any."""
        try:
            return any(page.words[layout.OWNER] for page in self._pages)
        except ValueError:  # the pages are being released
            return False

    def steps_made(self) -> int | None:
        """Return the most steps that a worker has made since its start. `None` means that no worker has named a step.

        Threading: any.
        """
        try:
            words = [page.words for page in self._pages]
            made = [each[layout.STEP] - each[layout.FIRST] for each in words if each[layout.FIRST] >= 0]
        except ValueError:  # the pages are being released
            return None
        return max((*made, 0)) if made else None

    def furthest_step(self) -> int | None:
        """Return the furthest step for which a worker called `should_stop`, or `None`. Threading: any."""
        try:
            return max((step for page in self._pages if (step := page.words[layout.STEP]) >= 0), default=None)
        except ValueError:  # the pages are being released
            return None

    def note_above(self, step: int) -> None:
        """Make the workers of this round note the time of their first step above this one. Threading: any."""
        with self._lock:
            for page in self._pages:
                page.words[layout.HIGH] = step

    def progress(self) -> dict[int, WorkerProgress]:
        """Return the progress of the workers that report any, also of those that have ended. Threading: any."""
        with self._lock:
            found = {rank: progress_of(page.words) for rank, page in enumerate(self._pages)}
        return {rank: own for rank, own in found.items() if own is not None}

    def step_times(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """Return the last steps of each worker with their times, also of one that has ended. Threading: any."""
        with self._lock:
            return {rank: step_times(page.words) for rank, page in enumerate(self._pages)}

    def remarks(self) -> tuple[str, ...]:
        """Return lines for people about wrong use in scripts."""
        backwards = [rank for rank, page in enumerate(self._pages) if page.words[layout.WENT_BACK]]
        if not backwards:
            return ()
        step = self._pages[backwards[0]].words[layout.WENT_BACK] - 1
        where = f"local rank {backwards[0]}: should_stop(step={step}) came after a higher step"
        return (f"{where}, so that ranks may have stopped at different ones. Try: a step that never falls",)

    def close(self) -> None:
        """Release the pages. A worker that has mapped its page keeps it."""
        self._remove_files()
        with self._lock:
            pages, self._pages = self._pages, []
            for page in pages:
                page.close()

    def _remove_files(self) -> None:
        if self._written:
            self._written = False
            for rank in range(len(self._pages)):
                with suppress(OSError):
                    self._file(rank).unlink()

    def _removed(self, local_rank: int) -> bool:
        """Return whether a worker has removed its file, as a program without the memory reports that it is ready."""
        return self._all_count and self._written and not self._file(local_rank).exists()

    def _file(self, local_rank: int) -> Path:
        return self._folder / str(local_rank)


class _Page:
    """Memory with a path below /proc, without a disk."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("elastic-stop", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._fd, layout.PAGE_BYTES)
            self._map = mmap.mmap(self._fd, layout.PAGE_BYTES)
        except OSError:
            os.close(self._fd)
            raise
        self.words = memoryview(self._map).cast("q")
        self.clear()

    def clear(self) -> None:
        """Clear the page."""
        for word in range(len(self.words)):
            self.words[word] = 0
        for word in (layout.STEP, layout.FIRST, layout.HIGH, layout.ABOVE_OF):
            self.words[word] = layout.NONE
        self.words[layout.MAGIC] = layout.MAGIC_VALUE

    @property
    def path(self) -> str:
        """The path that a worker opens, valid while this process has the memory."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def seen(self, *, all_count: bool, removed: bool) -> Seen:
        """Return the state of its worker."""
        words = self.words
        attached, step = words[layout.OWNER] != 0, words[layout.STEP]
        return Seen(
            looks=attached or all_count,
            step=step if step >= 0 else None,
            waits=words[layout.WAITS] != 0,
            ready=removed or words[layout.READY] != 0,
        )

    def close(self) -> None:
        """Release the memory."""
        self.words.release()
        self._map.close()
        os.close(self._fd)
