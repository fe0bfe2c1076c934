"""The worker's connection to its agent: one JSON object per line, with the descriptors that come with a place."""

import json
import os
import socket
import struct
import threading
from collections import deque
from typing import Any, Final

SOCKET_VARIABLE: Final = "TRAINING_WARM_SOCKET"
"""The variable with the path of the agent's socket. Without it, no worker is kept."""
TIMEOUT_VARIABLE: Final = "TRAINING_WARM_TIMEOUT"
"""The variable with `--warm-timeout`, in seconds."""
VERSION: Final = 1
MAX_MESSAGE_BYTES: Final = 1 << 20
"""The longest message. A longer one ends the connection."""
_READ_BYTES: Final = 1 << 16
_MAX_DESCRIPTORS: Final = 16


class ConnectionOverError(Exception):
    """The connection has ended, or the agent has sent what is no message."""


class AgentConnection:
    """The connection. It lasts as long as the process, over all rounds.

    Threading: `send` on any thread, `receive` on one.

    Args:
        path: The path of the agent's socket.

    Raises:
        OSError: no agent listens there.
    """

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._sending = threading.Lock()
        self._text = b""
        self._descriptors: deque[int] = deque()
        os.register_at_fork(after_in_child=self._forget)

    def fileno(self) -> int:
        """Return the descriptor, for `poll`; -1 in a forked child."""
        return self._socket.fileno()

    def send(self, kind: str, **fields: object) -> None:
        """Send a message. If the agent is gone, which `receive` reports, nothing is sent."""
        line = json.dumps({"kind": kind, **fields}).encode() + b"\n"
        try:
            with self._sending:
                self._socket.sendall(line)
        except OSError:
            return

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have come, after waiting for at least some bytes.

        The field `fds` of a message with descriptors maps their names to them.

        Raises:
            ConnectionOverError: there is no agent any more, or no valid message.
        """
        self._read()
        *lines, self._text = self._text.split(b"\n")
        if len(self._text) > MAX_MESSAGE_BYTES or any(len(line) > MAX_MESSAGE_BYTES for line in lines):
            raise ConnectionOverError("a message is too long")
        return [self._parse(line) for line in lines]

    def _read(self) -> None:
        room = socket.CMSG_SPACE(_MAX_DESCRIPTORS * struct.calcsize("i"))
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_READ_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise ConnectionOverError(str(error)) from None
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                count = len(content) // struct.calcsize("i")
                self._descriptors.extend(struct.unpack(f"{count}i", content[: count * struct.calcsize("i")]))
        if not data:
            raise ConnectionOverError("the agent has ended the connection")
        self._text += data

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            message = json.loads(line)
        except ValueError:
            raise ConnectionOverError("a message is no JSON") from None
        if not isinstance(message, dict):
            raise ConnectionOverError("a message is no object")
        names = message.get("fds", ())
        if len(names) > len(self._descriptors):
            raise ConnectionOverError("a message lacks its descriptors")
        message["fds"] = {name: self._descriptors.popleft() for name in names}
        return message

    def close(self) -> None:
        """End the connection; idempotent."""
        self._socket.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _forget(self) -> None:
        # A forked child must not hold the connection open, nor use it.
        self._socket.close()
        self._sending = threading.Lock()
