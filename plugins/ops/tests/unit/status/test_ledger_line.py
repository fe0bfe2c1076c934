"""The line of `elastic status` about where the time went."""

import pytest

from elastic_ops.status.ledger_line import ledger_line
from elastic_ops.status.page import page_of_run, plain
from elastic_ops.status.view import RunView

FIELDS = {
    "state": "productive",
    "since_ns": 1,
    "goodput": 0.9312,
    "present_s": 4000.0,
    "productive_s": 3724.8,
    "redone_s": 240.0,
    "rendezvous_s": 30.2,
    "store_outage_s": 5.0,
    "stopping_s": 0.2,
}


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({}, "time: 93 % productive; lost: 4 min redone, 30 s rendezvous, 5 s store outage"),
        (
            {"goodput": 0.7, "goodput_at_most": 0.93, "step": 812, "steps_per_s": 2.4567},
            "time: 70 to 93 % productive; lost: 4 min redone, 30 s rendezvous, 5 s store outage; step 812, 2.46/s",
        ),
        (
            {"hung_s": 600.0, "saving_s": 60.0},
            "time: 93 % productive; lost: 10 min hung, 4 min redone, 1 min saving, 30 s rendezvous, and 1 more",
        ),
    ],
)
def test_the_share_and_the_largest_losses(changed, line):
    assert ledger_line(FIELDS | changed) == line


def test_it_is_in_the_page_in_place_of_the_fields():
    run = RunView(run_id="r", source="directory", state="running", hooks={"ledger": FIELDS, "gpu": {"lost": 1}})
    text = plain(page_of_run(run, now_ns=1))
    assert "time: 93 % productive; lost: 4 min redone" in text
    assert "hook 'ledger'" not in text
    assert "hook 'gpu': lost=1" in text


def test_fields_of_another_version_are_shown_as_those_of_any_hook():
    run = RunView(run_id="r", source="directory", state="running", hooks={"ledger": {"share": 1}})
    assert "hook 'ledger': share=1" in plain(page_of_run(run, now_ns=1))
