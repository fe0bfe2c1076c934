"""The process that hosts the workers' store for `--agent-store`, beside the agent of node 0.

`store.sidecar` starts it, with one end of a socket pair as its standard input, so that output of torch or its
extensions can't mix with the responses. Each line is a command and gets one line as its response, in order:

    open PORT       opened            a new, empty store listens on PORT; an earlier one is closed
    close           closed            no store listens
    (any)           failed REASON     the command failed; no store listens

Torch is imported once, at the start, so that only the first round may wait for it. The end of the input ends the
process: it never outlives its agent.
"""

import importlib
import os
from collections.abc import Callable, Iterable
from contextlib import suppress

OPEN, CLOSE = "open", "close"
OPENED, CLOSED, FAILED = "opened", "closed", "failed"

_REASON_LENGTH = 400

MakeStore = Callable[[int], object]


class NoStoreError(Exception):
    """No store could be opened; the text has the reason, on one line."""


class StoreHost:
    """Holds at most one store, and carries out commands.

    Args:
        make_store: Returns a store that listens on a port as long as it is referenced, or raises NoStoreError.
    """

    def __init__(self, make_store: MakeStore) -> None:
        """Open nothing yet."""
        self._make_store = make_store
        self._store: object = None

    def answer(self, line: str) -> str:
        """Carry out one line and return its response."""
        self._store = None  # closes it: no key of an earlier round may be seen in the next, nor its port stay taken
        command, _, rest = line.partition(" ")
        if command == CLOSE:
            return CLOSED
        if command != OPEN or not rest.isdecimal():
            return f"{FAILED} unknown command {line!r}"
        try:
            self._store = self._make_store(int(rest))
        except NoStoreError as error:
            return f"{FAILED} {error}"
        return OPENED


def one_line(error: Exception) -> str:
    """Return an error's message without the C++ frames that torch appends, and without similar text before it."""
    first = str(error).strip().partition("\n")[0].strip().rstrip(".")
    if not first:
        return type(error).__name__
    said = first.rpartition("message: ")[2] or first
    return said[:_REASON_LENGTH] if said != first else f"{type(error).__name__}: {first}"[:_REASON_LENGTH]


def torch_store() -> MakeStore:
    """Import torch and return the maker of its stores. If torch can't be imported, the maker raises the reason.

    Torch is named in a string so that the type checker needs no torch.
    """
    try:
        from elastic_core.api.workers import import_torch

        import_torch("--agent-store")
        tcp_store = importlib.import_module("torch.distributed").TCPStore
    except Exception as error:  # noqa: BLE001  # a broken installation raises anything; the agent reports it
        reason = one_line(error) if not hasattr(error, "hint") else str(error)

        def refuse(port: int) -> object:
            raise NoStoreError(reason)

        return refuse

    def listen(port: int) -> object:
        try:
            return tcp_store("127.0.0.1", port, is_master=True, wait_for_workers=False)
        except Exception as error:  # torch's errors are many; each becomes an answer
            raise NoStoreError(f"port {port}: {one_line(error)}") from error

    return listen


def serve(host: StoreHost, lines: Iterable[bytes], write: Callable[[bytes], object]) -> None:
    """Respond to every line until the input ends, or the responses can't be written."""
    try:
        for line in lines:
            write(host.answer(line.decode(errors="replace").strip()).encode() + b"\n")
    except (BrokenPipeError, ConnectionResetError):
        return


def main() -> None:
    """Run the sidecar on standard input. Called: as the only code of a fresh interpreter."""
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208  # names
        if fd > 2:  # nothing of the agent's is kept open
            _close(fd)
    talk = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # what torch may start inherits no end of the pair
    os.close(null)
    host = StoreHost(torch_store())
    with os.fdopen(talk, "rb") as lines:
        serve(host, lines, lambda answer: os.write(talk, answer))
        os._exit(0)  # threads of torch would only delay it


def _close(fd: int) -> None:
    with suppress(OSError):  # the descriptor that listed the others
        os.close(fd)
