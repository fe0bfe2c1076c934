"""What a hook hands over to its run's handle is checked at the call, and kept as a copy."""

import math
from types import MappingProxyType

import pytest
from msgspec.structs import replace

from elastic_core.api import ErrorRecord, FailureReport, WorkerFault
from elastic_core.hooks.arguments import LONGEST_S, MOST_DATA, MOST_NAME, MOST_TEXT
from elastic_core.hooks.handle import RunHandle
from elastic_core.messages import AnswerNodes, AskNodes, ConcludeNodes, StateNumber

REPORT = FailureReport(summary="rank 1 is stale", workers=(WorkerFault(local_rank=1, quiet_s=2.0),))
ERROR = ErrorRecord(source="acme", type="Stale", message="old", timestamp_ns=0)


class Actions:
    """Keeps what reaches the agent."""

    def __init__(self):
        self.asked = []
        self.offers = {}

    def __getattr__(self, name):
        return lambda *args, **kwargs: self.asked.append((name, args, kwargs))


@pytest.fixture
def agent():
    return Actions()


@pytest.fixture
def run(agent):
    return RunHandle(
        "acme",
        agent,
        post=lambda call: call(),
        notice=lambda text: agent.asked.append(("say", (text,), {})),
        call_later=lambda delay_s, call: agent.asked.append(("call_later", (delay_s,), {})),
        call=lambda call: lambda: False,
        record=lambda name, values: agent.asked.append(("record", (name, values), {})),
    )


def deep():
    value = []
    value.append(value)
    return value


def wrong_calls():
    """Give a method, its arguments, and what the error says."""
    nothing = print
    yield from (
        ("report", (None,), "report: report: got None; expected a FailureReport"),
        ("report", ("gpu is sick",), "expected a FailureReport"),
        ("report", (replace(REPORT, summary=7),), "Expected `str`, got `int` - at `$.summary`"),
        ("report", (replace(REPORT, failure_class="gpu"),), "at `$.failure_class`"),
        ("report", (replace(REPORT, workers=[0]),), "at `$.workers[0]`"),
        ("report", (replace(REPORT, workers=0),), "at `$.workers`"),
        ("report", (replace(REPORT, retryable="no"),), "at `$.retryable`"),
        ("report", (replace(REPORT, fields={"f": object()}),), "that JSON can't hold"),
        ("report", (replace(REPORT, fields={"f": deep()}),), "that JSON can't hold"),
        ("report", (replace(REPORT, fields="x"),), "at `$.fields`"),
        ("report", (replace(REPORT, workers=(WorkerFault(local_rank="1"),)),), "local_rank"),
        ("report", (replace(REPORT, workers=(WorkerFault(local_rank=1, quiet_s=math.nan),)),), "quiet_s: got nan"),
        ("report", (replace(REPORT, workers=(WorkerFault(local_rank=1, quiet_s=-1.0),)),), "quiet_s: got -1.0"),
        ("report", (replace(REPORT, workers=(WorkerFault(local_rank=1, signal=4711),)),), "signal: got 4711"),
        ("report", (replace(REPORT, workers=(WorkerFault(local_rank=1, signal=-9),)),), "signal: got -9"),
        ("report", (replace(REPORT, workers=(WorkerFault(local_rank=1, error="x"),)),), "error"),
        ("report", (replace(REPORT, workers=(WorkerFault(local_rank=1, error=replace(ERROR, frames=5)),)),), "frames"),
        ("ask_restart", (5,), "ask_restart: reason: got 5; expected text"),
        ("ask_drain", (None,), "ask_drain: reason: got None; expected text"),
        ("notice", (b"x",), "notice: text: got b'x'; expected text"),
        ("publish", (None,), "publish: fields: got None; expected a mapping"),
        ("publish", ({5: 1},), "expected a mapping from names to values"),
        ("publish", ({"a": object()},), "publish: fields: got values that JSON can't hold"),
        ("publish", ({"a": deep()},), "that JSON can't hold"),
        ("publish", ({"a": "x" * 2_000_000},), "as JSON; expected 1048576 at most"),
        ("record", (5, {}), "record: name: got 5; expected text"),
        ("record", ("a", None), "record: values: got None; expected a mapping"),
        ("record", ("a", {"b": object()}), "that JSON can't hold"),
        ("keep_run_dir", (5,), "keep_run_dir: because: got 5; expected text"),
        ("offer", ("", nothing), "offer: name: got ''; expected a name"),
        ("offer", ("x", 5), "offer: answer: got 5; expected a function"),
        ("track_progress", (5,), "track_progress: furthest_step: got 5; expected a function"),
        ("ask_nodes", (5,), "ask_nodes: topic: got 5; expected text"),
        ("answer_nodes", ("1", b""), "answer_nodes: serial: got '1'; expected a whole number"),
        ("answer_nodes", (1, "text"), "answer_nodes: data: got 'text'; expected bytes"),
        ("answer_nodes", (1, b"x" * (MOST_DATA + 1)), "answer_nodes: data: got 16385 bytes; expected 16384 at most"),
        ("conclude_nodes", (1, None), "conclude_nodes: data: got None; expected bytes"),
        ("conclude_nodes", (1, b"x" * (MOST_DATA + 1)), "conclude_nodes: data: got 16385 bytes; expected 16384"),
        ("agree", (5, 5), "agree: topic: got 5; expected text"),
        ("agree", ("x" * (MOST_NAME + 1), 5), "expected a name of 1 to 1000 characters"),
        ("agree", ("acme: step", "5"), "agree: value: got '5'; expected a whole number of 64 bits"),
        ("agree", ("acme: step", True), "got True; expected a whole number"),
        ("agree", ("acme: step", 2**63), "expected a whole number of 64 bits"),
        ("agree", ("acme: step", 5.0), "got 5.0; expected a whole number"),
    )
    for seconds in ("5", None, math.nan, math.inf, LONGEST_S * 2, 1e300, True):
        yield "call_later", (seconds, nothing), f"call_later: delay_s: got {seconds!r}; expected a number of seconds"
        yield "call_every", (seconds, nothing), f"call_every: period_s: got {seconds!r}; expected a number of seconds"
    for seconds in (0, -1.0, 0.001):
        yield "call_every", (seconds, nothing), f"got {seconds!r}; expected a number of seconds from 0.01 up"
    for method in ("call_later", "call_every"):
        yield method, (1.0, None), f"{method}: call: got None; expected a function"


