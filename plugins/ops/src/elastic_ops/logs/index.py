"""The index of each round's log files, which the agent's hook writes to the run directory."""

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from elastic_core.api import Record, RunningWorker, decode_json, encode_json
from elastic_core.api.tools import replace_file
from elastic_ops.status.document import AgentStatus

INDEX_FILE: Final = "logs.json"
KEPT_ROUNDS: Final = 64
"""The number of last rounds in it: as many as the run directory has folders of."""


class WorkerLogs(Record, frozen=True, kw_only=True):
    """The files of one worker. An empty name means that the stream goes to the console."""

    global_rank: int
    local_rank: int
    stdout: str = ""
    stderr: str = ""


class RoundLogs(Record, frozen=True, kw_only=True):
    """The workers of one round on this node."""

    round_index: int
    workers: tuple[WorkerLogs, ...]


class LogIndex(Record, frozen=True, kw_only=True):
    """The last rounds of this node, oldest first."""

    schema_version: int = 1
    rounds: tuple[RoundLogs, ...] = ()


class IndexWriter:
    """Writes a node's index anew with each round. Threading: one thread."""

    def __init__(self) -> None:
        """Know no round yet."""
        self._rounds: deque[RoundLogs] = deque(maxlen=KEPT_ROUNDS)

    def add(self, run_dir: Path, started: Iterable[tuple[int, Sequence[RunningWorker]]]) -> None:
        """Add a started round. If the index can't be written, there is none."""
        for round_index, workers in started:
            files = tuple(map(_files, workers))
            self._rounds.append(RoundLogs(round_index=round_index, workers=files))
        with suppress(OSError):
            replace_file(run_dir / INDEX_FILE, encode_json(LogIndex(rounds=tuple(self._rounds))))


def _files(worker: RunningWorker) -> WorkerLogs:
    return WorkerLogs(
        global_rank=worker.global_rank, local_rank=worker.local_rank, stdout=worker.stdout, stderr=worker.stderr
    )


def read_index(run_dir: Path, status: AgentStatus | None) -> LogIndex:
    """Return the files of a run directory's rounds. Without an index, the core's layout is used."""
    try:
        return decode_json((run_dir / INDEX_FILE).read_bytes(), LogIndex)
    except (OSError, ValueError):  # none was written, or by another version
        return LogIndex(rounds=tuple(_laid_out(run_dir, status)))


def _laid_out(run_dir: Path, status: AgentStatus | None) -> Iterable[RoundLogs]:
    base = 0 if status is None or status.round is None else status.round.base_rank
    folders = {_number(path, "attempt_"): path for path in _entries(run_dir) if path.name.startswith("attempt_")}
    for index, folder in sorted((index, folder) for index, folder in folders.items() if index is not None):
        ranks = sorted(rank for rank in (_number(path) for path in _entries(folder)) if rank is not None)
        workers = tuple(
            WorkerLogs(
                global_rank=base + rank,
                local_rank=rank,
                stdout=_there(folder / str(rank) / "stdout.log"),
                stderr=_there(folder / str(rank) / "stderr.log"),
            )
            for rank in ranks
        )
        yield RoundLogs(round_index=index, workers=workers)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # gone since it was named: the others are shown all the same
        return []


def _number(path: Path, prefix: str = "") -> int | None:
    text = path.name.removeprefix(prefix)
    return int(text) if text.isascii() and text.isdecimal() and path.is_dir() else None


def _there(path: Path) -> str:
    return str(path) if path.exists() else ""
