"""The kit for starters that keep workers: a sound one passes, a broken one fails where its defect is named."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress

import pytest

from elastic_core.api.starters import WorkerStarter
from elastic_plugin_kit import WorkerKeeperConformance
from elastic_plugin_kit.conformance.starter import Agent
from elastic_plugin_kit.real_loop import RealLoop
from patience import patience

WORKER = """
import json, os, select, sys
to, place = f"{os.environ['KEEPER']}/to.{os.getpid()}", f"{os.environ['KEEPER']}/place.{os.getpid()}"
os.mkfifo(to)
print(json.dumps({"round": os.environ["ELASTIC_ROUND"], "pid": os.getpid()}), flush=True)
while True:
    with open(to) as file:
        orders = json.load(file)
    if not orders:
        with open(place, "w"):
            pass
        continue
    os.environ["ELASTIC_ROUND"] = orders["round"]
    out = os.open(orders["out"], os.O_WRONLY | os.O_APPEND)
    os.dup2(out, 1)
    os.close(out)
    print(json.dumps({"round": os.environ["ELASTIC_ROUND"], "pid": os.getpid()}), flush=True)
"""


class Keeps(WorkerStarter):
    """Keeps any worker that has made a pipe of its own. It looks for its answers on a timer."""

    def __init__(self, loop, folder):
        self.loop, self.folder = loop, folder
        self.kept = {}
        self.timers = []
        self.last = {}

    def tell(self, pid, orders):
        (self.folder / f"to.{pid}").write_text(json.dumps(orders))

    def later(self, call):
        self.timers.append(self.loop.call_later(0.01, call))

    def keep(self, worker, *, within_s, planned):
        self.tell(worker.process.pid, {})
        self.later(lambda: self.look(worker))
        return True

    def look(self, worker):
        answer = self.folder / f"place.{worker.process.pid}"
        if not answer.exists():
            self.later(lambda: self.look(worker))
            return
        answer.unlink()
        if worker.left():
            self.kept[worker.local_rank] = worker
            self.later(self.watch)

    def watch(self):
        for rank, worker in list(self.kept.items()):
            if os.waitpid(worker.process.pid, os.WNOHANG)[0]:
                del self.kept[rank]
                worker.ended()
        if self.kept:
            self.later(self.watch)

    def start(self, worker):
        before = self.last.get(worker.local_rank)
        self.last[worker.local_rank] = worker
        kept = self.kept.pop(worker.local_rank, None)
        if kept is None:
            return None
        if self.differs(before, worker):
            self.end(kept)
            return None
        self.give_place(kept, worker)
        return kept.process

    def differs(self, before, worker):
        changed = {name for name, _ in before.environment.items() ^ worker.environment.items()}
        return bool(changed - worker.round_variables)

    def give_place(self, kept, worker):
        out = f"/proc/{os.getpid()}/fd/{worker.stdout}"
        out = os.readlink(out)
        self.tell(kept.process.pid, {"round": worker.environment["ELASTIC_ROUND"], "out": out})

    def end(self, kept):
        os.kill(kept.process.pid, signal.SIGKILL)
        os.waitpid(kept.process.pid, 0)
        kept.ended()

    def close(self):
        for kept in self.kept.values():
            self.end(kept)
        self.kept.clear()
        for timer in self.timers:
            timer.cancel()


class Kit(WorkerKeeperConformance):
    def variables(self, starter):
        return {"KEEPER": str(starter.folder)}


class TestKeeps(Kit):
    @pytest.fixture
    def make_starter(self, tmp_path):
        return lambda loop: Keeps(loop, tmp_path)

    @pytest.fixture
    def command(self):
        return (sys.executable, "-c", WORKER)


class AsksNothing(Keeps):
    def keep(self, worker, *, within_s, planned):
        return False


class SaysItStays(Keeps):
    def look(self, worker):
        worker.stays()


class SaysItTwice(Keeps):
    def look(self, worker):
        super().look(worker)
        if worker.local_rank in self.kept:
            worker.left()


class GivesNoPlace(Keeps):
    def give_place(self, kept, worker):
        """Forgets it."""


class GivesAnother(Keeps):
    def start(self, worker):
        kept = super().start(worker)
        if kept is None:
            return None
        child = subprocess.Popen(
            worker.argv, env=worker.environment, stdout=worker.stdout, stderr=worker.stderr, start_new_session=True
        )
        child.returncode = 0
        self.other = kept.pid
        return kept.__class__(pid=child.pid)

    def close(self):
        super().close()
        with suppress(AttributeError, OSError):
            os.kill(self.other, signal.SIGKILL)
            os.waitpid(self.other, 0)


class TakesWhatIsNotItsOwn(Keeps):
    def look(self, worker):
        worker.left()
        self.kept[worker.local_rank] = worker

    def give_place(self, kept, worker):
        """It has ended."""


class ReapsNothing(Keeps):
    def watch(self):
        """Watches nothing."""


class IgnoresDifferences(Keeps):
    def differs(self, before, worker):
        return False


class EndsNothing(Keeps):
    def close(self):
        for timer in self.timers:
            timer.cancel()
        self.left, self.kept = {**getattr(self, "left", {}), **self.kept}, {}


class ReportsNoEnd(Keeps):
    def close(self):
        for kept in self.kept.values():
            os.kill(kept.process.pid, signal.SIGKILL)
            os.waitpid(kept.process.pid, 0)
        self.kept.clear()
        super().close()


NEXT = "a_worker_leaves_its_round_and_has_its_place_in_the_next"
BROKEN = [
    (AsksNothing, NEXT, "`keep` did not return True"),
    (SaysItStays, NEXT, "expected `left` once"),
    (SaysItTwice, NEXT, "expected `left` once"),
    (GivesNoPlace, NEXT, "the worker has reported no round"),
    (GivesAnother, NEXT, "`start` returned another process"),
    (TakesWhatIsNotItsOwn, "a_process_that_is_not_its_own_is_left_alone", "`left` had returned False"),
    (ReapsNothing, "a_kept_process_that_dies_is_reaped_and_reported_once", "of a process that died"),
    (IgnoresDifferences, "one_that_would_differ_has_no_place", "another KIT_SETTING"),
    (EndsNothing, "the_end_leaves_nothing", "after `close`"),
    (ReportsNoEnd, "the_end_leaves_nothing", "`ended` was not reported"),
]


@pytest.mark.parametrize(("cls", "name", "words"), BROKEN, ids=[cls.__name__ for cls, _, _ in BROKEN])
def test_a_broken_keeper_fails_where_its_defect_is_named(cls, name, words, tmp_path, monkeypatch):
    monkeypatch.setattr("elastic_plugin_kit.conformance.keeper.ENDED_S", patience(1.0))
    monkeypatch.setattr("elastic_plugin_kit.conformance.starter.END_S", patience(2.0))
    kit, made = Kit(), []
    given = {"command": (sys.executable, "-c", WORKER)}
    (tmp_path / "keeper").mkdir()

    def make(loop):
        made.append(cls(loop, tmp_path / "keeper"))
        return made[-1]

    with ExitStack() as stack:
        if name == "the_end_leaves_nothing":
            given |= {"make_starter": make, "tmp_path": tmp_path}
        else:
            loop = RealLoop()
            agent = Agent(make(loop), loop, tmp_path)
            stack.callback(end, agent)
            given |= {"agent": agent}
        with pytest.raises(AssertionError, match=words):
            getattr(kit, f"test_{name}")(**given)
        for kept in getattr(made[0], "left", {}).values():
            Keeps.end(made[0], kept)


def end(agent):
    kept = {worker.process.pid for worker in agent.starter.kept.values()}
    agent.workers = [worker for worker in agent.workers if worker.started.pid not in kept and alive(worker)]
    agent.close()


def alive(worker):
    with suppress(ProcessLookupError):
        os.kill(worker.started.pid, 0)
        return True
    return False
