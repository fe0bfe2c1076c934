"""The table of training stacks, from the measurements of `make ecosystem` (`stacks.json`)."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from page_parts import table

RESULTS: Final = Path(__file__).with_name("stacks.json")
_STACKS: Final = {
    "ddp": "DDP",
    "fsdp2": "FSDP2 `fully_shard`, DCP",
    "accelerate": "accelerate, `save_state`",
    "lightning": 'Lightning, `ckpt_path="last"`',
    "transformers": "transformers Trainer, `resume_from_checkpoint`",
    "deepspeed": "DeepSpeed, ZeRO 1",
    "torchft": "torchft, two groups",
    "async_save": "DDP, DCP `async_save`",
}
_FAULTS: Final = {"plain": "plain", "crash": "rank 1 raises", "worker": "rank 1 killed", "agent": "an agent killed"}
_LAUNCHERS: Final = ("torchrun", "elastic")


def _results() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(RESULTS.read_text())
    return found


def stacks() -> str:
    """A row for each stack and fault, torchrun beside ours."""
    cells = _results()["cells"]
    rows = []
    for stack, name in _STACKS.items():
        for fault, what in _FAULTS.items():
            both = [cells.get(f"{stack} {fault} {launcher}") for launcher in _LAUNCHERS]
            cause = both[1]["cause"] if both[1] else ""
            rows.append((name if fault == "plain" else "", what, *map(_told, both), f"`{cause}`" if cause else ""))
    return table(("stack", "", "torchrun", "elastic run", "first line of `elastic run` about it"), rows)


def _told(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "not measured"
    if cell["outcome"] == "stuck":
        return "**stuck**"
    if cell["outcome"] == "failed":
        return f"failed, exit code {cell['code']}, {cell['seconds']} s"
    at = "" if cell["resumed_at"] is None else f", from step {cell['resumed_at']}"
    left = f"; {len(cell['left'])} left running" if cell["left"] else ""
    return f"{cell['seconds']} s{at}{left}"


def versions() -> str:
    """What it was measured with."""
    found = _results()
    rows = [(f"{name}", version) for name, version in found["versions"].items()]
    return table(("package", f"version, {found['date']}"), rows)


GENERATORS: Final[Mapping[str, Callable[[], str]]] = {"stacks": stacks, "stack-versions": versions}
