"""Timers by themselves: what is asked for, the lines on the pipe, when they run down; on a clock that tests move."""

import json
import os
import sys

import pytest

from elastic_core.compat.elastic import timer
from elastic_torchrun.timer import api
from elastic_torchrun.timer.deadlines import MOST, Deadlines
from elastic_torchrun.timer.file_request import LONGEST_LINE, Lines, parse


class Client(timer.TimerClient):
    def __init__(self):
        self.asked = []

    def acquire(self, scope_id, expiration_time):
        self.asked.append(("acquire", scope_id, expiration_time))

    def release(self, scope_id):
        self.asked.append(("release", scope_id))


@pytest.fixture
def client(monkeypatch):
    monkeypatch.setattr(api, "_client", None)
    monkeypatch.setattr(api, "now_s", lambda: 1000.0)
    return Client()


def request(pid=7, scope="s", at_s=100.0, signal=9):
    return timer.FileTimerRequest(pid, scope, at_s, signal)


# --- expires


def test_without_a_client_it_is_an_error(client):
    with pytest.raises(RuntimeError, match="configure"), timer.expires(after=1):
        pass


def test_a_block_sets_a_timer_and_gives_it_back_also_when_it_raises(client):
    timer.configure(client)
    with pytest.raises(KeyError), timer.expires(after=5, scope="load"):
        raise KeyError
    assert client.asked == [("acquire", "load", 1005.0), ("release", "load")]


def test_the_scope_is_the_caller_so_that_nested_blocks_keep_theirs(client):
    with timer.expires(5, client=client), timer.expires(1, client=client):
        line = sys._getframe().f_lineno - 1
    with timer.expires(5, client=client):
        pass
    scopes = [asked[1] for asked in client.asked]
    assert scopes[0] == f"{__file__}#{line}"
    assert scopes[-1] == f"{__file__}#{line + 2}"


def test_requests_are_equal_by_what_they_ask_for():
    assert timer.TimerRequest(1, "a", 2.0) == timer.TimerRequest(1, "a", 2.0)
    assert timer.TimerRequest(1, "a", 2.0) != timer.TimerRequest(1, "a", 3.0)
    assert request() == request()
    assert request() != request(signal=15)


# --- lines


def test_a_request_is_torchs_line_and_back():
    line = request(scope="a\nb").to_json()
    assert json.loads(line) == {"version": 1, "pid": 7, "scope_id": "a\nb", "expiration_time": 100.0, "signal": 9}
    assert "\n" not in line
    assert parse(line.encode()) == request(scope="a\nb")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"nonsense",
        b"\xff\xfe",
        b"[]",
        b"17",
        b'{"version": 1}',
        b'{"pid": 0, "scope_id": "s", "expiration_time": 1, "signal": 9}',
        b'{"pid": -1, "scope_id": "s", "expiration_time": 1, "signal": 9}',
        b'{"pid": 1e3, "scope_id": "s", "expiration_time": 1, "signal": 9}',
        b'{"pid": 99999999999999, "scope_id": "s", "expiration_time": 1, "signal": 9}',
        b'{"pid": 1, "scope_id": 5, "expiration_time": 1, "signal": 9}',
        b'{"pid": 1, "scope_id": "s", "expiration_time": "soon", "signal": 9}',
        b'{"pid": 1, "scope_id": "s", "expiration_time": NaN, "signal": 9}',
        b'{"pid": 1, "scope_id": "s", "expiration_time": 1, "signal": 99}',
        b'{"pid": 1, "scope_id": "s", "expiration_time": 1}',
        b'{"version": 1, "pid": 5, "scope',
        b"[" * 4000,
    ],
)
def test_what_is_no_request_is_a_value_error(line):
    with pytest.raises(ValueError, match=r".*"):
        parse(line)


def test_a_line_behind_the_rest_of_one_that_was_never_ended_counts():
    assert parse(b'{"version": 1, "pid": 5, "sco' + request().to_json().encode()) == request()


def test_lines_are_put_together_from_pieces():
    lines = Lines()
    assert lines.feed(b"ab") == []
    assert lines.feed(b"c\n\nde") == [b"abc"]
    assert lines.feed(b"\n") == [b"de"]


@pytest.mark.parametrize("size", [1, 100, 4096, 100_000])
def test_lines_that_are_too_long_are_left_out_in_whatever_pieces_they_come(size):
    lines, found = Lines(), []
    data = b"before\n" + b"x" * 9000 + b"\n" + b"y" * LONGEST_LINE + b"\nafter\n"
    for at in range(0, len(data), size):
        found += lines.feed(data[at : at + size])
    assert found == [b"before", b"y" * LONGEST_LINE, b"after"]
    assert lines.too_long == 1


