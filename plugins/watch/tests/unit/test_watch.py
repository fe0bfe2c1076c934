"""The hook that is on in every run: what workers get, what others may know of them, and stacks as a round ends."""

import json
import os
import shutil
import subprocess
import sys
import threading

import pytest

from elastic_core.api import AgentStarted, ConfigError, HookSettings, RunningWorker, WorkersStarting
from elastic_plugin_kit import AgentHookConformance, FakeRun, sample_round
from elastic_watch import beat_layout as layout
from elastic_watch.beat_file import BeatFile
from elastic_watch.hook import STARTUP, Watch
from support import wait_for

OFF = {"hang_timeout": 0.0, "startup_timeout": 0.0, "on_straggler": "off", "straggler_interval": 30.0}
DUMP = b"""Current thread 0x00007f2a3b4c5d6e (most recent call first):
  File "/code/train.py", line 7 in step
  File "/code/train.py", line 9 in <module>
"""


class Node:
    """The hook, with two workers that are this process."""

    def __init__(self):
        self.hook = Watch(HookSettings(name="watch", options=OFF))
        self.run = self.hook.run = FakeRun(
            tuple(RunningWorker(local_rank=rank, global_rank=4 + rank, pid=os.getpid()) for rank in (0, 1))
        )
        self.hook.on_agent_started(AgentStarted(run_id="r", node_id="n", run_dir="", pid=1))

    def starts(self, index=0, **event):
        round_ = sample_round(local_world_size=2, index=index)
        return self.hook.on_workers_starting(WorkersStarting(round=round_, restart_count=0, **event))

    def asked(self, name, **parameters):
        return json.loads(self.run.offered[name](parameters).content)["workers"]


@pytest.fixture
def node(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    made = Node()
    yield made
    made.hook.close()


def test_workers_get_memory_to_beat_into_and_offer_their_stacks(node):
    changes = node.starts().workers
    assert [change.startup for change in changes.values()] == [STARTUP] * 2
    (first,), (second,) = (change.environment.values() for change in changes.values())
    assert first != second
    assert (node.starts(dry_run=True), node.starts(asked_again=True)) == (None, None)


def test_what_is_known_of_heartbeats_is_offered_to_others(node):
    assert (node.asked("heartbeats"), node.run.furthest_step()) == ({}, None)
    node.starts()
    words = node.hook._files.get(1)._words
    words[layout.OWNER] = os.getpid()
    assert node.asked("heartbeats") == {"1": {"pid": os.getpid(), "age_s": None, "step": None, "sections": []}}
    words[layout.BEAT_NS], words[layout.STEP] = 1, 52
    (told,) = node.asked("heartbeats").values()
    assert (told["age_s"] > 0, told["step"], node.run.furthest_step()) == (True, 52, 52)


def test_others_find_the_times_of_steps(node):
    assert node.asked("heartbeats-progress", above="3") == {}
    node.starts()
    assert node.asked("heartbeats-progress", above="41") == {}
    words = node.hook._files.get(1)._words
    assert words[layout.HIGH] == 41
    written = {
        layout.ALIVE_NS: 1_500_000_000, layout.FIRST: 40, layout.FIRST_NS: 2 * 10**9, layout.STEP: 44,
        layout.TIMES_AT + 44: 9 * 10**9, layout.ABOVE_NS: 4 * 10**9, layout.ABOVE_OF: 41,
    }  # fmt: skip
    for word, value in written.items():
        words[word] = value
    expected = {
        "alive_s": 1.5, "first_step": 40, "first_step_s": 2.0, "step": 44, "step_s": 9.0, "above_s": 4.0,
        "marks": [], "marks_dropped": 0,
    }  # fmt: skip
    assert node.asked("heartbeats-progress") == {"1": expected}
    assert node.asked("heartbeats-progress", above="42") == {"1": expected | {"above_s": None}}
    for text in ("x", "-2", str(1 << 63)):
        with pytest.raises(ConfigError, match=r"above: '.*'; expected a step, or -1 for none"):
            node.asked("heartbeats-progress", above=text)
    node.starts(asked_again=True)
    assert node.asked("heartbeats-progress")["1"]["step"] == 44
    node.starts(1)
    assert node.asked("heartbeats-progress") == node.asked("heartbeats-progress", round="1") == {}
    assert node.asked("heartbeats-progress", round="0") == {"1": expected | {"above_s": None}}
    assert node.asked("heartbeats-progress", round="2") == {}
    with pytest.raises(ConfigError, match="round: '-1'; expected the number of a round"):
        node.asked("heartbeats-progress", round="-1")


def test_without_memory_workers_start_all_the_same_and_a_line_says_so(node, monkeypatch):
    def refused(*args):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refused)
    assert node.starts() is None
    assert node.run.notices == [
        "heartbeats can't be taken ([Errno 24] Too many open files); workers are judged by their output"
    ]
    assert (node.asked("heartbeats"), node.asked("stacks")) == ({}, {})


