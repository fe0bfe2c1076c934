"""The states of process groups from the recorder's entries, and which variables a worker gets."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_watch.recorder.collector import _snapshot
from elastic_watch.recorder.group_states import MAX_GROUPS, Group, as_arrivals, as_file, as_states, chosen
from elastic_watch.recorder.torch_tables import _devices
from elastic_watch.recorder.variables import recorder_variables


def entry(seq, name="0", *, pg_id=0, op="gloo:all_reduce", retired=True, state="scheduled", at=None, **rest):
    return {
        "process_group": (name, "desc"), "pg_id": pg_id, "collective_seq_id": seq, "profiling_name": op,
        "is_p2p": False, "retired": retired, "state": state, "time_created_ns": seq if at is None else at,
        "input_sizes": [[4, 2]], "input_dtypes": ["Float"], "output_sizes": [[8]], "output_dtypes": ["Half"],
        "record_id": 0, **rest,
    }  # fmt: skip


def group(name="0", *, backend="gloo", members=(1, 0), label=None, used=9, records=True, description=""):
    return Group(
        name, description=description, backend=backend, members=members, label=label or name, used=used, records=records
    )


def states(groups, *traces):
    kept, unknown = chosen(groups, traces)
    found, dropped = as_states(kept)
    return [(own["group"], own["enqueued"], own["completed"]) for own in found], unknown + dropped


@pytest.mark.parametrize(
    ("groups", "entries", "expected", "dropped"),
    [
        ([group()], [entry(1), entry(2)], [("0", 2, 2)], 0),
        ([group()], [entry(1), entry(2, retired=False)], [("0", 2, 1)], 0),
        ([group()], [entry(1), entry(2, retired=False), entry(3)], [("0", 3, 1)], 0),
        ([group()], [entry(1), entry(2, retired=False, state="completed")], [("0", 2, 2)], 0),
        ([group()], [entry(1), entry(0, is_p2p=True, retired=False)], [("0", 1, 1)], 0),
        ([group(members=(3,))], [entry(1)], [], 0),
        ([group()], [entry(1, "9")], [("0", 0, 0)], 0),
        # earlier groups of the same name
        ([group(used=0)], [entry(1), entry(2)], [("0", 0, 0)], 0),
        ([group(used=1)], [entry(1), entry(2)], [("0", 0, 0)], 0),
        ([group()], [entry(1), entry(2), entry(1, pg_id=4)], [("0", 1, 1)], 0),
        ([group(), group("1")], [entry(5, "1", pg_id=1), entry(1, pg_id=4)], [("0", 1, 1), ("1", 0, 0)], 0),
        # overwritten entries
        ([group(), group("1")], [entry(5, record_id=7)], [("0", 5, 5)], 1),
        ([group(), group("1", used=0)], [entry(5, record_id=7)], [("0", 5, 5), ("1", 0, 0)], 0),
        ([group(), group("1", backend="mpi", records=False)], [entry(5)], [("0", 5, 5)], 1),
        ([group(used=None)], [entry(5)], [("0", 5, 5)], 0),
    ],
)
def test_states_follow_from_the_entries_of_the_present_groups(groups, entries, expected, dropped):
    assert states(groups, entries) == (expected, dropped)


def test_backends_of_one_group_count_by_themselves():
    groups = [group(label="0:nccl", backend="nccl"), group(label="0:gloo")]
    gloo, nccl = [entry(1)], [entry(1, op="nccl:all_reduce"), entry(2, op="nccl:all_reduce", retired=False)]
    assert states(groups, gloo, nccl) == ([("0:nccl", 2, 1), ("0:gloo", 1, 1)], 0)


@pytest.mark.parametrize(("state", "started"), [("scheduled", False), ("started", True), ("completed", False)])
def test_a_device_shows_whether_the_last_operation_runs(state, started):
    kept, _ = chosen([group(backend="nccl")], [[entry(1, op="nccl:all_reduce", state=state)]])
    assert as_states(kept)[0][0]["started"] is started


def test_a_group_without_a_description_of_the_script_has_none():
    kept, _ = chosen([group(description="undefined"), group("1", description="dp")], [[entry(1)]])
    assert [state["description"] for state in as_states(kept)[0]] == ["", "dp"]


def test_coalesced_operations_are_one_operation():
    end = entry(3, op="nccl:coalesced", input_sizes=[], input_dtypes=[], output_sizes=[], output_dtypes=[])
    parts = [entry(3, op="nccl:all_reduce"), entry(3, op="nccl:all_reduce"), end]
    kept, _ = chosen([group(backend="nccl")], [parts])
    (operation,) = as_states(kept)[0][0]["last"]
    assert operation == {
        "seq": 3, "name": "coalesced", "signature": "Float[4, 2] -> Half[8]; Float[4, 2] -> Half[8]"
    }  # fmt: skip


def test_the_last_operations_and_long_texts_are_bounded():
    many = [entry(seq, input_sizes=[[1]] * 200, input_dtypes=["Float"] * 200) for seq in range(1, 30)]
    kept, _ = chosen([group(used=99, description="d" * 999)], [many])
    (state,) = as_states(kept)[0]
    assert [each["seq"] for each in state["last"]] == list(range(22, 30))
    assert {len(each["signature"]) for each in state["last"]} == {200}
    assert len(state["description"]) == 200


def test_of_too_many_groups_those_that_wait_stay():
    groups = [group(str(number)) for number in range(100)]
    entries = [entry(1, str(number), pg_id=number, retired=number != 3, at=number) for number in range(100)]
    kept, _ = chosen(groups, [entries])
    found, dropped = as_states(kept)
    assert (len(found), dropped) == (MAX_GROUPS, 100 - MAX_GROUPS)
    assert [own["group"] for own in found] == ["3", *map(str, range(37, 100))]


def test_arrivals_of_all_groups_are_in_order_on_the_other_clock():
    kept, _ = chosen([group(), group("1")], [[entry(1, at=500), entry(1, "1", pg_id=1, at=400)]])
    assert as_arrivals(kept, offset_ns=-300) == [
        {"group": "1", "seq": 1, "entered_ns": 100},
        {"group": "0", "seq": 1, "entered_ns": 200},
    ]


def test_the_file_names_the_members_of_the_present_groups():
    kept, _ = chosen([group(), group("7", members=(5,))], [[entry(1), entry(1, "7", pg_id=1), entry(1, "8", pg_id=2)]])
    written = as_file(kept, {"version": "2.10", "pg_config": {}, "entries": []})
    assert written["pg_config"] == {"0": {"name": "0", "desc": "", "ranks": "[0, 1]"}}
    assert [each["process_group"][0] for each in written["entries"]] == ["0"]
    assert (written["version"], written["entries"][0]["frames"]) == ("2.10", [])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20), st.booleans(), st.booleans()), max_size=60))
def test_whatever_is_recorded_the_numbers_are_in_order(drawn):
    entries = [entry(seq, str(pg % 2), pg_id=pg, retired=done, is_p2p=p2p) for pg, seq, done, p2p in drawn]
    kept, _ = chosen([group(), group("1", used=None)], [entries])
    found, _ = as_states(kept)
    written = {"taken_ns": 1, "groups": found, "arrivals": as_arrivals(kept, offset_ns=0)}
    assert _snapshot(json.dumps(written).encode(), since_ns=0).error == ""


def test_devices_of_backends():
    assert _devices("cpu:gloo,cuda:gloo") == {"gloo": "cpu"}
    assert _devices("cpu:gloo,cuda:nccl") == {"nccl": "cuda", "gloo": "cpu"}
    assert _devices("mpi") == {"mpi": ""}


NEW, OLD = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
FILES = {"TORCH_FR_DUMP_TEMP_FILE": "/r/rank_", "TORCH_INCLUDE_STACK_TRACE": "false"}


@pytest.mark.parametrize(
    ("version", "environment", "folder", "expected"),
    [
        ("2.13.0+cpu", {}, "", {NEW: "2000"}),
        ("2.13.0+cu130", {}, "/r", {NEW: "2000", **FILES}),
        ("2.8.1", {}, "/r", {OLD: "2000", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/r/rank_",
                             "TORCH_INCLUDE_STACK_TRACE": "false"}),
        ("2.9.0a0+git1", {}, "", {NEW: "2000"}),
        ("10.0", {}, "", {NEW: "2000"}),
        ("?", {}, "", {NEW: "2000"}),
        ("2.13.0", {NEW: "0"}, "", {}),
        ("2.13.0", {OLD: "5"}, "", {}),
        ("2.7.0", {NEW: "5"}, "", {}),
        ("2.13.0", {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/u/x", "TORCH_INCLUDE_STACK_TRACE": "true"}, "/r",
         {NEW: "2000"}),
    ],
)  # fmt: skip
def test_variables_are_those_that_torch_knows_and_no_users_is_replaced(version, environment, folder, expected):
    assert recorder_variables(version, environment, folder=folder) == expected


GOOD = {"taken_ns": 5, "groups": [{"group": "0", "members": [0, 1], "enqueued": 2, "completed": 1,
        "last": [{"seq": 1, "name": "a"}, {"seq": 2, "name": "b"}]}]}  # fmt: skip


def changed(**fields):
    return json.dumps(GOOD | {"groups": [GOOD["groups"][0] | fields]}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff", b"[]", b"{}", b"[" * 100000, b'{"taken_ns": 1e400}', b'{"taken_ns": -1}',
        b'{"taken_ns": 1, "x": 2}',
        b'{"taken_ns": 1, "error": "\\ud800"}', b'{"taken_ns": 99999999999999999999999}',
        json.dumps({"taken_ns": 1, "groups": GOOD["groups"] * 65}).encode(),
        json.dumps({"taken_ns": 1, "error": "x" * 201}).encode(),
        json.dumps({"taken_ns": 1, "arrivals": [{"group": "0", "seq": 1, "entered_ns": 1}] * 257}).encode(),
        changed(members=[1, 0]), changed(members=[0, 0]), changed(members=[-1]), changed(members=[1 << 40]),
        changed(completed=3), changed(enqueued=1), changed(last=GOOD["groups"][0]["last"][::-1]),
        changed(last=[{"seq": seq, "name": "a"} for seq in range(1, 10)], enqueued=9), changed(started=1),
    ],
)  # fmt: skip
def test_what_breaks_the_format_is_an_error_of_that_worker(content):
    found = _snapshot(content, since_ns=0)
    assert found.error.startswith("the worker wrote no valid snapshot: ")
    assert (found.groups, found.recorder) == ((), False)


def test_a_valid_snapshot_is_kept_and_its_time_is_within_the_request():
    found = _snapshot(json.dumps(GOOD).encode(), since_ns=1000)
    assert (found.error, found.taken_ns, found.groups[0].enqueued) == ("", 1000, 2)
    late = _snapshot(json.dumps(GOOD | {"taken_ns": 1 << 61}).encode(), since_ns=0)
    assert late.taken_ns < 1 << 61
