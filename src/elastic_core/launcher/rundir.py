"""The run directory: where a run keeps what it needs on this node, and what is worth keeping of it afterwards."""

import os
import stat
from contextlib import suppress
from pathlib import Path

from elastic_core.errors import ConfigError
from elastic_core.multiprocessing.layout import quote_id

_ID_LIMIT = 40
"""Characters of the run id in the name: the path of a socket in the directory must stay below 108."""
_ATTEMPTS = 100
_TRY = "--run-dir with a directory that you can write to"


class RunDirectory:
    """One run's directory on this node, readable by its owner only.

    A directory of our own is removed when the run succeeds, unless somebody asked for what is in it; a directory that
    the user chose is never removed. If the agent is killed its directory stays.
    """

    def __init__(self, path: Path, *, ours: bool) -> None:
        """Take over an existing directory; `ours`: we made it, and may remove it."""
        self.path = path
        self._ours = ours
        self._reason = "" if ours else "--run-dir was given"

    @classmethod
    def create(cls, chosen: str | None, run_id: str) -> "RunDirectory":
        """Make the directory of a run.

        Args:
            chosen: The user's `--run-dir`, created if need be. None: `elastic-<uid>/<id>-<random>` under
                `$XDG_RUNTIME_DIR`, or under the temp directory.
            run_id: Any text; what can't stand in a file name is quoted, and a long one is cut.

        Raises:
            ConfigError: there is no place for it, or the place is not safe.
        """
        if chosen is not None:
            return cls(_prepare_chosen(chosen), ours=False)
        return cls(_make_fresh(_base_directory() / f"elastic-{os.geteuid()}", run_id), ours=True)

    @property
    def kept_because(self) -> str:
        """Why the directory outlives a successful run; empty if it does not."""
        return self._reason

    def keep(self, reason: str) -> None:
        """Keep the directory even if the run succeeds; the first reason stands."""
        self._reason = self._reason or reason

    def finish(self, success: bool) -> bool:
        """Remove the directory if the run succeeded and nobody wants it; return whether it is still there.

        What can't be removed (a worker's file on a server that is gone) stays.
        """
        if not success:
            self.keep("the run failed")
        if self._reason:
            return True
        _remove_tree(self.path)
        with suppress(OSError):  # another run's directory is in it, or another run has just removed it
            self.path.parent.rmdir()
        return self.path.exists()


def runs_folder() -> Path:
    """Return where this user's run directories are, if `--run-dir` does not say otherwise; it may not exist.

    Raises:
        ConfigError: there is no place for it, or somebody else has taken it.
    """
    folder = _base_directory() / f"elastic-{os.geteuid()}"
    with suppress(FileNotFoundError):
        _check_owner_only(folder)
    return folder


def _prepare_chosen(chosen: str) -> Path:
    if not chosen:
        raise ConfigError("--run-dir is empty", hint=_TRY)
    path = Path(chosen).absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"--run-dir {chosen!r} lies below a file", hint=_TRY) from error
    except OSError as error:
        raise ConfigError(f"--run-dir {chosen!r} can't be created ({error.strerror})", hint=_TRY) from error
    if not path.is_dir():
        raise ConfigError(f"--run-dir {chosen!r} is a file, not a directory", hint=_TRY)
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"--run-dir {chosen!r} is not writable by this user", hint=_TRY)
    return path


def _base_directory() -> Path:
    """Return the user's runtime directory, or the temp directory (as tempfile chooses it, 10 ms cheaper)."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_absolute() and _is_private(Path(runtime)):
        return Path(runtime)
    named = [value for name in ("TMPDIR", "TEMP", "TMP") if (value := os.environ.get(name))]
    candidates = [*named, "/tmp", "/var/tmp", "/usr/tmp"]
    for candidate in candidates:
        if _is_writable_directory(Path(candidate)):
            return Path(candidate).absolute()
    raise ConfigError(f"no writable directory for the run's files (looked at {', '.join(candidates)})", hint=_TRY)


def _is_private(path: Path) -> bool:
    # After `su` or `sudo -E` the variable still names the directory of somebody else.
    with suppress(OSError):
        return _is_writable_directory(path) and path.stat().st_uid == os.geteuid()
    return False


def _is_writable_directory(path: Path) -> bool:
    return os.access(path, os.W_OK | os.X_OK) and path.is_dir()  # `is_dir` raises at what we may not reach


def _make_fresh(parent: Path, run_id: str) -> Path:
    """Make a directory of our own below `parent`, which runs of the same user share."""
    name = quote_id(run_id)[:_ID_LIMIT]
    try:
        for _ in range(_ATTEMPTS):
            with suppress(FileExistsError):
                parent.mkdir(mode=0o700)
            # A run that ends may remove the parent at any time, and a name may be taken: again.
            with suppress(FileNotFoundError, FileExistsError):
                _check_owner_only(parent)
                path = parent / f"{name}-{os.urandom(4).hex()}"
                path.mkdir(mode=0o700)
                return path
    except OSError as error:
        raise ConfigError(f"no run directory can be made in {str(parent)!r} ({error.strerror})", hint=_TRY) from error
    raise ConfigError(f"no run directory can be made in {str(parent)!r}: it keeps vanishing", hint=_TRY)


def _check_owner_only(parent: Path) -> None:
    """Refuse a directory that another user could have prepared, or could change under us."""
    found = parent.lstat()
    if not stat.S_ISDIR(found.st_mode):
        seen = "is a symbolic link" if stat.S_ISLNK(found.st_mode) else "is not a directory"
    elif found.st_uid != os.geteuid():
        seen = f"belongs to user {found.st_uid}"
    elif found.st_mode & 0o022:
        seen = f"can be written by others (mode {stat.S_IMODE(found.st_mode):03o})"
    else:
        return
    raise ConfigError(
        f"the directory for run directories {str(parent)!r} {seen}; needed is a directory of user {os.geteuid()} that "
        "only its owner can write to",
        hint=f"remove it, or {_TRY}",
    )


def _remove_tree(path: Path) -> None:
    """Remove a directory and all in it, as far as possible, following no link."""
    # By hand: shutil would cost 5 ms to import, a quarter of what a run may take to end.
    with suppress(OSError):
        path.chmod(0o700)
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _remove_tree(Path(entry.path))
                else:
                    with suppress(OSError):
                        os.unlink(entry.path)  # noqa: PTH108 -- a log directory may hold thousands
    with suppress(OSError):
        path.rmdir()
