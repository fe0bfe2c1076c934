"""An agent's side of logs that are asked for from other hosts."""

import errno
import os
import socket
import threading
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing, suppress
from typing import ClassVar, Final

from elastic_core.api import encode_json
from elastic_core.api.feed import AgentChannel
from elastic_ops.control_plane.acceptor import MOST_CONNECTIONS, Acceptor
from elastic_ops.logs.follow import STREAMS, HostLogs, LogLine
from elastic_ops.logs.wire import BATCH, BatchCodes, Over, Refused, Sent, Wanted, ranks_of, text_of, welcome

BEAT_S: Final = 5.0
"""How often who follows is told that the agent is there, where no line is."""
_LOOK_S: Final = 0.3
"""How often the files of who follows are looked at."""
_SEND_S: Final = 30.0
"""How long who reads nothing is waited for."""
_LAST_S: Final = 1.0
"""How long those who follow are waited for at the end, for the last lines."""


class LogServer(Acceptor):
    """Shows the lines of this node's workers to whoever knows the run's secret, until `shutdown`.

    It listens by TCP at the number at which the other agents reach this one by UDP, at all addresses.

    Args:
        port: The number.
        channel: Returns how agents of the run know each other. Threading: any, as is `run_dir`'s.
        run_dir: Returns the run directory.

    Raises:
        OSError: the port can't be had.
        RuntimeError: there is no thread to be had.
    """

    most_a_second: ClassVar[int | None] = 50

    def __init__(self, port: int, *, channel: Callable[[], AgentChannel | None], run_dir: Callable[[], str]) -> None:
        """Listen, and begin to serve."""
        self._channel = channel
        self._run_dir = run_dir
        self._ended = threading.Event()
        self._served: set[threading.Thread] = set()
        listening = _listening(port)
        self.port: int = listening.getsockname()[1]
        super().__init__(listening, name="elastic-logs")

    def serve(self, connection: socket.socket) -> None:
        """Answer one who asks."""
        own = threading.current_thread()
        with connection, suppress(OSError, Refused, ValueError):
            channel = self._channel()
            if channel is None:
                return
            wanted, codes = welcome(connection, channel.secret, channel.incarnation, clock=self.clock)
            self._served.add(own)  # not before: a stranger must not hold up the agent's end
            try:
                self._answer(connection, wanted, codes)
            finally:
                self._served.discard(own)

    def end(self) -> None:
        """Let those who follow have the last lines."""
        self._ended.set()
        end_s = self.clock.monotonic_s() + _LAST_S
        for thread in tuple(self._served):
            thread.join(max(0.0, end_s - self.clock.monotonic_s()))

    def _answer(self, connection: socket.socket, wanted: Wanted, codes: BatchCodes) -> None:
        connection.settimeout(_SEND_S)
        logs = HostLogs(
            [self._run_dir()],
            ranks=ranks_of(wanted.ranks) if wanted.ranks else None,
            streams=[stream for stream in STREAMS if stream in wanted.streams],
            last=wanted.last,
            ended=self._ended.is_set,
        )
        lines: Generator[LogLine | None, None, None]
        lines = logs.follow() if wanted.follow else logs.once(wanted.round_index)
        with closing(logs), closing(lines):
            for batch in self._batches(lines, logs.without_file):
                connection.sendall(codes.sealed(batch))
        over = Over(found=text_of(logs.found_ranks), without_file=text_of(logs.without_file))
        connection.sendall(codes.sealed(_line(Sent(over=over))))

    def _batches(self, lines: Iterator[LogLine | None], without_file: Collection[int]) -> Iterator[bytes]:
        """Yield the lines in pieces; ranks that have no file, as soon as they are known; and a sign of life."""
        batch = bytearray()
        said_s, said_of = self.clock.monotonic_s(), 0
        for line in lines:
            if len(without_file) > said_of:
                said_of = len(without_file)
                batch += _line(Sent(without_file=text_of(without_file)))
            if line is not None:
                batch += _line(Sent(line=line))
            elif not batch and self.clock.monotonic_s() - said_s >= BEAT_S:
                batch += _line(Sent())
            if batch and (line is None or len(batch) >= BATCH):
                yield bytes(batch)
                batch.clear()
                said_s = self.clock.monotonic_s()
            if line is None:
                self._ended.wait(_LOOK_S)
        if batch:
            yield bytes(batch)


def _line(sent: Sent) -> bytes:
    return encode_json(sent) + b"\n"


def _listening(port: int) -> socket.socket:
    """Return a socket at every address, of both families where the host has both."""
    problem = OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # as its UDP port
        try:
            return socket.create_server(
                (host, port), family=family, backlog=MOST_CONNECTIONS, dualstack_ipv6=family == socket.AF_INET6
            )
        except (OSError, ValueError) as err:  # the second: no dual stack is to be had
            problem = err if isinstance(err, OSError) else problem
    raise problem
