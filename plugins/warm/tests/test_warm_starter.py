"""The starter that keeps workers, against the kit and against workers that break the protocol; and its options."""

import json
import os
import socket
import sys

import pytest

from elastic_core.api import AgentHook, HookSettings
from elastic_core.api.starters import LeavingWorker, StartedProcess, WorkerStart
from elastic_plugin_kit import AgentHookConformance, FakeRun, RealLoop, WorkerKeeperConformance
from elastic_warm.connections import MOST_MESSAGE_BYTES, Message
from elastic_warm.hook import Warm
from elastic_warm.options import SOCKET_VARIABLE
from elastic_warm.starter import WarmStarter
from warm_kit import WORKER

OF_RANK_0 = {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "0", "MASTER_PORT": "1"}


class TestKeeps(WorkerKeeperConformance):
    @pytest.fixture
    def make_starter(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        return lambda loop: WarmStarter(loop, folder=str(tmp_path), timeout_s=20.0)

    @pytest.fixture
    def command(self):
        return (sys.executable, str(WORKER))

    def variables(self, starter):
        return {**OF_RANK_0, SOCKET_VARIABLE: starter.path}


class TestHook(AgentHookConformance):
    @pytest.fixture
    def make_hook(self, tmp_path):
        return lambda run_dir: Warm(
            HookSettings(name="warm", run_dir=run_dir, options={"warm_timeout": 10.0, "warm_memory": 0})
        )


class Bench:
    """A starter, and a worker that is this process: the test speaks for it."""

    def __init__(self, folder, **more):
        self.loop = RealLoop()
        self.records = []
        self.starter = WarmStarter(
            self.loop,
            folder=str(folder),
            timeout_s=20.0,
            record=lambda *what: self.records.append(what),
            committed=self.records.append,
            **more,
        )
        self.worker = self.connect()
        self.answers = []
        self.start()

    def connect(self):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self.starter.path)
        return sock

    def start(self, round_=0, **variables):
        environment = {"ELASTIC_ROUND": str(round_), **variables}
        return self.starter.start(
            WorkerStart(
                local_rank=0, global_rank=0, argv=("x",), environment=environment,
                round_variables=frozenset({"ELASTIC_ROUND"}),
            )
        )  # fmt: skip

    def say(self, kind, round_=0, **more):
        self.worker.sendall(json.dumps({"kind": kind, "round": round_, **more}).encode() + b"\n")

    def turn(self):
        for _ in range(5):
            self.loop.turn(0.0)

    def keep(self):
        answers = self.answers

        def left():
            answers.append("left")
            return False

        leaving = LeavingWorker(
            StartedProcess(pid=os.getpid()), 0, left=left, stays=lambda: answers.append("stays"), ended=lambda: None
        )
        return self.starter.keep(leaving, within_s=10.0, planned=True)

    def hears(self):
        self.worker.settimeout(5)
        return json.loads(self.worker.recv(65536))

    def close(self):
        self.worker.close()
        self.starter.close()


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    bench.close()
    assert not bench.loop.readers
    assert all(timer.cancelled for timer in bench.loop.timers)
    assert not (tmp_path / "warm.sock").exists()


def test_what_was_sent_just_before_the_round_ends_counts(bench):
    bench.say("hello", version=1)
    bench.say("entered")
    bench.say("stepped")
    assert bench.keep(), "no turn of the loop has read it yet"
    assert bench.hears() == {"kind": "leave", "round": 0, "within_s": 10.0, "planned": True}


def test_a_process_that_has_not_connected_is_left_to_the_agent_without_a_line(bench):
    assert not bench.keep()
    bench.turn()
    assert bench.loop.notices == []


