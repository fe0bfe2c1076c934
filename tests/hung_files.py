"""A file system that never answers a read, and a process that hangs on it with the lock on its memory held.

Run as a program with a folder it is that file system, with one file `x`, until its standard input ends: then the kernel
fails what hangs on it, whatever has become of the tests.
"""

import ctypes
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elastic_core.processes import procfs
from support import lacks, wait_for

HANGER = """
import mmap, os, sys, threading, time
cached = os.open(sys.argv[1], os.O_RDONLY)
reader = threading.Thread(target=os.read, args=(cached, 10), daemon=True)
reader.start()
while " D " not in open(f"/proc/self/task/{reader.native_id}/stat").read():
    time.sleep(0.01)
# The kernel drops what it has cached of the file, and for the page that is being read it waits.
mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)
"""
"""What hangs in `mmap` of the file that it is given."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_LAZILY = 2  # MNT_DETACH
_DIRECT_IO, _KEEP_CACHE = 1, 2
_ASYNC_READ = 1
_NO_SUCH_CALL = -38


@contextmanager
def hung_file(folder: Path) -> Iterator[Path]:
    """Give a file on such a file system; at the end what hangs there goes on, and the folder is empty."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        lacks("/dev/fuse")
    folder.mkdir()
    command = [sys.executable, __file__, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        if server.stdout.readline() != "mounted\n":
            lacks("the right to mount a FUSE file system")
        yield folder / "x"


def wait_until_hung(pid: int) -> None:
    """Wait until a HANGER has come to where it hangs: both its threads."""

    def states() -> list[str]:
        contents = (procfs.read_file(f"/proc/{pid}/task/{tid}/stat") or b"" for tid in procfs.thread_ids(pid))
        return [content.decode().rpartition(") ")[2][:1] for content in contents]

    wait_for(lambda: states() == ["D", "D"], what="a process that hangs in mmap")


def _serve(fd: int) -> None:
    """Answer the kernel. Source: linux/fuse.h."""
    opened = 0
    while True:
        _, call, number, node = struct.unpack_from("<IIQQ", os.read(fd, 1 << 20))
        error, body = 0, b""
        match call:
            case 1:  # LOOKUP
                body = struct.pack("<QQQQII", 2, 0, 3600, 3600, 0, 0) + _attributes(2)
            case 3:  # GETATTR
                body = struct.pack("<QII", 3600, 0, 0) + _attributes(node)
            case 14:  # OPEN
                opened += 1
                body = struct.pack("<QII", opened, 0 if opened == 1 else _DIRECT_IO | _KEEP_CACHE, 0)
            case 2 | 15:  # FORGET has no answer, READ gets none
                continue
            case 18 | 25:  # RELEASE, FLUSH
                pass
            case 26:  # INIT
                body = struct.pack("<IIIIHHII", 7, 31, 65536, _ASYNC_READ, 12, 10, 131072, 1).ljust(64, b"\0")
            case _:
                error = _NO_SUCH_CALL
        os.write(fd, struct.pack("<IiQ", 16 + len(body), error, number) + body)


def _attributes(node: int) -> bytes:
    mode, size = (0o40755, 0) if node == 1 else (0o100644, 1 << 20)
    return struct.pack("<6Q10I", node, size, *[0] * 7, mode, 1, 0, 0, 0, 4096, 0)


def main(folder: str) -> None:
    """Be the file system."""
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    if _LIBC.mount(b"hung", os.fsencode(folder), b"fuse.hung", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "mount", folder)
    threading.Thread(target=_serve, args=(fd,), daemon=True).start()
    sys.stdout.write("mounted\n")
    sys.stdout.flush()
    sys.stdin.read()
    _LIBC.umount2(os.fsencode(folder), _LAZILY)
    os._exit(0)  # closes the connection, and so ends whatever waits for it


if __name__ == "__main__":
    main(sys.argv[1])
