"""The watch over real processes, without an agent around it."""

import os
import subprocess
import sys
from contextlib import suppress

import pytest
from msgspec.structs import replace

from elastic_core.agent.watch.hang_detector import Limits
from elastic_core.agent.watch.hang_watch import MAX_WARNINGS, NO_MORE, HangWatch
from elastic_core.processes.spec import WorkerLaunch
from elastic_core.reactor import Reactor
from elastic_core.types import RankStep, Round, RunSteps
from support import wait_for

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


class Watched:
    """Workers that beat when they are told to."""

    def __init__(self, folder, argv, count, peers=None):
        self.peers = peers
        self.reactor = Reactor()
        self.notices, self.reports, self.folder = [], [], folder
        self.watch = HangWatch(
            self.reactor,
            limits=Limits(hang_s=HANG_S),
            folder=folder / "hang",
            notice=self.notices.append,
            on_hang=self.reports.append,
            peers=peers,
        )
        files = self.watch.open(range(count), ROUND if peers is None else replace(ROUND, node_count=2, node_id="n3"))
        self.workers = {}
        for rank, file in files.items():
            env = {**os.environ, "ELASTIC_BEAT_FILE": file, "ELASTIC_WORKER_HOOKS": "1"}
            self.workers[rank] = subprocess.Popen(
                argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True
            )
        launches = [WorkerLaunch(local_rank=n, global_rank=4 + n, argv=tuple(argv), env={}) for n in range(count)]
        for rank in self.workers:
            self.beat(rank)
        self.watch.begin(launches, {rank: worker.pid for rank, worker in self.workers.items()})

    def beat(self, rank):
        self.workers[rank].stdin.write("\n")
        self.workers[rank].stdin.flush()
        self.workers[rank].stdout.readline()

    def run(self, seconds, *, beating=(), until=lambda: False):
        end_s = self.reactor.now_s() + seconds
        while self.reactor.now_s() < end_s and not until():
            for rank in beating:
                self.beat(rank)
            self.reactor.turn(0.02)

    def close(self):
        self.watch.close()
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

    def make(count=2, argv=(sys.executable, "-c", BEATS), peers=None):
        made.append(Watched(tmp_path, argv, count, peers))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_rank_that_goes_on_after_a_warning_is_told_and_no_hang(start):
    it = start()
    it.run(5, beating=[0], until=lambda: it.notices)
    it.run(5, beating=[0, 1], until=lambda: len(it.notices) == 2)
    assert "rank 5 has not reached step" in it.notices[0]
    assert it.notices[1] == "no rank stands still any more"
    assert it.reports == []
    assert os.listdir(it.folder / "hang") == ["round_3_1"]


def test_hang_is_told_again_until_somebody_stops_the_workers(start):
    it = start(1)
    it.run(10, until=lambda: len(it.reports) == 2)
    first, second = it.reports
    assert [each.blamed for each in it.reports] == [(0,), (0,)]
    assert second.stall.late[0].quiet_s >= first.stall.late[0].quiet_s + HANG_S - 0.01
    assert first.ranks[0].global_rank == 4
    assert len(it.notices) == 1
    it.watch.end()
    it.run(1.5 * HANG_S)
    assert len(it.reports) == 2


def test_warnings_end_when_they_become_a_habit(start):
    it = start(1)
    while not it.notices or NO_MORE not in it.notices[-1]:
        count = len(it.notices)
        it.run(5, until=lambda: len(it.notices) > count)  # noqa: B023  # called at once
        it.beat(0)
        it.run(5, until=lambda: len(it.notices) > count + 1)  # noqa: B023  # called at once
    assert len(it.notices) == 2 * MAX_WARNINGS
    it.run(0.8 * HANG_S)
    it.beat(0)
    it.run(0.4 * HANG_S)
    assert len(it.notices) == 2 * MAX_WARNINGS
    it.run(5, until=lambda: it.reports)
    assert len(it.reports) == 1


