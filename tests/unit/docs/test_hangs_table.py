"""The tables of hangs with known truth: each result in words, and the sums."""

import json

import hangs_table

from truth.cells import LANES, Expected


def outcome(lane, text, *, truth=(1,), result="named", expected="must be named", says="rank 1 is late"):
    return {"lane": lane, "text": text, "truth": truth, "result": result, "expected": expected, "says": says}


def test_results_of_all_lanes_are_in_one_row_and_counted(tmp_path, monkeypatch):
    lanes = {
        "before": [
            outcome("before", "loops"),
            outcome("before", "a circle", truth=(), result="not named", expected="no rank is the cause", says=""),
        ],
        "no recorder": [
            outcome("no recorder", "loops", result="not named"),
            outcome("no recorder", "x", result="named wrongly"),
        ],
        "stragglers": [outcome("stragglers", "is slow", result="partly named")],
    }
    (tmp_path / "hangs.json").write_text(json.dumps({"lanes": lanes}))
    monkeypatch.setattr(hangs_table, "RESULTS", tmp_path / "hangs.json")
    assert hangs_table.hangs().splitlines()[2:] == [
        "| loops | named | not named |  |  | `rank 1 is late` |",
        "| a circle | no rank |  |  |  |  |",
        "| x |  | **wrong** |  |  | `rank 1 is late` |",
    ]
    assert hangs_table.stragglers().splitlines()[2:] == ["| is slow | in part | `rank 1 is late` |"]
    assert hangs_table.sums().splitlines()[-1] == "| all | 2 | 1 | 1 | 1 | 5 |"


def test_the_recorded_results_are_those_of_all_cells_and_none_is_wrong():
    lanes = json.loads(hangs_table.RESULTS.read_text())["lanes"]
    assert {lane.name: [cell.text for cell in lane.cells] for lane in LANES} == {
        name: [outcome["text"] for outcome in outcomes] for name, outcomes in lanes.items()
    }
    outcomes = [outcome for each in lanes.values() for outcome in each]
    assert [outcome for outcome in outcomes if outcome["result"] == "named wrongly"] == []
    must = [outcome for outcome in outcomes if outcome["expected"] == Expected.NAMED]
    assert [outcome for outcome in must if outcome["result"] != "named"] == []
