"""The lines that users read."""

import pytest

from elastic_watch.collectives.evidence import Attribution, Cause, Operation
from elastic_watch.collectives.texts import details, headline


def cause(kind, *culprits, waits=0, nodes=None, name="all_reduce", seq=4711, group="dp", **fields):
    return Attribution(
        cause=kind,
        culprits=culprits,
        nodes=nodes if nodes is not None else ("node-b",) * len(culprits),
        group=group,
        operation=Operation(seq=seq, name=name) if seq else None,
        waiting=tuple(range(100, 100 + min(waits, 16))),
        waiting_count=waits,
        **fields,
    )


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (
            cause(Cause.MISSING, 17, waits=63),
            "rank 17 on node-b has not entered all_reduce #4711 of group dp; 63 ranks wait for it",
        ),
        (
            cause(Cause.MISSING, 17, waits=1),
            "rank 17 on node-b has not entered all_reduce #4711 of group dp; rank 100 waits for it",
        ),
        (
            cause(Cause.MISSING, 17, 4, 5, waits=5, nodes=("node-b", "node-c", "node-c")),
            (
                "rank 17 on node-b, ranks 4, 5 on node-c have not entered all_reduce #4711 of group dp; "
                "5 ranks wait for them"
            ),
        ),
        (
            cause(Cause.MISSING, 4, 17, waits=5, nodes=("node-a", "node-b"), elsewhere=1),
            (
                "rank 4 on node-a has not entered all_reduce #4711 of group dp; rank 17 on node-b is missing "
                "in another group; 5 ranks wait for them"
            ),
        ),
        (
            cause(Cause.MISSING, 17, waits=3, name=""),
            "rank 17 on node-b has not entered operation #4711 of group dp; 3 ranks wait for it",
        ),
        (
            cause(Cause.MISSING, 2, waits=3, seq=0, group=""),
            "rank 2 on node-b is in its own code; 3 ranks wait for it",
        ),
        (
            cause(Cause.MISMATCH, 3, waits=7),
            "rank 3 on node-b entered another operation than most ranks as #4711 of group dp; 7 ranks wait for it",
        ),
        (cause(Cause.MISMATCH, waits=2), "the ranks of group dp entered different operations as #4711"),
        (
            cause(Cause.DIFFERENT_ORDER, waits=4),
            "ranks entered operations of several groups in different orders: 4 ranks wait for each other",
        ),
        (
            cause(Cause.ALL_ENTERED, waits=8),
            (
                "all ranks have entered all_reduce #4711 of group dp, which does not complete: "
                "check the network and the devices"
            ),
        ),
        (cause(Cause.ENDED, 3, waits=7), "rank 3 on node-b has ended; 7 ranks wait for it"),
        (cause(Cause.NO_RESPONSE, 3, waits=7), "rank 3 on node-b does not respond; 7 ranks wait for it"),
        (
            cause(Cause.NO_RESPONSE, 3, 4, waits=7),
            "ranks 3, 4 on node-b do not respond; 7 ranks wait for them",
        ),
        (
            cause(Cause.NO_RESPONSE, waits=7),
            "7 ranks wait in all_reduce #4711 of group dp: the evidence does not name a cause",
        ),
        (
            cause(Cause.UNKNOWN, waits=1),
            "rank 100 waits in all_reduce #4711 of group dp: the evidence does not name a cause",
        ),
        (cause(Cause.UNKNOWN, seq=0, group=""), "the evidence does not name a cause"),
    ],
)
def test_headline(found, line):
    assert headline(found) == line


@pytest.mark.parametrize(
    ("evidence", "line"),
    [
        ((), "Evidence: none."),
        (("stacks",), "Evidence: stacks."),
        (("recorder", "stacks", "steps", "ras"), "Evidence: flight recorder, stacks, steps and NCCL RAS."),
    ],
)
def test_evidence_is_listed(evidence, line):
    assert details(Attribution(cause=Cause.UNKNOWN, evidence=evidence)) == line


def test_details_come_before_the_evidence():
    found = Attribution(cause=Cause.MISSING, details=("Rank 17 is in train.py:12.",), evidence=("stacks",))
    assert details(found) == "Rank 17 is in train.py:12. Evidence: stacks."


def test_operation_that_the_headline_leaves_out():
    assert details(cause(Cause.ENDED, 3, waits=7)) == "The operation is all_reduce #4711 of group dp. Evidence: none."
    assert details(cause(Cause.NO_RESPONSE, waits=7)) == "Evidence: none."
