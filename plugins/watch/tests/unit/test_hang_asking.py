"""What nodes are asked in a hang, and what follows from their responses."""

import msgspec
import pytest
from msgspec.structs import replace

from elastic_core.api import HookSettings
from elastic_core.api.feed import AnswersGathered
from elastic_plugin_kit import FakeRun
from elastic_watch.collectives.evidence import (
    Attribution,
    Cause,
    GroupState,
    NodeEvidence,
    Operation,
    RankEvidence,
    Status,
)
from elastic_watch.hangs import asking
from elastic_watch.hangs.asking import (
    MAX_BYTES,
    Conclusion,
    Response,
    concluded,
    content_of,
    contradiction,
    decoded_conclusion,
    decoded_response,
    encoded_conclusion,
    encoded_response,
    reporter,
)
from elastic_watch.hangs.steps import NodeSteps, RankStep, RunSteps, merged
from elastic_watch.hook import Watch
from elastic_watch.options import HANG_TOPIC

REDUCE = Operation(seq=5, name="all_reduce")


def rank(number, enqueued, *, call="all_reduce", members=(0, 1, 2, 3), **fields):
    """A rank whose last operation is open if it is in a call, and completed if not."""
    last = tuple(Operation(seq=seq, name="all_reduce") for seq in range(max(1, enqueued - 2), enqueued + 1))
    group = GroupState(
        group="0", description="dp", members=members, enqueued=enqueued, completed=enqueued - bool(call), last=last
    )
    given = {"groups": (group,), "recorder": True, "stack": True, "place": "train.py:7"} | fields
    return RankEvidence(global_rank=number, status=Status.ANSWERED, call=call, **given)


def response(node, known, /, *, token=4, node_count=2, heartbeats=False, **steps):
    evidence = NodeEvidence(node_id=node, ranks=tuple(known), world_size=4)
    return encoded_response(
        evidence, NodeSteps(node_id=node, **steps), token=token, node_count=node_count, heartbeats=heartbeats
    )


MISSING_3 = {
    "a": response("a", [rank(0, 5), rank(1, 5)], quiet_s=9.0),
    "b": response("b", [rank(2, 5), rank(3, 4, call="", place="data.py:9")], quiet_s=8.0),
}


def test_the_rank_that_is_missing_is_named_and_its_node_reports():
    found = concluded(MISSING_3)
    assert (found.attribution.cause, found.attribution.culprits, found.attribution.nodes) == ("missing", (3,), ("b",))
    assert (found.attribution.operation, found.attribution.waiting) == (REDUCE, (0, 1, 2))
    assert (found.reporter, found.places, found.token) == ("b", {3: "data.py:9"}, 4)
    assert found.attribution.evidence == ("recorder", "stacks")
    assert decoded_conclusion(encoded_conclusion(found)) == found


def test_nodes_with_a_rank_that_runs_and_waits_nowhere_are_free():
    assert concluded(MISSING_3).free == ("b",)
    ended = RankEvidence(global_rank=1, status=Status.ENDED)
    silent = RankEvidence(global_rank=3, status=Status.SILENT)
    answers = {
        "a": response("a", [rank(0, 5, call="backward", recorder=False), ended]),
        "b": response("b", [rank(2, 5), silent]),
    }
    assert concluded(answers).free == ("b",)


def test_node_that_has_sent_no_evidence_in_time_may_be_free():
    late = encoded_response(None, NodeSteps(node_id="b"), token=4, node_count=2, heartbeats=True)
    assert concluded({"a": MISSING_3["a"], "b": late}).free == ("b",)


def test_node_with_a_rank_whose_line_could_not_be_read_may_be_free():
    unknown = {"a": MISSING_3["a"], "b": response("b", [rank(2, 5), rank(3, 4, call="unknown")])}
    assert concluded(unknown).free == ("b",)


def test_ranks_that_wait_and_ranks_in_a_backward_are_counted():
    ended = RankEvidence(global_rank=1, status=Status.ENDED)
    calls = ("backward", "backward", "barrier", "", "unknown")
    known = [ended, *(rank(number + 2, 5, call=call, recorder=False) for number, call in enumerate(calls))]
    found = concluded({"a": response("a", known[:3]), "b": response("b", known[3:])})
    assert (found.in_backward, found.waiting) == (2, 1)


def test_kinds_of_evidence_include_what_nodes_know_of_steps_and_heartbeats():
    answers = MISSING_3 | {"a": response("a", [rank(0, 5), rank(1, 5)], heartbeats=True, max_step=3, min_step=3)}
    assert concluded(answers).attribution.evidence == ("recorder", "stacks", "steps", "heartbeats")


