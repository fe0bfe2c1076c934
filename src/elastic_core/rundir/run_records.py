"""Records of this user's runs on this machine, of bounded size and number, written at a run's start and end."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from elastic_core.encoding import decode_json, encode_json
from elastic_core.errors import ElasticError
from elastic_core.rundir.directory import remove_tree, runs_folders
from elastic_core.rundir.identity import AgentIdentity, EpochNs
from elastic_core.system.clock import SYSTEM_CLOCK, Clock
from elastic_core.system.private_file import danger_in, make_folder, read_file, replace_file
from elastic_core.types import Record

RECORDS_FOLDER: Final = "index"
"""The folder's name, beside the run directories, whose names all have a dash."""
MOST_KEPT: Final = 200
"""How many records are kept at most. The oldest are removed first."""
_MOST_CHARS: Final = 1000
_MOST_BYTES: Final = 32 << 10
_SCHEMA_VERSION: Final = 1


class RunRecord(Record, frozen=True, kw_only=True):
    """The agent's record of one run of this user on this machine."""

    schema_version: int = _SCHEMA_VERSION
    """The version of this document."""
    run_id: str
    """The run's id."""
    node_id: str
    """This node's id."""
    script: str
    """The script, module or program as typed."""
    run_dir: str
    """The run directory, which may have been removed."""
    agent: AgentIdentity
    """The agent's process, and when it started."""
    ended_ns: EpochNs = 0
    """When the run ended on this node, in nanoseconds since the Unix epoch. 0 means that no end was recorded."""
    outcome: str = ""
    """`succeeded`, `failed` or `stopped`. Empty if no end was recorded."""
    exit_code: int | None = None
    """The agent's exit code. `None` if no end was recorded."""
    result: str = ""
    """One line for users about the end."""
    files: str = ""
    """The folder with files of hooks about this run, as found when the record was read. Empty if there is none."""


class RunEntry:
    """The record of one run. Threading: one call at a time."""

    def __init__(self, path: Path | None, record: RunRecord, clock: Clock = SYSTEM_CLOCK) -> None:
        self.path = path
        """The record's file. `None` means that no place is writable, and nothing is written."""
        self._files = path and path.with_suffix("")
        self._record = record
        self._clock = clock

    @classmethod
    def begin(cls, *, run_id: str, node_id: str, script: str, run_dir: str, clock: Clock = SYSTEM_CLOCK) -> "RunEntry":
        """Record that a run begins. If no record can be written, the run continues without one."""
        agent = AgentIdentity.own(host=os.uname().nodename, started_ns=clock.wall_ns())
        record = RunRecord(
            run_id=run_id[:_MOST_CHARS],
            node_id=node_id[:_MOST_CHARS],
            script=script[:_MOST_CHARS],
            run_dir=run_dir,
            agent=agent,
        )
        return cls(_begun(record), record, clock)

    def make_files(self) -> str:
        """Return the folder beside the record, for files that stay as long as the record; make it if it is missing.

        Empty if no place is writable. Threading: any, at any time.
        """
        if self._files is None:
            return ""
        with suppress(OSError):
            make_folder(str(self._files))
            return "" if danger_in(self._files) else str(self._files)
        return ""

    def end(self, *, outcome: str, exit_code: int, result: str) -> None:
        """Record how the run ended; only the first call counts."""
        path, self.path = self.path, None
        if path is None:
            return
        record = replace(
            self._record,
            ended_ns=self._clock.wall_ns(),
            outcome=outcome,
            exit_code=exit_code,
            result=result[:_MOST_CHARS],
        )
        with suppress(OSError):
            replace_file(path, encode_json(record))


def _begun(record: RunRecord) -> Path | None:
    # The oldest records are removed. `None` means that no place is writable.
    with suppress(ElasticError):
        for place in runs_folders():
            folder = place / RECORDS_FOLDER
            path = folder / f"{record.agent.started_ns:019d}-{record.agent.pid}.json"
            with suppress(OSError):
                make_folder(str(folder))
                replace_file(path, encode_json(record))
                with suppress(OSError):
                    _remove_oldest(folder)
                return path
    return None


def _remove_oldest(folder: Path) -> None:
    # Record and folder of a run differ in the suffix. Another run may remove them at the same time.
    paths: dict[str, list[Path]] = {}
    for path in folder.iterdir():
        paths.setdefault(path.name.partition(".")[0], []).append(path)
    for path in (path for run in sorted(paths)[:-MOST_KEPT] for path in paths[run]):
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
        else:
            path.unlink(missing_ok=True)


def run_records(fault: Callable[[str], None] = lambda text: None, *, run_id: str | None = None) -> list[RunRecord]:
    """Return the records of this user's last runs on this machine, the oldest first.

    Args:
        fault: Called with one line for each unreadable record, which is left out.
        run_id: The run whose records are returned. `None` means all runs.

    Raises:
        ConfigError: No place for records is writable, or another user has taken it.
    """
    found: dict[str, RunRecord] = {}
    for place in runs_folders():
        with suppress(FileNotFoundError):
            for path in (place / RECORDS_FOLDER).iterdir():
                try:
                    record = _read(path) if path.suffix == ".json" else None
                    if record is not None and (run_id is None or record.run_id == run_id[:_MOST_CHARS]):
                        found[path.name] = record
                except FileNotFoundError:  # removed meanwhile
                    continue
                except (OSError, ValueError) as err:
                    fault(f"the record {str(path)!r} can't be read ({err}): it is left out")
    return [record for _, record in sorted(found.items())]


def _read(path: Path) -> RunRecord:
    record = decode_json(read_file(path, most_bytes=_MOST_BYTES), RunRecord)
    if record.schema_version != _SCHEMA_VERSION:
        raise ValueError(f"it has version {record.schema_version}; expected {_SCHEMA_VERSION}")
    files = path.with_suffix("")
    return replace(record, files=str(files) if files.is_dir() and not files.is_symlink() else "")


def run_places() -> str:
    """Return the directories that are searched for run directories and records, for users.

    Raises:
        ConfigError: No place for them is writable, or another user has taken it.
    """
    return " or ".join(repr(str(folder)) for folder in runs_folders())
