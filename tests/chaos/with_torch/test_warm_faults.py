"""A fault of one rank in the middle of each activity of a training: the run ends as one that was not disturbed.

Each cell of the matrix checks that no bit of the weights, of the optimizer and of the random state differs, that each
rank has committed each step once, that exactly the processes go on that should, and that none is left.
"""

import json
import os
import re
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from patience import patience
from support import wait_for

SCRIPT = Path(__file__).with_name("training_with_faults.py")
RANKS, STEPS = 3, 5
STEP = 3
"""The step of a fault."""
HOW = ("exception", "SIGKILL", "SIGSTOP")
ACTIVITIES = ("compute", "collective", "point-to-point", "save", "checkpoint", "data", "first-step")
EVERY_DAY = {("compute", "exception"), ("collective", "SIGKILL"), ("save", "SIGSTOP"), ("first-step", "SIGKILL")}
IMPORTS = "torch,torch.distributed,torch._dynamo,torch.utils.data"
"""The optimizer imports the compiler."""
WITHIN_S = 90.0


def fault(activity, how, *victims, round_=0, step=STEP, late=None, again=False):
    if activity == "first-step":
        activity, step = "collective", 1
    late = (victims[0] - 1) % RANKS if late is None else late
    named = {"round": round_, "step": step, "activity": activity, "how": how}
    return {**named, "victims": victims, "late": late, "again": again}


class Training:
    """A run of the training, whose ranks meet its faults."""

    def __init__(self, elastic, folder, short, *faults, options=()):
        self.folder, self.gates = folder, []
        for index in {each["round"] for each in faults}:
            for rank in range(RANKS):
                for name in ("fault", "asked"):
                    os.mkfifo(folder / f"{name}-gate.{index}.{rank}")
        if any(each["how"] == "SIGSTOP" for each in faults):
            options = (*options, "--hang-timeout", f"{patience(1):g}")  # in which all ranks are in their places
        self.agent = elastic(
            "--nproc-per-node", RANKS, "--omp-threads", 1, "--standby", "--standby-imports", IMPORTS,
            "--max-restarts", 8, "--restart-backoff", 0, "--timings", *options, SCRIPT, folder, json.dumps(faults),
            # Interpreters of their own, which can be killed; and room for names of the data loaders' sockets.
            env={"PYTHON_EXEC": sys.executable, "TMPDIR": short},
        )  # fmt: skip

    def close(self):
        for gate in self.gates:
            os.close(gate)

    def reached(self, part, fault, rank):
        """Wait until a rank is where it meets a fault; return its pid."""
        path = self.folder / f"{part}.{fault['round']}.{rank}"
        wait_for(path.exists, within_s=WITHIN_S, what=f"{path.name}\n{self.agent.err}")
        return int(path.read_text())

    def open(self, fault, rank, name="fault"):
        """Open a gate for good, whether or not the rank is there already."""
        self.gates.append(os.open(self.folder / f"{name}-gate.{fault['round']}.{rank}", os.O_RDWR))

    def meet(self, fault):
        """Wait until all ranks are in their places, have the fault hit its victims, and let the late rank go on."""
        pids = [self.reached("victim", fault, rank) for rank in fault["victims"]]
        others = {*range(RANKS)} - {*fault["victims"], fault["late"]}
        parts = [("late", fault["late"]), *(("other", rank) for rank in others)]
        if fault["activity"] == "data":
            parts += [("loader-of-victim", rank) for rank in fault["victims"]]
            parts += [("loader-of-other", rank) for rank in others]
        for part, rank in parts:
            self.reached(part, fault, rank)
        for pid in pids:
            wait_for(lambda pid=pid: state(pid) == "S", what="the victim to wait in its activity")
        if fault["how"] == "exception":
            for rank in fault["victims"]:
                self.open(fault, rank)
            if fault["activity"] == "collective":  # which would be completed by the victim's threads
                for pid in pids:
                    wait_for(lambda pid=pid: state(pid) in "ZX", within_s=WITHIN_S, what="the victim's end")
        else:
            self.at_once(pids, signal.Signals[fault["how"]])
        self.open(fault, fault["late"])

    def at_once(self, pids, signum):
        """Signal processes while the agent stands still, so that it sees all of it together."""
        self.agent.signal(signal.SIGSTOP)
        wait_for(lambda: state(self.agent.pid) == "T", what="the agent to stand still")
        for pid in pids:
            os.kill(pid, signum)
            wait_for(lambda pid=pid: state(pid) in "TZX", what=f"the effect of {signum!r}")
        self.agent.signal(signal.SIGCONT)

    def ends_as(self, undisturbed):
        assert self.agent.wait(WITHIN_S) == 0, self.agent.err
        assert self.agent.survivors() == []
        assert self.results() == undisturbed
        for rank in range(RANKS):
            committed = [int(words[3]) for words in self.log(rank) if words[2] == "commit"]
            assert committed == [*range(1, STEPS + 1)], f"rank {rank} has committed {committed}"

    def results(self):
        lines = [line for line in self.agent.lines() if "weights" in line]
        assert [line["step"] for line in lines] == [STEPS] * RANKS
        names = ("weights", "optimizer", "random")
        return {line["rank"]: [line[name] for name in names] for line in lines}

    def log(self, rank):
        return [line.split() for line in (self.folder / f"steps.{rank}").read_text().splitlines()]

    def kept(self, index):
        """Return the ranks whose process went on from the round before."""
        pids = [{int(words[0]): words[1] for words in self.log(rank)} for rank in range(RANKS)]
        found = {rank for rank in range(RANKS) if pids[rank][index] == pids[rank][index - 1]}
        spawns = re.findall(r"spawn \((?:(\d) of 3 kept)?", self.agent.err)
        assert int(spawns[index] or 0) == len(found), self.agent.err
        return found

    def begun(self, index):
        """Return with which step, and from where, a round began: the same on all ranks."""
        (begun,) = {
            (int(words[3]), words[4])
            for rank in range(RANKS)
            for words in self.log(rank)
            if (words[0], words[2]) == (str(index), "begin")
        }
        return begun