def test_node_without_a_response_and_one_with_an_unreadable_one_are_missing():
    found = concluded(MISSING_3 | {"c": b"\xc1", "e": msgspec.msgpack.encode({"format": 2})}, ["d"])
    assert found.missing == ("d", "c", "e")
    assert found.attribution.culprits == (3,)
    assert concluded({"c": b""}, []) is None
    assert concluded({}, ["a"]) is None


def test_responses_of_an_earlier_round_do_not_count():
    found = concluded(MISSING_3 | {"a": response("a", [rank(0, 9), rank(1, 9)], token=3, max_step=99)})
    assert (found.token, found.steps.node_count, found.steps.max_step) == (4, 1, None)
    assert found.attribution.waiting == (2,)


def test_steps_alone_are_a_response():
    data = encoded_response(None, NodeSteps(node_id="a", max_step=7), token=4, node_count=2, heartbeats=True)
    found = concluded({"a": data})
    assert (found.steps.max_step, found.attribution.cause, found.reporter) == (7, "unknown", "")
    assert found.attribution.evidence == ("steps", "heartbeats")


def test_fields_of_later_versions_are_ignored_and_another_format_is_not_read():
    later = msgspec.msgpack.decode(MISSING_3["a"]) | {"more": 1}
    assert decoded_response(msgspec.msgpack.encode(later)) == decoded_response(MISSING_3["a"])
    with pytest.raises(ValueError, match="format 2; expected 1"):
        decoded_response(msgspec.msgpack.encode(later | {"format": 2}))
    conclusion = msgspec.msgpack.decode(encoded_conclusion(concluded(MISSING_3)))
    with pytest.raises(ValueError, match="format 2; expected 1"):
        decoded_conclusion(msgspec.msgpack.encode(conclusion | {"format": 2}))
    with pytest.raises(ValueError, match="token"):
        decoded_conclusion(msgspec.msgpack.encode({"format": 1}))


def test_messages_of_a_thousand_ranks_stay_within_their_limit():
    members = tuple(range(1000))
    many = [
        rank(number, 5, members=members, place=f"{'x' * 150}{number}.py:7", step=number) for number in range(0, 1000, 8)
    ]
    behind = tuple(RankStep(global_rank=number, step=1) for number in range(8))
    data = response("n" * 100, many, behind=behind, ranks=tuple(range(8)), node_count=8)
    assert len(data) <= MAX_BYTES
    assert decoded_response(data).steps.behind == behind
    wordy = Attribution(
        cause=Cause.MISSING, culprits=tuple(range(16)), nodes=("n" * 200,) * 16, waiting=tuple(range(16)),
        details=("x" * 2000,) * 20, group="g" * 5000,
    )  # fmt: skip
    told = Conclusion(token=1, steps=RunSteps(), attribution=wordy, places=dict.fromkeys(range(16), "p" * 900))
    brief = decoded_conclusion(encoded_conclusion(told))
    assert len(encoded_conclusion(told)) <= MAX_BYTES
    assert brief.attribution.culprits == wordy.culprits


def test_evidence_that_is_too_large_leaves_the_steps(monkeypatch):
    monkeypatch.setattr(asking, "pack", lambda evidence: b"x" * (MAX_BYTES + 1))
    assert decoded_response(response("a", [rank(0, 5)], max_step=7)).evidence == b""

    def refuses(evidence):
        raise ValueError("too many")

    monkeypatch.setattr(asking, "pack", refuses)
    assert decoded_response(response("a", [rank(0, 5)], max_step=7)).steps.max_step == 7


# --- steps against the recorder

NAMED = Attribution(cause=Cause.MISSING, culprits=(5,), nodes=("b",), waiting=(0, 1), waiting_count=2)


@pytest.mark.parametrize(
    ("found", "behind", "ranks", "disputes"),
    [
        (NAMED, [], [], False),
        (NAMED, [RankStep(global_rank=3, step=7)], [], True),
        (NAMED, [RankStep(global_rank=3, step=7), RankStep(global_rank=5, step=7)], [], False),
        (NAMED, [RankStep(global_rank=3, step=7, waits=True)], [], False),
        (NAMED, [RankStep(global_rank=1, step=7)], [], False),
        (NAMED, [RankStep(global_rank=3, step=7)], [rank(3, 5)], False),
        (NAMED, [RankStep(global_rank=3, step=7)], [rank(3, 5, call="backward")], True),
        (NAMED, [RankStep(global_rank=3, step=7)], [rank(3, 5, call="")], True),
        (Attribution(cause=Cause.ALL_ENTERED), [RankStep(global_rank=3, step=7)], [], False),
    ],
    ids=[
        "no steps", "another rank", "the culprit too", "it waits, says its node", "it waits, says the recorder",
        "it waits, says its stack", "it may wait", "it does not wait", "no rank is named",
    ],
)  # fmt: skip
def test_ranks_behind_contradict_the_recorder_unless_they_wait(found, behind, ranks, disputes):
    assert bool(contradiction(found, behind, {each.global_rank: each for each in ranks})) == disputes


