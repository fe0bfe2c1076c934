"""The run directory: the files of a run on this node, some of which are kept after it."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core.errors import ConfigError
from elastic_core.processes.output.layout import quote_id
from elastic_core.system.private_file import danger_in, give_owner_rights, make_chosen_folder

if TYPE_CHECKING:
    from elastic_core.rundir.claim import Claim

# Characters of the run id in the name: a socket's path in the directory must have less than 108.
_ID_LIMIT = 40
_ATTEMPTS = 100
_TRY = "--run-dir with a directory that you can write to"


class RunDirectory:
    """One run's directory on this node, readable by its owner only.

    The agent's own directory is removed when the run succeeds, unless `keep` was called. A directory that the user
    chose is never removed. If the agent is killed, its directory stays. While the agent lives, it holds a shared lock
    on the directory, for cleaners of temporary files, and a claim on a chosen directory, for other agents.

    `chosen` is the user's `--run-dir`, created if needed; `node_<node id>` below it if another agent has it. If
    `None`, the directory is `elastic-<uid>/<id>-<random>` under the temp directory, or under `$XDG_RUNTIME_DIR`,
    which is emptied when the user logs out, if the run has a terminal. In ids, characters that a file name cannot
    have are quoted, and a long text is cut.

    Raises:
        ConfigError: No place is writable, or the place is not safe.
    """

    def __init__(self, chosen: str | None, run_id: str, node_id: str = "") -> None:
        self._node_id = node_id
        self._claim: Claim | None = None
        self.notice = ""
        """One line for users if the directory is not the chosen one. Empty otherwise."""
        self.path = path = _make_fresh(run_id) if chosen is None else self._chosen_place(chosen)
        self.kept_because = "" if chosen is None else "--run-dir was given"
        """Why the directory is kept after a successful run. Empty means that it is removed."""
        self._lock_fd = _locked(path)

    def _chosen_place(self, chosen: str) -> Path:
        from elastic_core.rundir.claim import CLAIM_FILE, Claim, claim  # few runs choose a directory

        top = _prepare_chosen(chosen)
        own = top / f"node_{quote_id(self._node_id)[:_ID_LIMIT]}"
        first = ""
        for place in (top, own, *(own.with_name(f"{own.name}-{number}") for number in range(2, _ATTEMPTS))):
            try:
                claimed = claim(_prepare_chosen(str(place)))
            except OSError as error:
                raise ConfigError(f"--run-dir {str(place)!r} can't be written ({error.strerror})", hint=_TRY) from error
            if isinstance(claimed, Claim):
                self._claim = claimed
                self.notice = "" if place == top else (
                    f"--run-dir {chosen!r} has files of {first}: this node's are in {str(place)!r}. Try: "
                    f"a --run-dir for each node, or rm {str(top / CLAIM_FILE)!r} if that agent was killed"
                )  # fmt: skip
                return place
            first = first or claimed
        raise ConfigError(f"--run-dir {chosen!r} has files of {first}, and {place} those of others", hint=_TRY)

    def close(self) -> None:
        """Release lock and claim; idempotent. The claim's file is removed by `finish` only."""
        if self._claim is not None:
            self._claim.close()
        fd, self._lock_fd = self._lock_fd, -1  # first: the thread that finishes it may be held up in a call
        if fd >= 0:
            os.close(fd)

    def keep(self, reason: str) -> None:
        """Keep the directory even if the run succeeds; the first reason counts."""
        self.kept_because = self.kept_because or reason

    def finish(self, success: bool) -> bool:
        """Remove the directory if the run succeeded and nothing keeps it; return whether it still exists.

        Files that cannot be removed, such as a worker's file on an unreachable server, stay.
        """
        if not success:
            self.keep("the run failed")
        if self._claim is not None:
            self._claim.release()
        if self.kept_because:
            return True
        self.close()
        remove_tree(self.path)
        return self.path.exists()


def runs_folders() -> list[Path]:
    """Return the directories that may contain this user's run directories without `--run-dir`; some may not exist.

    Raises:
        ConfigError: No place is writable, or another user has taken it.
    """
    folders = [base / f"elastic-{os.geteuid()}" for base in _base_directories()]
    for folder in folders:
        with suppress(FileNotFoundError):
            _check_owner_only(folder)
    return folders


def _prepare_chosen(chosen: str) -> Path:
    if not chosen:
        raise ConfigError("--run-dir is empty", hint=_TRY)
    path = Path(chosen).absolute()
    try:
        make_chosen_folder(str(path), 0o700)
    except (FileExistsError, NotADirectoryError) as error:
        what = "is a file, not a directory" if path.exists() else "lies below a file"
        raise ConfigError(f"--run-dir {chosen!r} {what}", hint=_TRY) from error
    except OSError as error:
        raise ConfigError(f"--run-dir {chosen!r} can't be created ({error.strerror})", hint=_TRY) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"--run-dir {chosen!r} is not writable by this user", hint=_TRY)
    danger = _danger_in_chosen(path)
    if danger:
        needed = f"expected a directory of user {os.geteuid()} that only its owner can write to"
        raise ConfigError(f"--run-dir {chosen!r} {danger}; {needed}", hint=f"--run-dir {chosen}/NAME, or chmod go-w")
    return path


