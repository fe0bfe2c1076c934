"""`status.json` and `journal.jsonl`: written beside the agent, bounded, and enough to replay its machine."""

import json
import os

import msgspec
import pytest

from elastic_core.agent.feed import StepTaken, described
from elastic_core.agent.machine.states import Created, Joining, Ledger, Rejoin, Step, Stopping
from elastic_core.agent.machine.table import EVENTS, advance
from elastic_core.api import ConfigError, HookSettings, Round, encode_json
from elastic_core.api.commands import find_incidents
from elastic_core.api.feed import RunEvent
from elastic_core.api.tools import AgentIdentity
from elastic_core.messages import JoinAllowed, RoundChanged, RoundFormed, StartRequested
from elastic_core.types import Failure, FailureClass, RosterMember, RoundEnded
from elastic_ops.run_directories import run_at, runs_named
from elastic_ops.status import files as status_files
from elastic_ops.status.document import STATUS_FILE, UNREADABLE, AgentStatus, read_status
from elastic_ops.status.files import JOURNAL_FILE, MOST_MEMBERS, OLDER_FILE, StatusFiles, journal_line
from elastic_ops.status.keeper import StatusKeeper
from elastic_ops.status.lost_nodes import LostNodes

SETTINGS = HookSettings(name="recorder", run_id="bert-7", node_id="n0", backend="local")
ROUND = Round(
    index=0, token=1, nonce="", node_rank=0, node_count=1, local_world_size=1, base_rank=0, world_size=1,
    role="default", role_base_rank=0, role_world_size=1, master_addr="127.0.0.1", master_port=1,
)  # fmt: skip


def step(event, state=None):
    state = Joining(ledger=Ledger()) if state is None else state
    name, values = described(StepTaken(event=event, step=Step(state=state, reason="x"), at_s=0.0, entered=True))
    return RunEvent(name=name, at_s=1.0, at_ns=5, values=values)


@pytest.fixture
def told():
    return []


@pytest.fixture
def files(tmp_path, told):
    keeper = StatusKeeper(SETTINGS, AgentIdentity(pid=1))
    return StatusFiles(keeper, LostNodes(SETTINGS), run_dir=lambda: str(tmp_path), where=lambda: "", notice=told.append)


def test_both_files_are_their_owners_and_the_end_is_waited_for(files, tmp_path, told):
    (tmp_path / JOURNAL_FILE).write_text("of an earlier run")
    (tmp_path / OLDER_FILE).write_text("of an earlier run")
    files.take([step(JoinAllowed())])
    files.close(kept=True, within_s=10)
    assert read_status(tmp_path / STATUS_FILE).state == "joining"
    (line,) = (tmp_path / JOURNAL_FILE).read_text().splitlines()
    assert json.loads(line)["values"]["event"] == "JoinAllowed"
    assert {path.name for path in tmp_path.iterdir()} == {STATUS_FILE, JOURNAL_FILE}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert told == []


def test_nothing_is_written_where_the_directory_goes(files, tmp_path, told, monkeypatch):
    monkeypatch.setattr(status_files, "GATHER_S", 60.0)  # the end comes before the first write
    files.take([step(JoinAllowed())])
    files.close(kept=False, within_s=10)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fails_is_a_line_and_what_it_missed_is_written_later(files, tmp_path, told):
    (tmp_path / STATUS_FILE).mkdir()
    files._write([])
    files._run_dir = lambda: str(tmp_path / "missing")
    files._write([step(JoinAllowed())])
    (line,) = told
    assert line.startswith(f"the agent's status and journal could not be written to '{tmp_path}'")
    (tmp_path / "missing").mkdir()
    files.take([step(JoinAllowed())])
    files.close(kept=True, within_s=10)
    assert len((tmp_path / "missing" / JOURNAL_FILE).read_text().splitlines()) == 2


def test_an_incident_of_a_lost_node_that_could_not_be_written_is_written_later(files, tmp_path, told):
    joined = RunEvent(name="round_joined", at_s=1.0, at_ns=5, values={"round": ROUND, "members": ()})
    lost = RoundEnded(reason="b lost; 1 node with 1 worker goes on", lost=("b",))
    files._lost_nodes.observe(joined)
    files._lost_nodes.observe(step(RoundChanged(change=lost), Stopping(ledger=Ledger(), round=ROUND, then=Rejoin())))
    (tmp_path / OLDER_FILE).mkdir()  # in the way of the journal's first lines
    files._write([])
    assert (len(told), find_incidents(tmp_path)) == (1, [])
    (tmp_path / OLDER_FILE).rmdir()
    files._write([])
    (found,) = find_incidents(tmp_path)
    assert (found.incident.summary, found.path) == ("b was lost", str(tmp_path / "incident-lost-0.json"))


