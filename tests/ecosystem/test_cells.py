"""Stacks that people train with, unchanged, under `elastic run`, and beside it under torchrun, as measured.

What came of each cell is kept in `docs/_ext/stacks.json`, from which `make docs-tables` draws docs/reference/stacks.md.
`ECOSYSTEM_LAUNCHERS=elastic` leaves torchrun's half out.
"""

import json
import os
import re
from datetime import date
from importlib.metadata import version
from pathlib import Path

import pytest

from ecosystem.cell import FAULTS, FIXED, LAUNCHERS, LIMIT_S, STACKS, Cell
from redis_servers import RedisServer

pytestmark = [pytest.mark.ecosystem, pytest.mark.timeout(2 * LIMIT_S)]

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "_ext" / "stacks.json"
PACKAGES = ("torch", "accelerate", "lightning", "transformers", "deepspeed", "torchft-nightly")
CHOSEN = os.environ.get("ECOSYSTEM_LAUNCHERS", ",".join(LAUNCHERS)).split(",")
CAUSES = {
    "plain": r"",
    "crash": r"rank [01] failed: ValueError: injected: bad sample 1234 \(fault\.py:\d+\); restart 1 of 2 now",
    "worker": r"rank [01] failed: killed by SIGKILL \(9\); restart 1 of 2 now",
    "agent": r"[ab] lost; .*",
}


def keep(result):
    """Put one cell among the results, with what it was measured with."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"cells": {}}
    known["versions"] = {name: version(name) for name in PACKAGES}
    known["date"] = date.today().isoformat()  # noqa: DTZ011  # the day of a measurement
    cell = result.record()
    name = " ".join(cell.pop(part) for part in ("stack", "fault", "launcher"))
    known["cells"] = dict(sorted({**known["cells"], name: cell}.items()))
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_stack_goes_on_after_a_fault(tmp_path, stack, fault, launcher):
    if launcher not in CHOSEN:
        pytest.skip("ECOSYSTEM_LAUNCHERS leaves it out")
    server = RedisServer(tmp_path) if (fault, launcher) == ("agent", "elastic") else None
    try:
        endpoint = server.start().endpoint if server else ""
        cell = Cell(stack, fault, launcher, tmp_path, redis=endpoint)
        result = cell.run()
    finally:
        if server is not None:
            server.stop()
    keep(result)
    if launcher == "torchrun":
        return  # measured, not judged
    said = "\n".join(file.read_text() for file in tmp_path.glob("?.log"))
    assert (result.outcome, result.code) == ("ended", 0), f"{result}\n{said}"
    assert not result.left, result
    if stack == "torchft":  # whose groups are runs of their own: an agent's death is no other agent's matter
        assert fault in {"plain", "agent"} or re.fullmatch(CAUSES[fault], result.cause), f"{result}\n{said}"
        return
    assert re.fullmatch(CAUSES[fault], result.cause), f"{result}\n{said}"
    assert result.resumed_at == (None if fault == "plain" else 5), f"{result}\n{said}"
    assert fault != "agent" or ("waiting for 1 more" in result.cause) == (stack in FIXED)