def state(pid):
    """Return the state of a process's main thread; `X` if there is none any more."""
    try:
        return Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


@pytest.fixture
def train(elastic, tmp_path):
    made = []

    def train(*faults, options=()):
        folder = tmp_path / f"training{len(made)}"
        folder.mkdir()
        made.append(Training(elastic, folder, short, *faults, options=options))
        return made[-1]

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as short:
        yield train
    for each in made:
        each.close()


_undisturbed = {}


@pytest.fixture
def undisturbed(train):
    """What each rank of a run without faults ends with. It runs once in a test process."""
    if not _undisturbed:
        run = train()
        assert run.agent.wait(WITHIN_S) == 0, run.agent.err
        _undisturbed.update(run.results())
    assert len({tuple(found[:2]) for found in _undisturbed.values()}) == 1
    assert len({found[2] for found in _undisturbed.values()}) == RANKS
    return _undisturbed


def cells():
    for activity in ACTIVITIES:
        for number, how in enumerate(HOW):
            for victim in (number % 2, 1 - number % 2):
                every_day = (activity, how) in EVERY_DAY and victim == number % 2
                marks = [pytest.mark.xdist_group("warm faults")] if every_day else [pytest.mark.chaos_full]
                yield pytest.param(activity, how, victim, marks=marks, id=f"{activity}-{how}-{victim}")


CAUSE = {
    "exception": "a fault of the matrix",
    "SIGKILL": "killed by SIGKILL",
    "SIGSTOP": "stopped by a signal",
}