def test_a_link_in_the_journals_place_is_not_followed(files, tmp_path, told):
    files._write([])
    (tmp_path / JOURNAL_FILE).unlink()
    (tmp_path / JOURNAL_FILE).symlink_to(tmp_path / "victim")
    files._write([step(JoinAllowed())])
    assert not (tmp_path / "victim").exists()
    assert len(told) == 1


def test_a_journal_that_is_long_becomes_the_older_one(files, tmp_path, monkeypatch):
    monkeypatch.setattr(status_files, "MOST_BYTES", 1_000)
    for number in range(40):
        files._write([RunEvent(name=f"event {number}", at_s=1.0, at_ns=1)])
    text = "".join((tmp_path / name).read_text() for name in (OLDER_FILE, JOURNAL_FILE))
    names = [json.loads(line)["name"] for line in text.splitlines()]
    assert names == [f"event {number}" for number in range(40 - len(names), 40)]
    assert (tmp_path / OLDER_FILE).stat().st_size < 1_200


def test_a_journal_replays_to_the_same_steps():
    kinds = {kind.__name__: kind for kind in EVENTS}
    state, events, steps = Created(), [StartRequested(), JoinAllowed(), RoundFormed(round=ROUND)], []
    for number, event in enumerate(events):
        steps.append(advance(state, event, now_s=float(number)))
        state = steps[-1].state
    state, replayed = Created(), []
    for number, (event, taken) in enumerate(zip(events, steps, strict=True)):
        values = json.loads(journal_line(step(event, taken.state)))["values"]
        kind = kinds[values["event"]]
        known = {name: values[name] for name in kind.__struct_fields__ if name in values}
        replayed.append(advance(state, msgspec.convert(known, kind), now_s=float(number)))
        state = replayed[-1].state
    assert replayed == steps


def test_a_line_of_the_journal_is_short_and_always_json():
    failure = Failure(
        failure_class=FailureClass.EXIT, summary="x" * 500, node_id="n0", round_index=0, at_s=1.0, uptime_s=1.0
    )
    long = msgspec.structs.replace(ROUND, restart_count=1, membership_changes=0, history=(failure,) * 500)
    assert len(journal_line(step(RoundFormed(round=long)))) < 2_000
    members = tuple(RosterMember(node_id=f"node{number}", local_world_size=8) for number in range(MOST_MEMBERS + 1))
    for kept, most in ((MOST_MEMBERS, 3_000), (0, 1_000)):
        joined = {"round": ROUND, "members": members[: kept or None]}
        text = journal_line(RunEvent(name="round_joined", at_s=1.0, at_ns=1, values=joined))
        assert len(text) < most
        assert len(json.loads(text)["values"].get("members", ())) == kept
    answers = {f"n{number}": b"x" * 16_384 for number in range(1000)}
    for name, values in (
        ("answers_gathered", {"topic": "t", "answers": answers}),
        ("concluded", {"data": b"x" * 16_384}),
    ):
        text = journal_line(RunEvent(name=name, at_s=1.0, at_ns=1, values=values))
        assert len(text) < 200
    assert json.loads(text)["values"] == {"data": "16384 bytes"}
    of_a_hook = journal_line(RunEvent(name="answers_gathered", at_s=1.0, at_ns=1, source="other"))
    assert json.loads(of_a_hook)["source"] == "other"
    line = json.loads(journal_line(RunEvent(name="x", at_s=1.0, at_ns=1, values={"odd": object()})))
    assert line["values"]["odd"].startswith("<object")


# --- what is read


@pytest.mark.parametrize("content", [b'{"run_id":' + b"[" * 100_000, b"\xff", b"", b"[]"])
def test_what_is_no_status_of_ours_is_none(tmp_path, content):
    (tmp_path / STATUS_FILE).write_bytes(content)
    assert run_at(tmp_path).status is None
    with pytest.raises(UNREADABLE):
        read_status(tmp_path / STATUS_FILE)


def test_a_status_of_another_version_is_refused_with_one_line(tmp_path):
    (tmp_path / STATUS_FILE).write_text('{"schema_version": 2, "run_id": "x"}')
    with pytest.raises(ConfigError, match=r"has schema version 2; expected 3\. Try: the elastic-ops that"):
        runs_named(str(tmp_path))


def test_a_status_that_is_too_long_can_not_be_read(tmp_path):
    (tmp_path / STATUS_FILE).write_bytes(b"{" + b" " * (4 << 20))
    with pytest.raises(OSError, match="File too large"):
        run_at(tmp_path)


def test_a_pipe_in_the_place_of_a_status_is_none(tmp_path):
    os.mkfifo(tmp_path / STATUS_FILE)
    assert run_at(tmp_path).status is None


def test_a_status_comes_back_as_it_was(tmp_path):
    status = AgentStatus(run_id="x", node_id="n", agent=AgentIdentity(pid=1), backend="local", state="running")
    (tmp_path / STATUS_FILE).write_bytes(encode_json(status))
    assert read_status(tmp_path / STATUS_FILE) == status
