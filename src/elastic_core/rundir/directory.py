"""The run directory: where a run keeps what it needs on this node, and what is worth keeping of it afterwards."""

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

_ID_LIMIT = 40
"""Characters of the run id in the name: the path of a socket in the directory must stay below 108."""
_ATTEMPTS = 100
_TRY = "--run-dir with a directory that you can write to"


class RunDirectory:
    """One run's directory on this node, readable by its owner only.

    The agent's own directory is removed when the run succeeds, unless `keep` was called. A directory that the user
    chose is never removed. If the agent is killed, its directory stays. While the agent lives, it holds a shared lock
    on the directory, for cleaners of temporary files, and a claim on a chosen directory, for other agents.

    Args:
        chosen: The user's `--run-dir`, created if need be; `node_<node id>` below it if another agent has it. None:
            `elastic-<uid>/<id>-<random>` under the temp directory; under `$XDG_RUNTIME_DIR`, which is emptied when the
            user logs out, if the run has a terminal.
        run_id: Any text; characters that a file name can't have are quoted, and a long text is cut.
        node_id: Likewise.

    Raises:
        ConfigError: there is no place for it, or the place is not safe.
    """

    def __init__(self, chosen: str | None, run_id: str, node_id: str = "") -> None:
        """Make the directory."""
        self._node_id = node_id
        self._claim: Claim | None = None
        self.notice = ""
        """One line for people if the directory is not at the chosen place; else empty."""
        self.path = path = _make_fresh(run_id) if chosen is None else self._chosen_place(chosen)
        self.kept_because = "" if chosen is None else "--run-dir was given"
        """Why the directory outlives a successful run; empty: it does not."""
        self._lock_fd = _locked(path)

    def _chosen_place(self, chosen: str) -> Path:
        """Claim the directory that the user chose, or a place for this node below it."""
        from elastic_core.rundir.claim import CLAIM_FILE, Claim, claim  # few runs have a directory that was chosen

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
        """Give lock and claim back; idempotent. Only `finish` removes the file of the claim."""
        if self._claim is not None:
            self._claim.close()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def keep(self, reason: str) -> None:
        """Keep the directory even if the run succeeds; the first reason stays."""
        self.kept_because = self.kept_because or reason

    def finish(self, success: bool) -> bool:
        """Remove the directory if the run succeeded and nothing keeps it; return whether it is still there.

        What can't be removed (a worker's file on a server that is gone) stays.
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
    """Return where this user's run directories may be, if `--run-dir` does not say otherwise; some may not exist.

    Raises:
        ConfigError: there is no place for them, or somebody else has taken it.
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
    """Return what another user may have prepared, or could change under us."""
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
    """Return the temp directory (as tempfile chooses it, 10 ms cheaper) and the user's runtime directory, best first.

    The latter is removed when the user logs out, whatever still runs: it is for those who sit at a terminal.
    """
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
    # After `su` or `sudo -E` the variable still names the directory of somebody else.
    with suppress(OSError):
        return _is_writable_directory(path) and path.stat().st_uid == os.geteuid()
    return False


def _is_writable_directory(path: Path) -> bool:
    return os.access(path, os.W_OK | os.X_OK) and path.is_dir()  # `is_dir` raises at what we may not reach


def _make_fresh(run_id: str) -> Path:
    """Make a directory of our own, in the best place that takes one."""
    *better, last = [base / f"elastic-{os.geteuid()}" for base in _base_directories()]
    for parent in better:
        with suppress(ConfigError):
            return _make_below(parent, run_id)
    return _make_below(last, run_id)


def _make_below(parent: Path, run_id: str) -> Path:
    """Make a directory below `parent`, which runs of the same user share."""
    name = quote_id(run_id)[:_ID_LIMIT]
    try:
        for _ in range(_ATTEMPTS):
            with suppress(FileExistsError):
                parent.mkdir(mode=0o700)
            # A run that ends may remove the parent at any time, and a name may be taken: again.
            with suppress(FileNotFoundError, FileExistsError):
                _check_owner_only(parent)
                give_owner_rights(str(parent), 0o700)  # an earlier version left it as the umask had it
                path = parent / f"{name}-{os.urandom(4).hex()}"
                path.mkdir(mode=0o700)
                give_owner_rights(str(path), 0o700)
                return path
    except OSError as error:
        raise ConfigError(f"no run directory can be made in {str(parent)!r} ({error.strerror})", hint=_TRY) from error
    raise ConfigError(f"no run directory can be made in {str(parent)!r}: it keeps vanishing", hint=_TRY)


def _check_owner_only(parent: Path) -> None:
    """Refuse a directory that another user could have prepared, or could change under us."""
    danger = danger_in(parent)
    if danger:
        raise ConfigError(
            f"the directory for run directories {str(parent)!r} {danger}; expected a directory of user {os.geteuid()} "
            "that only its owner can write to",
            hint=f"remove it, or {_TRY}",
        )


def _locked(path: Path) -> int:
    """Return a descriptor that holds a shared lock on the directory, -1 where there are no locks.

    Cleaners (systemd-tmpfiles) pass over a directory, and all below it, that they can't lock for themselves alone.
    """
    fd = -1
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # a file system without locks: held all the same, to know whether it is still there
        return fd
    return fd


def remove_tree(path: Path) -> None:
    """Remove a directory and all in it, as far as possible, following no link."""
    # By hand: shutil would cost 5 ms to import, a quarter of what a run may take to end.
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
