"""The table of measured stacks: each cell in words, and what was not measured said so."""

import json

import stacks_table


def cell(outcome="ended", **more):
    return {"outcome": outcome, "code": 0, "seconds": 9, "resumed_at": None, "cause": "", "left": []} | more


def test_a_row_has_both_launchers_and_our_word(tmp_path, monkeypatch):
    cells = {
        "ddp plain elastic": cell(),
        "ddp plain torchrun": cell(left=["python train.py"]),
        "ddp crash elastic": cell(resumed_at=5, cause="rank 1 failed"),
        "ddp crash torchrun": cell("stuck", code=None),
        "ddp worker torchrun": cell("failed", code=1),
    }
    (tmp_path / "stacks.json").write_text(
        json.dumps({"cells": cells, "versions": {"torch": "2.13.0"}, "date": "2026-11-23"})
    )
    monkeypatch.setattr(stacks_table, "RESULTS", tmp_path / "stacks.json")
    rows = stacks_table.stacks().splitlines()
    assert rows[2:5] == [
        "| DDP | plain | 9 s; 1 left running | 9 s |  |",
        "|  | rank 1 raises | **stuck** | 9 s, from step 5 | `rank 1 failed` |",
        "|  | rank 1 killed | failed, exit code 1, 9 s | not measured |  |",
    ]
    assert "| torch | 2.13.0 |" in stacks_table.versions()
