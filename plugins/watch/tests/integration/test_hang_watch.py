"""The watch over real processes, without an agent around it."""

import os
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
from msgspec.structs import replace

from elastic_core.api import (
    HookSettings,
    Round,
    RunningWorker,
    WorkerEnded,
    WorkerExit,
    WorkersStarted,
    WorkersStopping,
)
from elastic_core.api.feed import Concluded, NodesAsked
from elastic_core.system.reactor import Reactor
from elastic_plugin_kit import AgentHookConformance
from elastic_plugin_kit.fake_run import FakeRun
from elastic_watch.beat_file import BeatFiles
from elastic_watch.beat_layout import FILE_VARIABLE
from elastic_watch.collectives.evidence import Attribution, Cause
from elastic_watch.hangs.asking import (
    Conclusion,
    concluded,
    decoded_response,
    encoded_conclusion,
)
from elastic_watch.hangs.hang_watch import MAX_WARNINGS, NO_MORE, HangWatch
from elastic_watch.hangs.steps import RankStep, RunSteps
from elastic_watch.hook import STARTUP, Watch
from elastic_watch.options import HANG_TOPIC
from elastic_watch.stacks import StackCollector
from patience import patience

ROUND = Round(
    index=3, token=4, nonce="n", node_rank=0, node_count=1, local_world_size=2, base_rank=4, world_size=6,
    role="default", role_base_rank=4, role_world_size=6, master_addr="a", master_port=1,
)  # fmt: skip
BEATS = """
import sys
from elastic_core.worker import heartbeat, section
step = 0
for line in sys.stdin:
    step += 1
    heartbeat(step=step)
    print(step, flush=True)
"""
HANG_S = 0.8


class Run(FakeRun):
    """The handle over real workers, and time as it passes. A node alone is asked, and answers, as by the agent."""

    def __init__(self, reactor, folder):
        super().__init__()
        self.directory = str(folder)
        self.reactor = reactor
        self.pids, self.alive = {}, set()
        self.watch, self.alone = None, True

    def ask_nodes(self, topic, *, within_s=1.0):
        super().ask_nodes(topic, within_s=within_s)
        if self.alone:
            asked = NodesAsked(serial=len(self.questions), topic=topic)
            self.reactor.call_later(0, lambda: self.watch.on_nodes_asked(asked))

    def answer_nodes(self, serial, data):
        super().answer_nodes(serial, data)
        if self.alone:
            data = encoded_conclusion(concluded({"n3": data}))
            self.reactor.call_later(
                0, lambda: self.watch.on_concluded(Concluded(serial=serial, topic=HANG_TOPIC, data=data))
            )

    def call_later(self, delay_s, call):
        if threading.current_thread() is threading.main_thread():
            return self.reactor.call_later(delay_s, call)
        return self.reactor.post(call)

    def workers(self):
        return tuple(
            RunningWorker(local_rank=rank, global_rank=4 + rank, pid=pid)
            for rank, pid in self.pids.items()
            if rank in self.alive
        )


class NoSnapshots:
    """The scripts here don't use torch."""

    def __init__(self, run):
        self.run = run

    def take_later(self, on_taken, *, ranks, dump):
        self.run.call_later(0.0, lambda: on_taken({}))