# --- deadlines


def test_timers_run_on_the_monotonic_clock_from_their_arrival_on():
    deadlines = Deadlines()
    assert deadlines.next_s is None
    deadlines.take(request(scope="a", at_s=1010), now_s=50, wall_s=1000)
    deadlines.take(request(scope="b", at_s=1005), now_s=50, wall_s=1000)
    assert deadlines.next_s == 55
    assert deadlines.expired(54.9) == ()
    assert [(each.request.scope_id, each.late_s) for each in deadlines.expired(61)] == [("b", 6), ("a", 1)]
    assert deadlines.next_s is None


def test_a_timer_that_is_given_back_or_set_anew_does_not_run_down():
    deadlines = Deadlines()
    for at_s in (1010, 1020):
        deadlines.take(request(at_s=at_s), now_s=50, wall_s=1000)
    assert deadlines.next_s == 70
    deadlines.take(request(pid=8, at_s=-1, signal=0), now_s=50, wall_s=1000)
    deadlines.take(request(at_s=-1, signal=0), now_s=50, wall_s=1000)
    assert deadlines.expired(1000) == ()


def test_a_timer_without_an_end_never_runs_down():
    deadlines = Deadlines()
    deadlines.take(request(at_s=float("inf")), now_s=50, wall_s=1000)
    assert deadlines.next_s is None
    assert deadlines.expired(1e12) == ()


def test_timers_of_a_process_are_forgotten_with_it():
    deadlines = Deadlines()
    deadlines.take(request(pid=7), now_s=0, wall_s=0)
    deadlines.take(request(pid=8), now_s=0, wall_s=0)
    deadlines.forget(7)
    assert [each.request.worker_pid for each in deadlines.expired(1000)] == [8]


def test_there_is_an_end_to_what_is_remembered():
    deadlines = Deadlines()
    assert all(deadlines.take(request(scope=str(n)), now_s=0, wall_s=0) for n in range(MOST))
    assert not deadlines.take(request(scope="more"), now_s=0, wall_s=0)
    assert deadlines.take(request(scope="5"), now_s=0, wall_s=0)


# --- the pipe


def test_a_pipe_is_its_owners_and_goes_with_its_server(tmp_path):
    from elastic_torchrun.timer.pipe import TimerPipe

    path = tmp_path / "pipe"
    pipe = TimerPipe(str(path))
    assert path.is_fifo()
    assert path.stat().st_mode & 0o777 == 0o600
    assert pipe.read() == b""
    timer.FileTimerClient(str(path)).release("s")
    assert parse(pipe.read().rstrip()) == timer.FileTimerRequest(os.getpid(), "s", -1, 0)
    pipe.close()
    pipe.close()
    assert not path.exists()


def test_a_pipe_takes_the_place_of_what_a_dead_server_left_and_of_nothing_else(tmp_path):
    from elastic_torchrun.timer.pipe import TimerPipe

    path = tmp_path / "pipe"
    os.mkfifo(path)
    first = TimerPipe(str(path))
    with pytest.raises(FileExistsError, match="another server"):
        TimerPipe(str(path))
    path.unlink()
    second = TimerPipe(str(path))
    first.close()
    assert path.is_fifo()  # the second's
    second.close()
    path.write_text("")
    TimerPipe(str(path)).close()
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="is no pipe"):
        TimerPipe(str(path))
    assert path.read_text() == "precious"


def test_a_client_without_a_server_says_so(tmp_path, monkeypatch):
    from elastic_torchrun.timer import file_client

    monkeypatch.setattr(file_client, "PAUSE_S", 0.0)
    path = tmp_path / "pipe"
    for _ in range(2):
        with pytest.raises(BrokenPipeError, match="TORCHELASTIC_ENABLE_FILE_TIMER"):
            timer.FileTimerClient(str(path)).acquire("s", 5)
        if not path.exists():
            os.mkfifo(path)


def test_a_scope_that_a_pipe_does_not_take_at_once_is_refused(tmp_path):
    client = timer.FileTimerClient(str(tmp_path / "pipe"))
    with pytest.raises(RuntimeError, match="too long"):
        client.acquire("x" * LONGEST_LINE, 5)


def test_every_name_of_the_room_can_be_had():
    assert all(getattr(timer, name).__name__ == name for name in timer.__all__)
    with pytest.raises(AttributeError):
        timer.nothing  # noqa: B018  # looking is the test
