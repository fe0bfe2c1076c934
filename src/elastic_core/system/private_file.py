"""Files and folders that only their owner may read. A file is replaced as a whole, without following links.

Failing workers import this module, so it imports little but `os`.
"""

import errno
import os
import stat

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def replace_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace a file's content atomically.

    Raises:
        OSError: The file cannot be written; the old content is unchanged.
    """
    temporary = f"{os.fspath(path)}.{os.getpid()}.tmp"
    try:
        with open(_create(temporary), "wb") as file:  # a descriptor, not a path
            file.write(content)
        os.replace(temporary, path)  # noqa: PTH105  # pathlib would be one more import in a failing process
    except OSError:
        _remove(temporary)
        raise


def read_file(path: str | os.PathLike[str], *, most_bytes: int) -> bytes:
    """Return a file's content, without blocking if the path is a pipe.

    Raises:
        OSError: The file cannot be read, or has more than `most_bytes`.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        content = b""
        while len(content) <= most_bytes and (piece := os.read(fd, most_bytes + 1 - len(content))):
            content += piece
    finally:
        os.close(fd)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), os.fspath(path))
    return content


def make_folder(path: str) -> None:
    """Make a directory and its missing parents, for its owner only, whatever the umask.

    Raises:
        OSError: A directory cannot be made, or an existing parent is not safe: another user could change its content.
    """
    missing = []
    while not os.path.isdir(path):  # noqa: PTH112  # as above
        missing.append(path)
        path = os.path.dirname(path)  # noqa: PTH120  # as above
    if missing and (danger := danger_in(path, sticky=True, own_group=True)):
        raise PermissionError(errno.EPERM, f"{path} {danger}", missing[0])
    for folder in reversed(missing):
        try:
            os.mkdir(folder, 0o700)  # noqa: PTH102  # as above
            give_owner_rights(folder, 0o700)
        except FileExistsError:  # another worker was faster, or another user attacks
            if danger := danger_in(folder):
                raise PermissionError(errno.EPERM, f"{folder} {danger}", folder) from None


def make_chosen_folder(path: str, mode: int = 0o777) -> None:
    """Make a directory that the user has named and its missing parents, with the umask's rights for others.

    Raises:
        OSError: A directory cannot be made.
    """
    above = os.path.dirname(path)  # noqa: PTH120  # as above
    if above != path and not os.path.isdir(above):  # noqa: PTH112  # as above
        make_chosen_folder(above)
    try:
        os.mkdir(path, mode)  # noqa: PTH102  # as above
    except FileExistsError:
        if not os.path.isdir(path):  # noqa: PTH112  # as above
            raise
    else:
        give_owner_rights(path, 0o700)


def give_owner_rights(path: str | int, rights: int) -> None:
    """Give the owner of a file or directory rights that the umask has removed (0300 and more).

    Raises:
        OSError: The rights cannot be read or changed.
    """
    mode = stat.S_IMODE(os.stat(path).st_mode)  # noqa: PTH116  # as above
    if mode & rights != rights:
        os.chmod(path, mode | rights)  # noqa: PTH101  # as above


def danger_in(folder: str | os.PathLike[str], *, sticky: bool = False, own_group: bool = False) -> str:
    """Return why a directory is not this user's own or not safe from other users. Empty if it is safe.

    `sticky` also allows a directory of root, and one that others can write to but in which users cannot replace other
    users' files (/tmp). `own_group` also allows write access for the user's own group, which has the same number.

    Raises:
        OSError: The directory cannot be read.
    """
    found = os.lstat(folder)
    if stat.S_ISLNK(found.st_mode) and sticky and found.st_uid in (os.geteuid(), 0):
        found = os.stat(folder)  # noqa: PTH116  # as above
    if not stat.S_ISDIR(found.st_mode):
        return "is a symbolic link" if stat.S_ISLNK(found.st_mode) else "is not a directory"
    if found.st_uid != os.geteuid() and not (sticky and found.st_uid == 0):
        return f"belongs to user {found.st_uid}"
    others = 0o002 if own_group and found.st_gid == found.st_uid else 0o022
    if found.st_mode & others and not (sticky and found.st_mode & stat.S_ISVTX):
        return f"can be written by others (mode {stat.S_IMODE(found.st_mode):03o})"
    return ""


def _create(path: str) -> int:
    try:
        fd = os.open(path, _FLAGS, 0o600)
    except FileExistsError:  # from an earlier process with this pid, or another user's link
        _remove(path)
        fd = os.open(path, _FLAGS, 0o600)
    give_owner_rights(fd, 0o600)
    return fd


def _remove(path: str) -> None:
    try:
        os.unlink(path)  # noqa: PTH108  # as above
    except OSError:
        return