class Watched:
    """Workers that beat when they are told to."""

    def __init__(self, folder, argv, count, nodes, hang_s=HANG_S, **given):
        self.reactor = Reactor()
        self.folder = folder
        self.handle = Run(self.reactor, folder)
        self.notices, self.reports = self.handle.notices, self.handle.reports
        self.files, self.closed = BeatFiles(), threading.Event()
        collector = StackCollector(self.handle, self.files, closed=self.closed)
        self.handle.alone = nodes == 1
        self.watch = self.handle.watch = HangWatch(
            self.handle, hang_s, 0.0, files=self.files, collector=collector, snapshots=NoSnapshots(self.handle), **given
        )
        self.workers = {}
        for rank, file in self.files.renew(count).items():
            hooks = {"ELASTIC_WORKER_HOOKS": "1", "ELASTIC_STARTUP": ",".join(STARTUP)}
            env = {**os.environ, FILE_VARIABLE: file, "ELASTIC_ROUND": "0", **hooks}
            self.workers[rank] = subprocess.Popen(
                argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True
            )
        for rank in self.workers:
            self.beat(rank)
        self.handle.pids = {rank: worker.pid for rank, worker in self.workers.items()}
        self.handle.alive = set(self.workers)
        round_ = replace(ROUND, node_count=nodes, node_id="n3")
        self.watch.on_workers_started(WorkersStarted(round=round_, pids=tuple(self.handle.pids.values())))

    def beat(self, rank):
        self.workers[rank].stdin.write("\n")
        self.workers[rank].stdin.flush()
        self.workers[rank].stdout.readline()

    def step_of(self, rank):
        return self.files.read()[rank].step

    def run(self, seconds, *, beating=(), until=None):
        end_s = self.reactor.now_s() + (seconds if until is None else patience(seconds))
        while self.reactor.now_s() < end_s and not (until and until()):
            for rank in beating:
                self.beat(rank)
            self.reactor.turn(0.02)

    def end(self):
        self.watch.on_workers_stopping(WorkersStopping(round_index=3, reason="enough", grace_s=1.0))

    def close(self):
        self.end()
        self.closed.set()
        for thread in [each for each in threading.enumerate() if each.name == "elastic-stacks"]:
            thread.join(10)
        self.files.close()
        self.reactor.close()
        for worker in self.workers.values():
            with suppress(ProcessLookupError):
                os.killpg(worker.pid, 9)
            worker.wait()
            worker.stdin.close()
            worker.stdout.close()


@pytest.fixture
def start(tmp_path):
    made = []

    def make(count=2, argv=(sys.executable, "-c", BEATS), nodes=1, **given):
        made.append(Watched(tmp_path, argv, count, nodes, **given))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_rank_that_goes_on_after_a_warning_is_told_and_no_hang(start):
    it = start()
    it.run(30, beating=[0], until=lambda: it.notices)
    it.run(30, beating=[0, 1], until=lambda: len(it.notices) == 2)
    assert "rank 5 has not reached step" in it.notices[0]
    assert it.notices[1] == "all ranks make progress again"
    assert it.reports == []
    assert os.listdir(it.folder / "hang") == ["round_3_1"]


def test_hang_is_told_again_until_somebody_stops_the_workers(start):
    it = start(1)
    it.run(30, until=lambda: len(it.reports) == 2)
    first, second = it.reports
    assert [[fault.local_rank for fault in each.workers] for each in it.reports] == [[0], [0]]
    assert second.workers[0].quiet_s >= first.workers[0].quiet_s + HANG_S - 0.01
    assert first.fields["hang"]["ranks"][0]["global_rank"] == 4
    assert len(it.notices) == 1
    it.end()
    it.run(1.5 * HANG_S)
    assert len(it.reports) == 2


def test_warnings_end_when_they_become_a_habit(start):
    it = start(1)
    while not it.notices or NO_MORE not in it.notices[-1]:
        count = len(it.notices)
        it.run(30, until=lambda: len(it.notices) > count)  # noqa: B023  # called at once
        it.beat(0)
        it.run(30, until=lambda: len(it.notices) > count + 1)  # noqa: B023  # called at once
    assert len(it.notices) == 2 * MAX_WARNINGS
    it.run(0.8 * HANG_S)
    it.beat(0)
    it.run(0.4 * HANG_S)
    assert len(it.notices) == 2 * MAX_WARNINGS
    it.run(30, until=lambda: it.reports)
    assert len(it.reports) == 1


def test_ended_worker_is_not_missed(start):
    it = start()
    it.workers[1].stdin.close()
    it.workers[1].wait()
    it.handle.alive.remove(1)
    exit = WorkerExit(local_rank=1, global_rank=5, pid=it.workers[1].pid, code=0, at_s=0.0, at_ns=0, runtime_s=1.0)
    it.watch.on_worker_exited(WorkerEnded(round_index=3, exit=exit))
    it.run(2 * HANG_S, beating=[0])
    assert (it.notices, it.reports) == ([], [])


def test_nothing_is_told_after_the_end(start):
    it = start(1)
    it.run(30, until=lambda: it.watch._collector.busy)
    it.end()
    it.run(2 * HANG_S)
    assert (it.notices, it.reports) == ([], [])