@pytest.mark.parametrize(("activity", "how", "victim"), [*cells()])
@pytest.mark.timeout(600)
def test_a_fault_of_one_rank(train, undisturbed, activity, how, victim):
    met = fault(activity, how, victim)
    # The ranks agree on an exception in a Checkpointer, so all of them have it, and all start anew.
    all_fail = (activity, how) == ("checkpoint", "exception")
    run = train(met, options=("--warm-memory", 4) if all_fail else ())
    run.meet(met)
    run.ends_as(undisturbed)
    survivors = {*range(RANKS)} - {victim}
    if activity == "first-step":
        assert run.kept(1) == set()
        assert run.begun(1) == (0, "start")
        assert re.search("can't be kept, and starts? anew: it has not completed a step", run.agent.err)
    else:
        assert run.kept(1) == (set() if all_fail else survivors)
        assert run.begun(1) == (STEP - 1, "memory")
    (cause,) = re.findall(r"elastic: rank \d failed: (.*); restart 1 of 8 now", run.agent.err)
    assert CAUSE[how] in cause
    assert "restart 2 of 8" not in run.agent.err
    if activity == "save":
        assert (run.folder / f"saved.0.{met['late']}").exists(), "a save that has begun is completed"
        assert not (run.folder / f"saved.0.{victim}").exists()
        assert len([*run.folder.glob("saved.1.*")]) == RANKS


IN_MEMORY = ("--warm-memory", 4)
"""The commits of two lost ranks of three can be on no live rank."""


@pytest.mark.chaos_full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", HOW[1:])
def test_two_failures_at_once(train, undisturbed, how):
    met = fault("compute", how, 0, 1, late=2)
    run = train(met, options=IN_MEMORY)
    run.meet(met)
    run.ends_as(undisturbed)
    assert run.kept(1) == {2}
    assert run.begun(1) == (STEP - 1, "memory")
    assert "restart 2 of 8" not in run.agent.err


@pytest.mark.chaos_full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("second", ["the one that leaves", "one that has left"])
def test_a_failure_while_another_worker_leaves(train, undisturbed, second):
    met = fault("save", "SIGKILL", 1, again=True)
    run = train(met, options=(*IN_MEMORY, "--warm-timeout", 60, "--shutdown-timeout", 200))
    run.meet(met)
    run.reached("asked", met, 0)  # and completes its save first
    run.reached("over", met, 2)
    os.kill(run.reached("late", met, 0) if second == "the one that leaves" else run.reached("other", met, 2), 9)
    run.open(met, 0, "asked")
    run.ends_as(undisturbed)
    assert run.kept(1) == ({2} if second == "the one that leaves" else {0})
    assert run.begun(1) == (STEP - 1, "memory")
    assert "restart 2 of 8" not in run.agent.err


@pytest.mark.chaos_full
@pytest.mark.timeout(600)
def test_failures_in_the_first_step_of_a_round(train, undisturbed):
    faults = [fault("collective", "SIGKILL", 1, round_=index) for index in range(3)]
    run = train(*faults, options=IN_MEMORY)
    for met in faults:
        run.meet(met)
    run.ends_as(undisturbed)
    assert [run.kept(index) for index in (1, 2)] == [{0, 2}] * 2
    assert run.kept(3) == set(), "no step was complete in two rounds"
    assert "it has completed no step in 2 rounds" in run.agent.err
    assert [run.begun(index) for index in (1, 2, 3)] == [(STEP - 1, "memory")] * 3
    assert "restart 3 of 8" in run.agent.err


@pytest.mark.chaos_full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("activity", ["init", "sync"])
def test_a_fault_while_the_next_round_begins(train, undisturbed, activity, how, victim):
    """Rank 1 is new in that round, and the other two are kept."""
    faults = [fault("compute", "SIGKILL", 1), fault(activity, how, victim, round_=1, step=0)]
    run = train(*faults, options=IN_MEMORY)
    for met in faults:
        run.meet(met)
    run.ends_as(undisturbed)
    assert run.kept(1) == {0, 2}
    assert run.kept(2) == {0, 2} - {victim}
    assert run.begun(2) == (STEP - 1, "memory")
    assert "restart 3 of 8" not in run.agent.err
