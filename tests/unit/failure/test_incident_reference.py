"""The page about incident.json names the fields that it has, and no others."""

import re
from pathlib import Path
from typing import get_args

import pytest

from elastic_core.failure import incident
from elastic_core.types import Decision

PAGE = (Path(__file__).parents[3] / "docs/reference/incident.md").read_text()
SECTIONS = {
    "The file": incident.Incident,
    "A failed worker": incident.FailedWorker,
    "Its exit": incident.WorkerExit,
    "Its error": incident.ErrorRecord,
    "A hang": incident.IncidentHang,
    "A rank of a hang": incident.IncidentHungRank,
}
ROWS = {
    "nodes": incident.IncidentNode,
    "phases": incident.IncidentPhases,
}


def names(text):
    return re.findall(r"`(\w+)`", text)


def rows(section):
    body = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [line.strip("| ").split(" | ") for line in body.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("section", SECTIONS)
def test_table_has_the_fields_of_the_record(section):
    named = [name for row in rows(section) for name in names(row[0])]
    assert sorted(named) == sorted(SECTIONS[section].__struct_fields__)


@pytest.mark.parametrize("field", ROWS)
def test_row_names_the_fields_of_what_is_in_it(field):
    (text,) = [row[1] for section in SECTIONS for row in rows(section) if row[0] == f"`{field}`"]
    assert set(ROWS[field].__struct_fields__) <= set(names(text))


def test_a_decision_has_the_fields_of_the_three_records():
    named = {name for row in rows("A decision") for name in names(row[0])}
    assert named == {"type"} | {name for record in get_args(Decision) for name in record.__struct_fields__}


def test_every_class_of_failure_is_listed():
    (text,) = [row[1] for row in rows("The file") if row[0] == "`failure_class`"]
    assert re.findall(r"`([^`]+)`", text) == [each.value for each in incident.FailureClass]


def test_a_failure_and_its_incident_call_things_by_the_same_names():
    """Policies see the one, people the other."""
    of_policies = set(incident.Failure.__struct_fields__)
    assert {"node_count", "round_index", "node_id", "progress", "exit_code", "retryable"} <= of_policies & set(
        incident.Incident.__struct_fields__
    )
