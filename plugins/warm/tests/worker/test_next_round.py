"""What a kept process has in its next round: variables, streams, its error's file, heartbeats and planned stops."""

from elastic_train.worker_pages import WorkerPages
from elastic_watch.beat_file import BeatFiles
from fake_agent import WAIT_S, marked

COUNTS = """
import os, sys
import elastic_warm as warm
from threading import Event

@warm.rounds
def train():
    print("variables", os.environ.get("RANK"), os.environ.get("GONE"), os.environ.get("NEW"), flush=True)
    print("stderr", os.environ["ELASTIC_ROUND"], file=sys.stderr)
    warm.should_stop()
    if os.environ["ELASTIC_ROUND"] == "2":
        return
    sys.stdout.write("not flushed")
    print("waits", file=sys.stderr, flush=True)
    Event().wait(600)

train()
print("end")
"""


def test_variables_and_streams_are_those_of_the_next_round(agent):
    (worker,) = agent.begin(COUNTS, 1, GONE="there")
    marked(worker, 0, "waits", "err")
    agent.leave(worker, 0)
    worker.expect("left", round=0)
    agent.new_port()
    agent.place(worker, 1, 0, 1, GONE=None, NEW="new" * 100_000)
    worker.expect("entered", round=1)
    marked(worker, 1, "waits", "err")
    agent.leave(worker, 1, planned=True)
    worker.expect("left", round=1)
    agent.place(worker, 2, 0, 1)
    assert worker.process.wait(WAIT_S) == 0
    assert worker.lines(0) == ["variables 0 there None", "not flushed"]
    assert worker.lines(1) == [f"variables 0 None {'new' * 100_000}", "not flushed"]
    assert worker.lines(2) == [f"variables 0 None {'new' * 100_000}", "end"]
    assert [worker.lines(number, "err") for number in range(3)] == [
        ["stderr 0", "waits"],
        ["stderr 1", "waits"],
        ["stderr 2"],
    ]


FAILS = """
import os
import elastic_warm as warm
from threading import Event

@warm.rounds
def train():
    print("here", flush=True)
    if os.environ["ELASTIC_ROUND"] == "1":
        raise ValueError("of round 1")
    Event().wait(600)

train()
"""


def test_an_error_goes_to_the_file_of_its_round(agent):
    (worker,) = agent.begin(FAILS, 1, ELASTIC_WORKER_HOOKS="1", ELASTIC_FAULT_FILE=str(agent.folder / "fault.0"))
    marked(worker, 0, "here")
    agent.leave(worker, 0)
    worker.expect("left", round=0)
    agent.place(worker, 1, 0, 1, ELASTIC_FAULT_FILE=str(agent.folder / "fault.1"))
    assert worker.process.wait(WAIT_S) == 1
    assert not (agent.folder / "error.0.0.json").exists()
    assert "ValueError: of round 1" in (agent.folder / "error.0.1.json").read_text()
    assert (agent.folder / "fault.1").exists()


BEATS = """
import os
import elastic_train, elastic_warm as warm
from elastic_watch.beats import heartbeat, section
from threading import Event

@warm.rounds
def train():
    number = int(os.environ["ELASTIC_ROUND"])
    heartbeat(step=number * 10)
    elastic_train.should_stop(step=number * 10)
    with section("endless", limit_s=600):
        print("here", flush=True)
        Event().wait(600)

train()
"""


def test_heartbeats_and_planned_stops_are_those_of_the_next_round(agent):
    files, pages = BeatFiles(), WorkerPages(1, agent.folder, all_count=False)
    worker = None
    try:
        for number in range(3):
            if number:
                pages.renew()
            variables = {
                "TRAINING_BEAT_FILE": files.renew(1)[0],
                **pages.places()[0],
                "ELASTIC_STARTUP": "elastic_watch.stack_dumps:offer,elastic_watch.recorder_arming:arm"
                + ",elastic_train.next_round:begin" * bool(number),
            }
            if worker is not None:
                agent.place(worker, number, 0, 1, **variables)
            else:
                (worker,) = agent.begin(BEATS, 1, ELASTIC_WORKER_HOOKS="1", **variables)
            marked(worker, number, "here")
            beats = files.read()[0]
            assert (beats.owner, beats.step) == (worker.pid, number * 10)
            assert [section.name for section in beats.sections] == ["endless"]
            assert files.get(0).ask_for_stacks(worker.pid)
            assert (pages.furthest_step(), pages.looked_at()) == (number * 10, True)
            agent.leave(worker, number)
            worker.expect("left", round=number)
            assert not files.read()[0].sections
    finally:
        files.close()
        pages.close()