def test_the_socket_is_its_owners_alone(bench, tmp_path):
    assert (tmp_path / "warm.sock").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "data",
    [
        b"{nonsense\n",
        b'["kind"]\n',
        b'{"kind": 5}\n',
        b"\xff\n",
        b"[" * 99_999 + b"\n",
        b"x" * (MOST_MESSAGE_BYTES + 70_000),
    ],
)
def test_content_that_is_no_message_ends_the_connection(bench, data):
    bench.say("hello", version=1)
    bench.say("entered")
    bench.say("stepped")
    bench.worker.setblocking(False)
    while data:
        try:
            data = data[bench.worker.send(data) :]
        except BlockingIOError:
            bench.turn()
        except OSError:
            break
    for _ in range(30):
        bench.turn()
    bench.worker.setblocking(True)
    assert not bench.keep()
    with pytest.raises(OSError, match=r"[Bb]roken pipe|reset"):  # noqa: PT012  # the second finds it closed
        bench.say("left")
        bench.say("left")


def test_a_message_in_pieces_is_one(bench):
    for byte in b'{"kind": "hello", "round": 0, "version": 1}\n{"kind": "entered", "round": 0}\n':
        bench.worker.sendall(bytes([byte]))
        bench.turn()
    bench.say("stepped")
    assert bench.keep()


def test_a_second_connection_of_a_process_is_closed(bench):
    bench.say("hello", version=1)
    bench.turn()
    other = bench.connect()
    other.sendall(b'{"kind": "hello", "round": 0, "version": 1}\n')
    bench.turn()
    other.settimeout(5)
    assert other.recv(1) == b""
    other.close()


def test_one_that_left_too_late_is_not_kept(bench):
    for kind in ("entered", "stepped"):
        bench.say(kind)
    assert bench.keep()
    bench.say("left")
    bench.turn()
    assert bench.answers == ["left"]
    assert not bench.starter.kept_pids
    assert bench.start(1) is None


def test_the_last_cost_of_commits_is_passed_on_now_and_then(bench, monkeypatch):
    monkeypatch.setattr("elastic_warm.starter.COMMITS_S", 0.0)
    bench.say("state", commit_ms=1.0, bytes=10**9, step=6)
    bench.say("state", commit_ms=1.5, bytes=10**9, step=7)
    assert bench.loop.turn_until(lambda: bool(bench.records), within_s=10)
    ((message,),) = bench.records
    assert (message.commit_ms, message.bytes, message.step) == (1.5, 10**9, 7)
    bench.say("state", commit_ms=2.0)
    bench.turn()


def test_the_hook_publishes_it(settings):
    run, hook = FakeRun(), Warm(settings())
    hook.run = run
    hook._committed([Message(kind="state", commit_ms=1.256, bytes=5, step=7), Message(kind="state", bytes=6, step=8)])
    commits = {"commit_ms": 1.26, "commit_bytes": 11, "commit_step": 7}
    assert run.fields == commits
    hook._record((0, 3), 5, {2: "it hangs", 1: "it hangs", 4: "no step"})
    assert run.fields == commits | {
        "kept_workers": 2, "not_kept_workers": 3, "not_kept_reason": "it hangs; no step",
    }  # fmt: skip
    ((_, values),) = [each for each in run.events if each[0] == "worker_starts"]
    assert values["not_kept"] == {"1": "it hangs", "2": "it hangs", "4": "no step"}
    assert values["summary"] == "workers: 2 of 5 kept; local ranks 1, 2 not: it hangs; local rank 4 not: no step"
    hook._record((0, 1, 2, 3, 4), 5, {})
    assert (run.fields["not_kept_workers"], run.fields["not_kept_reason"]) == (0, None)
    assert run.fields["commit_step"] == 7


def test_the_reason_of_a_worker_that_is_not_kept_is_reported_at_the_start_of_the_next_round(bench):
    bench.starter.round_started()
    assert bench.records == [], "nothing is to be said about workers that have no part in this"
    bench.say("hello", version=1)
    bench.say("entered")
    assert not bench.keep()
    bench.starter.prepare(1, lambda: None)
    bench.start(1)
    bench.starter.round_started()
    assert bench.records == [((), 1, {0: "it has not completed a step"})]
    bench.starter.prepare(1, lambda: None)
    bench.start(2)
    bench.starter.round_started()
    assert bench.records[1:] == [((), 1, {})], "the round before is not that of this report"
    bench.turn()


