"""Stacks of workers whose round ends while they are being taken, and the steps of workers."""

import os
import shutil
from contextlib import closing
from types import SimpleNamespace

import pytest

from elastic_core.agent.watch.beat_file import BeatFile, BeatFiles
from elastic_core.launcher.worker_watch import Heartbeats, WorkerStacks
from elastic_core.processes import beat_layout
from elastic_core.reactor import Reactor
from elastic_core.reports import Answer
from support import wait_for

DUMP = b"""Current thread 0x00007f2a3b4c5d6e (most recent call first):
  File "/code/train.py", line 7 in step
  File "/code/train.py", line 9 in <module>
"""


def test_a_round_that_ends_while_stacks_are_taken_costs_those_that_have_not_come(monkeypatch):
    """A hang was noticed, and another node had the run start again within the second that an answer may take."""
    monkeypatch.setattr(BeatFile, "ask_for_stacks", lambda *_: True)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    workers = SimpleNamespace(pids={0: os.getpid(), 1: os.getpid()}, alive={0, 1})
    with closing(Reactor()) as reactor, closing(BeatFiles()) as files:
        files.open([0, 1])
        stacks = WorkerStacks(reactor, workers=lambda: workers, beat_file=files.get)
        taken = []
        stacks.take(taken.append)
        with open(files.get(0).path, "ab", buffering=0) as file:
            file.write(DUMP)
        stacks.end_round()
        files.open([0, 1])  # the next round's
        wait_for(lambda: reactor.turn(0.05) or taken)
        ended = []
        reactor.call_later(1.2, lambda: ended.append(True))  # longer than an answer is waited for
        wait_for(lambda: reactor.turn(0.05) or ended)
    (found,) = taken
    assert list(found) == [0]
    assert found[0].frames[-1][:3] == ("/code/train.py", 7, "step")


def refuses(parameters):
    raise ValueError("no pages")


@pytest.mark.parametrize(
    ("content", "beat", "step"),
    [
        ('{"asks": true, "steps": 12, "step": 52}', None, 52),
        ('{"asks": true, "steps": 12, "step": 52}', 7, 7),  # the script's own word
        ('{"asks": false, "steps": null, "step": null}', None, None),
        ('{"step": "far"}', None, None),
        (None, None, None),
    ],
)
def test_the_step_of_a_worker_is_that_of_its_heartbeats_or_of_should_stop(content, beat, step):
    answer = refuses if content is None else lambda parameters: Answer(content=content)
    with closing(Heartbeats(for_hooks=beat is not None, for_policy=False, notice=print)) as beats:
        if beat is not None:
            beats.files.open([0])
            beats.file(0)._words[beat_layout.STEP] = beat
        assert beats.progress({"planned-stops": answer}) == step
        assert beats.progress({}) == beat
