"""The run's handle for tests: it checks what the agent's own checks, and makes calls as time passes."""

import math

import pytest

from elastic_core.api import FailureReport, RunningWorker
from elastic_core.api.feed import ChosenOption
from elastic_plugin_kit import FakeRun


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda run: run.report("gpu is sick"), "report: report: got 'gpu is sick'; expected a FailureReport"),
        (lambda run: run.report(FailureReport(summary="x", fields={"f": object()})), "that JSON can't hold"),
        (lambda run: run.publish({"a": object()}), "publish: fields: got values that JSON can't hold"),
        (lambda run: run.call_later("2s", print), "call_later: delay_s: got '2s'; expected a number of seconds"),
        (lambda run: run.call_every(0, print), "call_every: period_s: got 0; expected a number of seconds from 0.01"),
        (lambda run: run.ask_drain("", grace_s=math.nan), "ask_drain: grace_s: got nan"),
        (lambda run: run.answer_nodes(1, b"x" * 20_000), "answer_nodes: data: got 20000 bytes; expected 16384 at most"),
        (lambda run: run.agree("acme: step", "5"), "agree: value: got '5'; expected a whole number"),
    ],
)
def test_a_wrong_argument_is_an_error_as_in_a_run(call, text):
    run = FakeRun()
    with pytest.raises((TypeError, ValueError)) as raised:
        call(run)
    assert text in str(raised.value)
    assert (run.reports, run.fields, run.timers, run.drains, run.stated) == ([], {}, [], [], {})


def test_questions_answers_and_conclusions_are_kept():
    run = FakeRun()
    run.ask_nodes("acme: state", within_s=3)
    run.answer_nodes(1, b"well")
    run.conclude_nodes(1, b"all well")
    assert (run.questions, run.answers, run.conclusions) == (["acme: state"], [(1, b"well")], [(1, b"all well")])


def test_a_repeated_call_is_made_at_each_of_its_times_until_it_is_cancelled():
    run, at = FakeRun(), []
    timer = run.call_every(10.0, lambda: at.append(run.now_s))
    run.pass_time(35.0)
    timer.cancel()
    run.pass_time(60.0)
    assert at == [10.0, 20.0, 30.0]


def test_a_repeated_call_that_raises_is_due_again():
    run, made = FakeRun(), []

    def look():
        made.append(run.now_s)
        raise KeyError("seat")

    run.call_every(10.0, look)
    for _ in range(2):
        with pytest.raises(KeyError):
            run.pass_time(10.0)
    assert made == [10.0, 20.0]


def test_what_a_hook_reads_is_what_the_test_has_set():
    run = FakeRun()
    assert (run.record_dir(), run.options()) == ("", ())
    run.record_directory, run.chosen = "/kept", (ChosenOption(name="role", value="trainer", origin="flag --role"),)
    assert (run.record_dir(), run.options()) == ("/kept", run.chosen)


def test_workers_that_have_ended_are_among_those_that_were_started_last():
    first, second = (RunningWorker(local_rank=rank, global_rank=rank, pid=7 + rank) for rank in (0, 1))
    run = FakeRun(workers=(second,))
    run.ended = (first,)
    assert (run.workers(), run.workers(ended=True)) == ((second,), (first, second))