def test_ended_worker_is_not_missed(start):
    it = start()
    it.workers[1].stdin.close()
    it.workers[1].wait()
    it.watch.ended(1)
    it.run(2 * HANG_S, beating=[0])
    assert (it.notices, it.reports) == ([], [])


def test_nothing_is_told_after_the_end(start):
    it = start(1)
    it.run(5, until=lambda: it.watch.helpers() or it.watch._request is not None)
    it.watch.end()
    it.run(2 * HANG_S)
    assert (it.notices, it.reports) == ([], [])


# --- with other nodes


class Peers:
    """Hears what this node asks and says."""

    def __init__(self):
        self.asked, self.told = 0, []

    def ask_steps(self):
        self.asked += 1

    def report_steps(self, steps):
        self.told.append(steps)


def test_question_of_another_node_is_answered_and_stacks_are_written_though_all_is_well(start):
    it = start(peers=Peers())
    it.beat(0)
    it.watch.tell_steps(7)
    (told,) = it.peers.told
    assert (told.serial, told.node_id, told.ranks, told.max_step, told.min_step) == (7, "n3", (4, 5), 2, 1)
    assert [(one.global_rank, one.step) for one in told.behind] == [(5, 1)]
    it.run(5, beating=[0, 1], until=lambda: (it.folder / "hang/round_3_1/rank_5.txt").exists())
    assert 'File "<string>"' in (it.folder / "hang/round_3_1/rank_4.txt").read_text()
    assert (it.notices, it.reports, it.peers.asked) == ([], [], 0)


def test_who_stands_still_asks_first_and_names_those_who_are_behind_elsewhere(start):
    it = start(peers=Peers())
    it.run(5, until=lambda: it.peers.asked)
    assert it.notices == []
    it.watch.tell_steps(1)
    behind = (RankStep(global_rank=9, step=0, node_id="n4"),)
    it.watch.hear_steps(RunSteps(serial=1, node_count=2, max_step=1, min_step=0, behind=behind, quiet_s=0.1))
    it.run(5, until=lambda: it.notices)
    assert "; waiting for rank 9 on n4: step 1 not reached (at 0); stacks: " in it.notices[0]
    it.run(10, until=lambda: it.reports)
    assert it.peers.asked == 1


def test_section_that_is_open_elsewhere_is_waited_for_and_nothing_is_said(start):
    it = start(peers=Peers())
    it.run(5, until=lambda: it.peers.asked)
    it.watch.hear_steps(RunSteps(serial=1, node_count=2, protected_s=60.0))
    it.run(3 * HANG_S)
    assert (it.notices, it.reports, it.peers.asked) == ([], [], 1)


def test_nodes_that_do_not_answer_are_not_waited_for(start):
    it = start(peers=Peers())
    it.run(10, until=lambda: it.reports)
    assert "rank" in it.notices[0]
    assert it.reports[0].blamed == (0, 1)


def test_shell_around_the_script_is_judged_by_its_beats_until_that_ends_and_by_output_then(start):
    command = f"{sys.executable} -c '{BEATS}'; while read line; do echo $line; done"
    it = start(
        1, argv=("/bin/bash", "-c", command.replace("for line in sys.stdin", "for line in [sys.stdin.readline()]"))
    )
    # The first program has ended after its beat; the shell answers, and nobody waits for another beat.
    it.run(3 * HANG_S, beating=[0])
    assert (it.notices, it.reports) == ([], [])
    it.run(5, until=lambda: it.reports)
    assert not it.reports[0].stall.by_beats


def test_memory_is_given_back(start):
    before = set(os.listdir("/proc/self/fd"))
    it = start()
    it.watch.close()
    assert not [fd for fd in set(os.listdir("/proc/self/fd")) - before if "elastic-beats" in _target(fd)]
    wait_for(lambda: not it.watch.helpers())


def _target(fd):
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{fd}")
    return ""
