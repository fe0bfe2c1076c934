"""The agent's side of logs, and of its time ledger, that other hosts request."""

import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import closing
from typing import Final

from elastic_core.api import decode_json, encode_json
from elastic_core.api.feed import AgentChannel
from elastic_core.api.feed import Offer as HookOffer
from elastic_ops.control_plane.handlers import Handler, Offer, Request, Response
from elastic_ops.control_plane.listeners import TcpServer
from elastic_ops.logs.follow import STREAMS, HostLogs, LogLine
from elastic_ops.logs.wire import BATCH, HANDLER, Over, Sent, Wanted, ranks_of, text_of

BEAT_S: Final = 5.0
"""The interval of signs of life to followers, if there are no lines."""
LEDGER: Final = "ledger"
"""A hook's offer that readers on other hosts may request too: elastic-report's time ledger, which has no secrets."""
_LOOK_S: Final = 0.3
"""The interval in which followed files are read."""
_LAST_S: Final = 1.0
"""How long followers are waited for at the end, for the last lines."""


class LogServer(TcpServer):
    """Sends the lines of this node's workers, and its time ledger, to readers that know the run's secret.

    It serves until `shutdown`.

    It listens on a TCP port with the number of the UDP port at which the other agents reach this one, at all addresses.

    Args:
        port: The number.
        channel: Returns the run's secret channel between agents. Threading: any, as is `run_dir`'s.
        run_dir: Returns the run directory.
        offers: Returns the offers of hooks by name; of these, only the time ledger is served. Threading: any.

    Raises:
        OSError: the port can't be opened.
        RuntimeError: no thread can be started.
    """

    def __init__(
        self,
        port: int,
        *,
        channel: Callable[[], AgentChannel | None],
        run_dir: Callable[[], str],
        offers: Callable[[], Mapping[str, HookOffer]] = dict,
    ) -> None:
        """Listen, and begin to serve."""
        self._run_dir = run_dir
        self._ended = threading.Event()
        self._served: set[threading.Thread] = set()
        super().__init__(None, port, _Logs(self._answer, offers), name="elastic-logs", channel=channel)

    def end(self) -> None:
        """Let followers receive the last lines."""
        self._ended.set()
        end_s = self.clock.monotonic_s() + _LAST_S
        for thread in tuple(self._served):
            thread.join(max(0.0, end_s - self.clock.monotonic_s()))

    def _answer(self, request: Request, response: Response) -> None:
        """Serve a reader that has proved that it knows the secret."""
        wanted = decode_json(request.body_bytes(), Wanted)
        logs = HostLogs(
            [self._run_dir()],
            ranks=ranks_of(wanted.ranks) if wanted.ranks else None,
            streams=[stream for stream in STREAMS if stream in wanted.streams],
            last=wanted.last,
            ended=self._ended.is_set,
        )
        response.set_stream(self._sent(logs, wanted))

    def _sent(self, logs: HostLogs, wanted: Wanted) -> Generator[bytes, None, None]:
        """Yield the lines in batches, then the end message."""
        own = threading.current_thread()
        self._served.add(own)
        lines: Generator[LogLine | None, None, None]
        lines = logs.follow() if wanted.follow else logs.once(wanted.round_index)
        try:
            with closing(logs), closing(lines):
                yield from self._batches(lines, logs.without_file)
            over = Over(found=text_of(logs.found_ranks), without_file=text_of(logs.without_file))
            yield _line(Sent(over=over))
        finally:
            self._served.discard(own)

    def _batches(self, lines: Iterator[LogLine | None], without_file: Collection[int]) -> Iterator[bytes]:
        """Yield the lines in batches, ranks without a file as soon as they are known, and signs of life."""
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


class _Logs(Offer):
    """The logs and the time ledger only, without pages."""

    def __init__(self, answer: Handler, offers: Callable[[], Mapping[str, HookOffer]]) -> None:
        self._answer, self._offers = answer, offers

    def find(self, name: str) -> Handler | None:
        if name == LEDGER and LEDGER in self._offers():
            return self._ledger
        return self._answer if name == HANDLER else None

    def _ledger(self, request: Request, response: Response) -> None:
        answer = self._offers()[LEDGER]({})
        response.set_content(answer.content, answer.content_type)

    def page(self, path: str) -> Response | None:
        return None


def _line(sent: Sent) -> bytes:
    return encode_json(sent) + b"\n"