# --- with other nodes


def asked(it, serial):
    it.watch.on_nodes_asked(NodesAsked(serial=serial, topic=HANG_TOPIC))


def conclude(it, serial, attribution=None, **given):
    conclusion = Conclusion(
        token=given.pop("token", ROUND.token),
        reporter=given.pop("reporter", ""),
        disputed=given.pop("disputed", ""),
        steps=RunSteps(node_count=2, **given),
        attribution=attribution or Attribution(cause=Cause.UNKNOWN),
    )
    it.watch.on_concluded(Concluded(serial=serial, topic=HANG_TOPIC, data=encoded_conclusion(conclusion)))


def test_question_of_another_node_is_answered_and_stacks_are_written_though_all_is_well(start):
    it = start(nodes=2, hang_s=600.0)
    it.beat(0)
    asked(it, 7)
    it.run(60, beating=[1], until=lambda: it.handle.answers)
    ((serial, data),) = it.handle.answers
    told = decoded_response(data)
    assert (serial, told.token, told.node_count) == (7, ROUND.token, 2)
    assert (told.steps.node_id, told.steps.ranks, told.steps.max_step) == ("n3", (4, 5), it.step_of(1))
    assert [(one.global_rank, one.step) for one in told.steps.behind] == [(4, 2)]
    conclude(it, 7)
    it.run(60, beating=[0, 1], until=lambda: (it.folder / "hang/round_3_1/rank_5.txt").exists())
    assert 'File "<string>"' in (it.folder / "hang/round_3_1/rank_4.txt").read_text()
    assert (it.notices, it.reports, it.handle.questions) == ([], [], [])


def test_who_stands_still_asks_first_and_names_those_who_are_behind_elsewhere(start):
    it = start(nodes=2)
    it.run(30, until=lambda: it.handle.questions)
    assert it.notices == []
    asked(it, 1)
    behind = (RankStep(global_rank=9, step=0, node_id="n4"),)
    conclude(it, 1, max_step=1, min_step=0, behind=behind, quiet_s=0.1)
    it.run(30, until=lambda: it.notices)
    assert "; waiting for rank 9 on n4: step 1 not reached (at 0); stacks: " in it.notices[0]
    assert it.handle.questions == [HANG_TOPIC]
    it.run(30, until=lambda: it.reports)


def test_section_that_is_open_elsewhere_is_waited_for_and_nothing_is_said(start):
    it = start(nodes=2)
    it.run(30, until=lambda: it.handle.questions)
    asked(it, 1)
    conclude(it, 1, protected_s=60.0)
    it.run(3 * HANG_S)
    assert (it.notices, it.reports, it.handle.questions) == ([], [], [HANG_TOPIC])


def test_nodes_that_do_not_answer_are_not_waited_for(start):
    it = start(nodes=2)
    it.run(30, until=lambda: it.reports)
    assert "rank" in it.notices[0]
    assert [fault.local_rank for fault in it.reports[0].workers] == [0, 1]


def test_shell_around_the_script_is_judged_by_its_beats_until_that_ends_and_by_output_then(start):
    command = f"{sys.executable} -c '{BEATS}'; while read line; do echo $line; done"
    it = start(
        1, argv=("/bin/bash", "-c", command.replace("for line in sys.stdin", "for line in [sys.stdin.readline()]"))
    )
    # The first program has ended after its beat; the shell answers, and nobody waits for another beat.
    it.run(3 * HANG_S, beating=[0])
    assert (it.notices, it.reports) == ([], [])
    it.run(30, until=lambda: it.reports)
    assert "nothing written or read" in it.reports[0].summary


class TestWatchWithALimit(AgentHookConformance):
    @pytest.fixture
    def make_hook(self):
        hooks = []

        def make(run_dir):
            options = {"hang_timeout": 20.0, "startup_timeout": 30.0, "on_hang": "fail"}
            options |= {"on_straggler": "off", "straggler_interval": 30.0}
            hooks.append(Watch(HookSettings(name="watch", run_dir=run_dir, options=options)))
            return hooks[-1]

        yield make
        for hook in hooks:
            hook.close()