@pytest.mark.parametrize(("method", "arguments", "text"), tuple(wrong_calls()))
def test_a_wrong_argument_is_the_error_of_the_call(run, agent, method, arguments, text):
    with pytest.raises((TypeError, ValueError)) as raised:
        getattr(run, method)(*arguments)
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)
    assert (agent.asked, agent.offers) == ([], {})


@pytest.mark.parametrize(
    ("method", "arguments", "text"),
    [
        ("ask_drain", {"grace_s": "x"}, "ask_drain: grace_s: got 'x'"),
        ("ask_drain", {"grace_s": math.nan}, "ask_drain: grace_s: got nan"),
        ("ask_drain", {"grace_s": -1}, "ask_drain: grace_s: got -1"),
        ("ask_drain", {"by_user": "yes"}, "ask_drain: by_user: got 'yes'; expected True or False"),
        ("ask_nodes", {"within_s": -1}, "ask_nodes: within_s: got -1; expected a number of seconds from 0 to 60"),
        ("ask_nodes", {"within_s": 61}, "ask_nodes: within_s: got 61; expected a number of seconds from 0 to 60"),
        ("ask_restart", {"by_user": 1}, "ask_restart: by_user: got 1; expected True or False"),
        ("notice", {"named": None}, "notice: named: got None; expected True or False"),
    ],
)
def test_a_wrong_argument_by_keyword_is_no_other(run, agent, method, arguments, text):
    with pytest.raises(TypeError) as raised:
        getattr(run, method)("a reason", **arguments)
    assert text in str(raised.value)
    assert agent.asked == []


def test_what_fits_no_signature_is_what_python_says_of_it(run):
    with pytest.raises(TypeError, match="unexpected keyword argument 'gracs'"):
        run.ask_drain("x", gracs=5)
    with pytest.raises(TypeError, match="positional"):
        run.agree("a", 1, 2)


def test_what_is_right_reaches_the_agent(run, agent):
    run.report(REPORT)
    run.ask_drain("old", grace_s=5)
    run.agree(value=-3, topic="acme: step")
    run.ask_nodes("acme: state", within_s=2)
    run.answer_nodes(1, b"x" * MOST_DATA)
    run.conclude_nodes(serial=1, data=b"")
    run.call_later(-1, print)
    run.call_every(0.01, print)
    assert [name for name, *_ in agent.asked] == ["report", "drain", *["exchange"] * 4, "call_later", "call_later"]
    assert agent.asked[0][1] == ("acme", REPORT)
    assert agent.asked[1][1] == ("hook 'acme' asks this node to leave: old", 5.0)
    assert [asked[1][0] for asked in agent.asked[2:6]] == [
        StateNumber(topic="acme: step", value=-3),
        AskNodes(topic="acme: state", within_s=2.0),
        AnswerNodes(serial=1, data=b"x" * MOST_DATA),
        ConcludeNodes(serial=1, data=b""),
    ]
    assert [asked[1] for asked in agent.asked[6:]] == [(0.0,), (0.01,)]


def test_what_is_kept_is_a_copy(run, agent):
    fields = {"gpus": [1, 2]}
    run.publish(MappingProxyType(fields))
    run.record("seen", fields)
    run.report(FailureReport(summary="x", fields=MappingProxyType(fields)))
    fields["gpus"].append(object())
    published, recorded, reported = (asked[1] for asked in agent.asked)
    assert published == ("acme", {"gpus": [1, 2]})
    assert recorded == ("seen", {"gpus": [1, 2]})
    assert reported[1].fields == {"gpus": [1, 2]}


def test_what_utf_8_cant_express_is_written_out(run, agent):
    run.publish({"file": "a\udcff"})
    run.ask_restart("\ud800", by_user=True)
    run.report(FailureReport(summary="b\udcff"))
    assert agent.asked[0][1] == ("acme", {"file": "a\\udcff"})
    assert agent.asked[1][1] == ("acme", "\\ud800")
    assert agent.asked[2][1][1].summary == "b\\udcff"


def test_an_empty_text_leaves_no_hole_in_a_line(run, agent):
    run.report(FailureReport(summary=" "))
    run.ask_restart("")
    run.ask_drain(" ")
    assert agent.asked[0][1][1].summary == "no summary"
    assert agent.asked[1][1] == ("acme", "hook 'acme' requests a restart")
    assert agent.asked[2][1][0] == "hook 'acme' asks this node to leave"


def test_a_long_text_is_cut(run, agent):
    run.notice("x" * 20_000)
    assert agent.asked == [("say", (f"acme: {'x' * MOST_TEXT}…",), {})]