def _danger_in_chosen(path: Path) -> str:
    # Another user may have prepared its content, or could change it.
    try:
        if path.is_symlink() and path.lstat().st_uid not in (os.geteuid(), 0):
            return f"is a symbolic link of user {path.lstat().st_uid}"
        if danger := danger_in(path.resolve(), own_group=True):
            return danger
        with os.scandir(path) as entries:
            return next((f"has a symbolic link in it ({each.name!r})" for each in entries if each.is_symlink()), "")
    except OSError as error:
        return f"can't be looked at ({error.strerror})"


def _base_directories() -> list[Path]:
    # Best first: the temp directory, chosen as by `tempfile`, and the user's runtime directory. The latter is removed
    # when the user logs out, even if processes still run, so it is preferred on a terminal only.
    found = []
    named = [value for name in ("TMPDIR", "TEMP", "TMP") if (value := os.environ.get(name))]
    candidates = [*named, "/tmp", "/var/tmp", "/usr/tmp"]
    for candidate in candidates:
        if _is_writable_directory(Path(candidate)):
            found.append(Path(candidate).absolute())
            break
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_absolute() and _is_private(Path(runtime)) and Path(runtime) not in found:
        found.insert(0 if _has_terminal() else len(found), Path(runtime))
    if not found:
        raise ConfigError(f"no writable directory for the run's files (looked at {', '.join(candidates)})", hint=_TRY)
    return found


def _has_terminal() -> bool:
    return any(os.isatty(fd) for fd in (0, 1, 2))


def _is_private(path: Path) -> bool:
    # After `su` or `sudo -E`, the variable still names another user's directory.
    with suppress(OSError):
        return _is_writable_directory(path) and path.stat().st_uid == os.geteuid()
    return False


def _is_writable_directory(path: Path) -> bool:
    return os.access(path, os.W_OK | os.X_OK) and path.is_dir()  # `is_dir` raises without access


def _make_fresh(run_id: str) -> Path:
    *better, last = [base / f"elastic-{os.geteuid()}" for base in _base_directories()]
    for parent in better:
        with suppress(ConfigError):
            return _make_below(parent, run_id)
    return _make_below(last, run_id)


def _make_below(parent: Path, run_id: str) -> Path:
    # Runs of the same user share `parent`.
    name = quote_id(run_id)[:_ID_LIMIT]
    try:
        for _ in range(_ATTEMPTS):
            with suppress(FileExistsError):
                parent.mkdir(mode=0o700)
            # A run that ends may remove the parent at any time, and a name may exist: try again.
            with suppress(FileNotFoundError, FileExistsError):
                _check_owner_only(parent)
                give_owner_rights(str(parent), 0o700)  # an earlier version obeyed the umask
                path = parent / f"{name}-{os.urandom(4).hex()}"
                path.mkdir(mode=0o700)
                give_owner_rights(str(path), 0o700)
                return path
    except OSError as error:
        raise ConfigError(f"no run directory can be made in {str(parent)!r} ({error.strerror})", hint=_TRY) from error
    raise ConfigError(f"no run directory can be made in {str(parent)!r}: it keeps vanishing", hint=_TRY)


def _check_owner_only(parent: Path) -> None:
    # Another user could have prepared the directory, or could change it.
    danger = danger_in(parent)
    if danger:
        raise ConfigError(
            f"the directory for run directories {str(parent)!r} {danger}; expected a directory of user {os.geteuid()} "
            "that only its owner can write to",
            hint=f"remove it, or {_TRY}",
        )


def _locked(path: Path) -> int:
    # A descriptor with a shared lock on the directory, or -1 if it cannot be opened. Cleaners such as systemd-tmpfiles
    # skip a directory, and all below it, on which they get no exclusive lock.
    fd = -1
    with suppress(OSError):  # a file system without locks: kept open, to know whether the directory still exists
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return fd


def remove_tree(path: Path) -> None:
    """Remove a directory and its content as far as possible, without following links."""
    # Importing shutil would cost 5 ms, a quarter of the time to end a run.
    with suppress(OSError):
        path.chmod(0o700)
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    remove_tree(Path(entry.path))
                else:
                    with suppress(OSError):
                        os.unlink(entry.path)  # noqa: PTH108 -- a log directory may hold thousands
    with suppress(OSError):
        path.rmdir()
