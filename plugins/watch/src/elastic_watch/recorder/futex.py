"""A number in shared memory for whose change a thread can wait without a descriptor. Source: futex(2)."""

import ctypes
import errno
import mmap
import os

# Not from typing: training scripts import this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_WAIT: "Final" = 0
_WAKE: "Final" = 1
_EVERYBODY: "Final" = 1 << 30
_CALLS: "Final" = {
    "x86_64": 202, "aarch64": 98, "riscv64": 98, "loongarch64": 98, "ppc64le": 221, "ppc64": 221, "s390x": 238,
}  # fmt: skip
"""The number of the system call, by machine."""


class Futex:
    """A number of 32 bits at a position in memory that processes share.

    Args:
        memory: The mapped memory, which the object keeps mapped.
        position: In bytes, a multiple of 4.

    Raises:
        OSError: the machine's system call is not known.
    """

    def __init__(self, memory: mmap.mmap, position: int) -> None:
        machine = os.uname().machine
        if machine not in _CALLS or ctypes.sizeof(ctypes.c_void_p) != 8:
            raise OSError(errno.ENOSYS, f"futex: not known for {machine}")
        self._call = _CALLS[machine]
        self._number = ctypes.c_uint32.from_buffer(memory, position)
        self._address = ctypes.addressof(self._number)
        # An object of our own, since its types are set.
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long
        self._syscall.argtypes = (
            ctypes.c_long, ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p,
            ctypes.c_long,
        )  # fmt: skip

    @property
    def value(self) -> int:
        """The number."""
        return self._number.value

    def count_up(self) -> int:
        """Add 1, wake all that wait, and return the new number. Only one process may call it."""
        self._number.value += 1
        self.wake()
        return self._number.value

    def wake(self) -> None:
        """Wake all threads that wait, in all processes."""
        self._syscall(self._call, self._address, _WAKE, _EVERYBODY, None, None, 0)

    def wait(self, value: int) -> None:
        """Wait while the number is `value`, until it changes or a thread calls `wake`. May return earlier.

        Raises:
            OSError: the system does not permit it.
        """
        if self._syscall(self._call, self._address, _WAIT, value, None, None, 0) == -1:
            code = ctypes.get_errno()
            if code not in (errno.EAGAIN, errno.EINTR):
                raise OSError(code, os.strerror(code))