# --- the hook


@pytest.fixture
def settings(tmp_path):
    def settings(timeout_s=10.0, **more):
        return HookSettings(
            name="warm", run_dir=str(tmp_path), options={"warm_timeout": timeout_s, "warm_memory": 0}, **more
        )

    return settings


@pytest.mark.parametrize(
    "more", [{"timeout_s": 0.0}, {"may_restart": False}, {"workers_run": "function"}, {"debugging": True}]
)
def test_no_socket_where_no_worker_can_be_kept(settings, more, tmp_path):
    hook = Warm(settings(**more))
    assert hook.worker_starter(RealLoop()) is None
    assert hook.on_workers_starting(None) is None
    assert list(tmp_path.iterdir()) == []


def test_the_socket_of_an_agent_around_this_one_is_never_passed_on(settings):
    hook = Warm(settings(timeout_s=0.0, environment={SOCKET_VARIABLE: "/outer"}))
    hook.worker_starter(RealLoop())
    assert hook.on_workers_starting(None).environment == {SOCKET_VARIABLE: "", "TRAINING_WARM_TIMEOUT": "0"}


def test_a_worker_knows_the_socket_and_the_limit(settings):
    hook = Warm(settings(timeout_s=2.5))
    starter = hook.worker_starter(RealLoop())
    environment = hook.on_workers_starting(None).environment
    assert environment == {SOCKET_VARIABLE: starter.path, "TRAINING_WARM_TIMEOUT": "2.5"}
    starter.close()


@pytest.mark.parametrize("why", ["another agent", "a killed agent", "others can write"])
def test_a_shared_run_directory_is_no_obstacle(tmp_path, why):
    folder = tmp_path / "run"
    folder.mkdir()
    other = Bench(folder) if why == "another agent" else None
    if why == "a killed agent":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(folder / "warm.sock"))
    if why == "others can write":
        folder.chmod(0o777)
    before = sorted(folder.iterdir())
    bench = Bench(folder)
    (own,) = set(folder.iterdir()) - set(before)
    assert own.stat().st_mode & 0o777 == 0o700
    bench.say("entered")
    bench.say("stepped")
    assert bench.keep()
    bench.close()
    assert sorted(folder.iterdir()) == before
    if other is not None:
        other.close()


def test_no_descriptor_for_a_connection_is_no_endless_loop(bench, monkeypatch):
    def accept(_):
        raise OSError(24, "EMFILE")

    listener = bench.starter._listener
    with monkeypatch.context() as without:
        without.setattr(socket.socket, "accept", accept)
        assert not listener._accept()
        assert not listener._accept()
    assert listener._sock.fileno() not in bench.loop.readers
    assert len(bench.loop.timers) == 1
    bench.loop.timers[0].cancel()
    listener._go_on()
    assert listener._sock.fileno() in bench.loop.readers


def test_a_folder_that_can_not_have_a_socket_is_a_line(settings, tmp_path):
    loop = RealLoop()
    gone = HookSettings(name="warm", run_dir=str(tmp_path / "gone"), options={"warm_timeout": 10.0, "warm_memory": 0})
    assert Warm(gone).worker_starter(loop) is None
    (line,) = loop.notices
    assert line.startswith("no worker is kept between rounds, because there is no socket: ")


def test_a_long_name_of_the_run_directory_is_no_obstacle(tmp_path):
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    bench = Bench(folder)
    assert len(bench.starter.path) < 60
    bench.say("entered")
    bench.say("stepped")
    assert bench.keep()
    bench.close()
    assert list(folder.iterdir()) == []


def test_it_is_a_hook():
    assert issubclass(Warm, AgentHook)