def test_a_round_that_ends_while_stacks_are_taken_costs_those_that_have_not_come(node, monkeypatch):
    """A hang was noticed, and another node had the run start again within the second that an answer may take."""
    asked = []
    monkeypatch.setattr(BeatFile, "ask_for_stacks", lambda *_: asked.append(1) or True)
    path = node.starts().workers[0].environment[layout.FILE_VARIABLE]
    taken = []
    node.hook._collector().take_later(taken.append)
    wait_for(lambda: len(asked) == 2)  # from here on, what is written answers the question
    with open(path, "ab", buffering=0) as file:
        file.write(DUMP)
    node.starts()  # the next round's
    wait_for(lambda: node.run.timers)
    node.run.pass_time(0)
    (found,) = taken
    assert list(found) == [0]
    assert found[0].frames[-1][:3] == ("/code/train.py", 7, "step")


def test_others_ask_for_stacks_of_some_workers(node, monkeypatch):
    def answers(file, pid):
        os.pwrite(file.fd, DUMP, file.stacks_end)
        return True

    monkeypatch.setattr(BeatFile, "ask_for_stacks", answers)
    node.starts()
    stack = node.asked("stacks", ranks="1")["1"]
    assert (stack["source"], stack["place"], stack["text"]) == ("faulthandler", "train.py:7", DUMP.decode())
    assert list(node.asked("stacks")) == ["0", "1"]
    with pytest.raises(ConfigError, match="ranks: 'x'; expected local ranks, such as 0,2"):
        node.asked("stacks", ranks="x")


def test_a_handler_that_pauses_while_it_writes_is_waited_for(node, monkeypatch):
    half, looks = len(DUMP) // 2, []
    read = BeatFile.stacks

    def asked(file, _):
        os.pwrite(file.fd, DUMP[:half], file.stacks_end)
        return True

    def seen(file, begin):
        text = read(file, begin)
        looks.append(text)
        if len(looks) == 3:
            os.pwrite(file.fd, DUMP[half:] + layout.STACKS_WHOLE, file.stacks_end)
        return text

    monkeypatch.setattr("elastic_watch.stacks._ANSWER_S", 3600.0)  # it has begun
    monkeypatch.setattr(BeatFile, "ask_handler_for_stacks", asked)
    monkeypatch.setattr(BeatFile, "stacks", seen)
    node.starts()
    found = node.hook._collector().take([0])[0]
    assert looks == [DUMP[:half].decode()] * 3 + [DUMP.decode() + layout.STACKS_WHOLE.decode()]
    assert found.text == DUMP.decode()
    assert found.frames[-1][:3] == ("/code/train.py", 7, "step")


def test_the_end_of_the_run_ends_what_is_under_way(node, monkeypatch):
    monkeypatch.setattr(BeatFile, "ask_for_stacks", lambda *_: True)
    monkeypatch.setattr("elastic_watch.stacks._ANSWER_S", 3600.0)
    node.starts()
    before = threading.enumerate()  # that of another test may be about to end
    node.hook._collector().take_later(lambda stacks: None)
    (thread,) = (each for each in threading.enumerate() if each.name == "elastic-stacks" and each not in before)
    node.hook.close()
    thread.join(10)
    assert not thread.is_alive()


class TestWatch(AgentHookConformance):
    @pytest.fixture
    def make_hook(self):
        hooks = []

        def make(run_dir):
            hooks.append(Watch(HookSettings(name="watch", run_dir=run_dir, options=OFF)))
            return hooks[-1]

        yield make
        for hook in hooks:
            hook.close()


LOADS = """
import sys
from elastic_core.api import AgentStarted, HookSettings
from elastic_plugin_kit import FakeRun
from elastic_watch.hook import Watch
hook = Watch(HookSettings(name="watch", options={"hang_timeout": 0.0, "startup_timeout": 0.0, "on_straggler": "note",
    "straggler_interval": 30.0}))
hook.run = FakeRun()
hook.on_agent_started(AgentStarted(run_id="r", node_id="n", run_dir="", pid=1))
before = set(sys.modules)
hook.run.offered["heartbeats-progress"]({})
print(*sorted(set(sys.modules) - before))
hook.close()
"""


def test_the_progress_which_is_read_as_a_run_ends_loads_nothing_of_the_stacks():
    loaded = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == ["elastic_watch.progress_answers"]
