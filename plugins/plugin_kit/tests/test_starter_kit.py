"""The kit for starters of workers: a sound one passes, a broken one fails where its defect is named."""

import os
import subprocess
import threading
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

from elastic_core.api.starters import StartedProcess, WorkerStarter
from elastic_core.api.workers import bound_to
from elastic_plugin_kit import WorkerStarterConformance
from elastic_plugin_kit.conformance.starter import Agent
from elastic_plugin_kit.real_loop import RealLoop


class Plain(WorkerStarter):
    """Starts each worker that does not keep the terminal, as the core would."""

    session = True

    def __init__(self, loop):
        self.loop = loop

    def environment(self, worker):
        return dict(worker.environment)

    def argv(self, worker):
        return worker.argv

    def processors(self, worker):
        return worker.processors

    def streams(self, worker):
        return worker.stdout, worker.stderr

    def start(self, worker):
        if worker.terminal and self.session:
            return None
        out, err = self.streams(worker)
        with bound_to(self.processors(worker)):
            child = subprocess.Popen(
                self.argv(worker),
                env=self.environment(worker),
                stdout=out,
                stderr=err,
                start_new_session=self.session,
            )
        child.returncode = 0
        return StartedProcess(pid=child.pid)


class TestPlain(WorkerStarterConformance):
    @pytest.fixture
    def make_starter(self):
        return Plain


class StartsNothing(Plain):
    def start(self, worker):
        return None


class AddsAVariable(Plain):
    def environment(self, worker):
        return {**worker.environment, "MORE": "1"}


class ForgetsTheMark(Plain):
    def environment(self, worker):
        return {name: value for name, value in worker.environment.items() if name != "ELASTIC_INCARNATION"}


class StaysInTheSession(Plain):
    session = False


class AlwaysLeavesTheSession(Plain):
    def start(self, worker):
        return super().start(worker.__class__(**{
            **{name: getattr(worker, name) for name in worker.__struct_fields__}, "terminal": False
        }))  # fmt: skip


class KeepsAStream(Plain):
    def streams(self, worker):
        self.kept = os.dup(worker.stderr)
        return worker.stdout, worker.stderr

    def close(self):
        os.close(self.kept)


class WritesElsewhere(Plain):
    def streams(self, worker):
        return worker.stdout, subprocess.DEVNULL


class RunsAnywhere(Plain):
    def processors(self, worker):
        return None


class LosesTheCode(Plain):
    def start(self, worker):
        started = super().start(worker)

        def reap():
            pid, _ = os.waitpid(started.pid, os.WNOHANG)
            return 1 if pid else None

        return started and StartedProcess(pid=started.pid, reap=reap)


class TakesItsTime(Plain):
    def start(self, worker):
        threading.Event().wait(2.2)
        return super().start(worker)


class LeavesAHelper(Plain):
    def __init__(self, loop):
        super().__init__(loop)
        self.helper = subprocess.Popen(["sleep", "600"], start_new_session=True)

    def pids(self):
        return {self.helper.pid}


class LeaksAPipe(Plain):
    def start(self, worker):
        self.leaked = os.pipe()
        return super().start(worker)


class ClosesTooLate(LeaksAPipe):
    def close(self):
        for fd in self.leaked:
            self.loop.post(partial(os.close, fd))
        super().close()


class ClosesForeignOnes(Plain):
    """Closes what was there before it: the newest descriptor of no file."""

    def __init__(self, loop):
        super().__init__(loop)
        links = {int(path.name): path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
        self.foreign = max(fd for fd, link in links.items() if str(link) == os.devnull)

    def close(self):
        with suppress(OSError):
            os.close(self.foreign)
        super().close()


BROKEN = [
    (StartsNothing, "the_worker_is_the_one_that_was_asked_for", "`start` returned None"),
    (AddsAVariable, "the_worker_is_the_one_that_was_asked_for", "another environment"),
    (ForgetsTheMark, "the_sweep_finds_what_it_leaves", "without ELASTIC_INCARNATION"),
    (StaysInTheSession, "it_leads_a_session", "leads no session"),
    (AlwaysLeavesTheSession, "one_that_keeps_the_terminal_stays_in_this_session", "left the terminal's session"),
    (KeepsAStream, "it_writes_to_its_streams_and_nobody_holds_them", "a process holds"),
    (WritesElsewhere, "it_writes_to_its_streams_and_nobody_holds_them", "is not in its stream"),
    (RunsAnywhere, "it_runs_on_its_processors", "other processors"),
    (LosesTheCode, "a_signal_ends_it_and_is_told", "expected -N after signal N"),
    (TakesItsTime, "every_call_is_quick", "`start` took"),
    (LeaksAPipe, "the_end_leaves_nothing", "left descriptors open"),
    (ClosesTooLate, "the_end_leaves_nothing", "left descriptors open"),
    (ClosesForeignOnes, "the_end_leaves_nothing", "a descriptor of its caller"),
    (LeavesAHelper, "the_end_leaves_nothing", "after `close`"),
]


@pytest.mark.parametrize(("cls", "name", "words"), BROKEN, ids=[cls.__name__ for cls, _, _ in BROKEN])
def test_a_broken_starter_fails_where_its_defect_is_named(cls, name, words, tmp_path):
    if cls is RunsAnywhere and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("there is one processor only")
    kit, made = WorkerStarterConformance(), []
    test = getattr(kit, f"test_{name}")

    def make(loop):
        made.append(cls(loop))
        return made[-1]

    with ExitStack() as stack:
        if name == "the_end_leaves_nothing":
            given = {"make_starter": make, "tmp_path": tmp_path}
        else:
            loop = RealLoop()
            agent = Agent(make(loop), loop, tmp_path)
            stack.callback(end, agent)
            given = {"agent": agent}
        with pytest.raises(AssertionError, match=words):
            test(**given)
        if isinstance(made[0], LeavesAHelper):
            made[0].helper.kill()
            made[0].helper.wait()


def end(agent):
    for worker in agent.workers:  # some lead no group that could be signalled
        os.kill(worker.started.pid, 9)
    agent.close()