def test_nobody_is_named_if_steps_and_recorder_contradict_each_other():
    answers = {
        "a": response("a", [rank(0, 5), rank(1, 5, call="")], max_step=9, min_step=8, ranks=(0, 1),
                      behind=(RankStep(global_rank=1, step=8),)),
        "b": response("b", [rank(2, 5), rank(3, 4, call="")], max_step=9, min_step=9, ranks=(2, 3)),
    }  # fmt: skip
    found = concluded(answers)
    assert (found.attribution.cause, found.attribution.culprits, found.reporter) == ("unknown", (), "")
    assert found.disputed == (
        "rank 1 is behind in steps (at 8), but others wait in a collective for rank 3: none of them is named"
    )
    assert found.attribution.details[0] == found.disputed


# --- who reports


def responses(**quiet_s):
    return {
        node: Response(token=1, node_count=2, steps=NodeSteps(node_id=node, quiet_s=quiet))
        for node, quiet in quiet_s.items()
    }


@pytest.mark.parametrize(
    ("found", "quiet_s", "node"),
    [
        (NAMED, {"a": 9.0, "b": 8.0}, "b"),
        (NAMED, {"a": 9.0}, ""),
        (replace(NAMED, nodes=("",)), {"a": 8.0, "b": 9.0}, "b"),
        (Attribution(cause=Cause.ALL_ENTERED), {"a": 8.0, "b": 9.0}, "b"),
        (Attribution(cause=Cause.ALL_ENTERED), {"a": 9.0, "b": 9.0}, "a"),
        (Attribution(cause=Cause.DIFFERENT_ORDER), {"b": 9.0}, ""),
        (Attribution(cause=Cause.NO_RESPONSE), {"a": 9.0, "b": 9.0}, ""),
        (Attribution(cause=Cause.UNKNOWN), {"a": 9.0, "b": 9.0}, ""),
    ],
)
def test_node_of_the_culprit_reports_else_the_one_that_waits_longest(found, quiet_s, node):
    assert reporter(found, responses(**quiet_s)) == node


# --- files


def test_file_of_a_conclusion_is_json_for_people():
    content = content_of(concluded(MISSING_3, ["d"])).decode()
    read = msgspec.json.decode(content)
    assert read["headline"] == "rank 3 on b has not entered all_reduce #5 of group dp; 3 ranks wait for it"
    assert (read["attribution"]["culprits"], read["missing_nodes"], read["reporter"]) == ([3], ["d"], "b")
    assert content.count("\n") > 10


# --- steps


def steps(node, **given):
    return NodeSteps(node_id=node, **given)


def test_ranks_behind_are_those_of_a_node_that_is_behind_and_those_behind_on_another():
    ahead = steps("a", ranks=(0, 1), max_step=9, min_step=7, behind=(RankStep(global_rank=1, step=7),))
    late = steps("b", ranks=(2, 3), max_step=8, min_step=8)
    seen = merged([ahead, late])
    assert (seen.node_count, seen.max_step, seen.min_step) == (2, 9, 7)
    assert [(one.node_id, one.global_rank, one.step) for one in seen.behind] == [("a", 1, 7), ("b", 2, 8), ("b", 3, 8)]


def test_ranks_behind_that_wait_come_last():
    late = steps("b", ranks=(2, 3, 4), waiting=(2,), may_wait=(3,), max_step=8, min_step=8)
    seen = merged([steps("a", max_step=9, min_step=9), late])
    found = [(one.global_rank, one.waits, one.may_wait) for one in seen.behind]
    assert found == [(4, False, False), (3, False, True), (2, True, False)]


def test_open_section_anywhere_protects_and_the_last_sign_of_anybody_counts():
    seen = merged([steps("a", protected_s=3.0, quiet_s=9.0), steps("b", quiet_s=0.5), steps("c")])
    assert (seen.protected_s, seen.quiet_s, seen.max_step, seen.behind) == (3.0, 0.5, None, ())


def test_leader_without_workers_concludes_for_the_others(tmp_path):
    options = {"on_straggler": "off", "straggler_interval": 30.0}
    hook = Watch(HookSettings(name="watch", run_dir=str(tmp_path), options=options))
    hook.run = FakeRun()
    hook.on_answers_gathered(AnswersGathered(serial=3, topic=HANG_TOPIC, answers=MISSING_3, missing=("c",)))
    hook.on_answers_gathered(AnswersGathered(serial=4, topic="other hook", answers={}))
    ((serial, data),) = hook.run.conclusions
    conclusion = decoded_conclusion(data)
    assert (serial, conclusion.attribution.culprits, conclusion.missing) == (3, (3,), ("c",))
    hook.close()
