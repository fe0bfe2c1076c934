"""What a worker's process groups have entered and completed, from the entries of torch's flight recorder. Pure."""

# Not from typing: training scripts import this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    Entry = Mapping[str, Any]
    """One operation, as torch's flight recorder writes it."""
    Chosen = tuple["Group", list[Entry]]
    """A group, and its collectives in the order of their numbers."""

MAX_GROUPS = 64
MAX_LAST = 8
MAX_ARRIVALS = 256
MAX_TEXT = 200
"""The longest name, description or signature, in characters."""
UNNAMED = "undefined"
"""Torch's description of a group to which the script gave none."""


class Group:
    """A process group of this process that is not destroyed. A group with several backends counts once for each.

    Args:
        name: Torch's name.
        description: The script's name for it.
        backend: Such as `gloo`.
        members: The global ranks.
        label: The name that is unique among backends too, and the same on all ranks.
        used: The number of operations so far, point-to-point ones included for gloo. `None` if the backend does not
            count them.
        records: Whether the recorder has entries of this backend.
    """

    __slots__ = ("backend", "description", "label", "members", "name", "records", "used")

    def __init__(
        self,
        name: str,
        *,
        description: str,
        backend: str,
        members: "Sequence[int]",
        label: str,
        used: "int | None",
        records: bool,
    ) -> None:
        self.name, self.description, self.backend = name, description, backend
        self.members, self.label, self.used, self.records = sorted(members), label, used, records


def chosen(groups: "Iterable[Group]", traces: "Sequence[Sequence[Entry]]") -> "tuple[list[Chosen], int]":
    """Return the groups of several members with their collectives, and the number of groups that are not known.

    Torch gives a name again after its group was destroyed. The number of the group in the process (`pg_id`) only
    rises, so entries of an earlier group of that name are found and dropped.

    Args:
        groups: In the order in which they were made.
        traces: The entries of each recorder, in the order in which they were made.
    """
    found: dict[tuple[str, str, int], dict[int, list[Entry]]] = {}
    full = False
    for number, trace in enumerate(traces):
        full = full or (bool(trace) and int(trace[0].get("record_id", 0)) > 0)
        for entry in trace:
            if entry.get("is_p2p"):
                continue
            backend = str(entry["profiling_name"]).partition(":")[0]
            of_name = found.setdefault((entry["process_group"][0], backend, number), {})
            of_name.setdefault(int(entry["pg_id"]), []).append(entry)
    last: dict[int, int] = {}
    kept, unknown = [], 0
    for group in groups:
        entries: list[Entry] = []
        for number in range(len(traces)):
            candidates = found.get((group.name, group.backend, number), {})
            newest = max(candidates, default=-1)
            if newest > last.get(number, -1) and _belongs(candidates[newest], group.used):
                entries, last[number] = candidates[newest], newest
        if len(group.members) < 2:
            continue
        if entries or (group.records and (not full or group.used == 0)):
            kept.append((group, sorted(entries, key=_seq)))
        else:
            unknown += 1  # the recorder has overwritten its entries, or never has any of this backend
    return kept, unknown


def _belongs(entries: "Sequence[Entry]", used: "int | None") -> bool:
    return used is None or max(map(_seq, entries)) <= used


def _seq(entry: "Entry") -> int:
    return int(entry["collective_seq_id"])


def as_states(kept: "Sequence[Chosen]") -> "tuple[list[dict[str, object]], int]":
    """Return the state of each group, as in `GroupState`, and the number of those that are left out.

    With too many groups, those that wait are kept first, then those with the latest operations.
    """
    order = sorted(range(len(kept)), key=lambda at: _urgency(kept[at][1]))[:MAX_GROUPS]
    return [_state(*kept[at]) for at in sorted(order)], len(kept) - len(order)


def _urgency(entries: "Sequence[Entry]") -> tuple[bool, int]:
    if not entries:
        return True, 0
    return not any(map(_open, entries)), -max(int(entry["time_created_ns"]) for entry in entries)


def _open(entry: "Entry") -> bool:
    return not entry.get("retired") and entry.get("state") != "completed"


def _state(group: Group, entries: "Sequence[Entry]") -> "dict[str, object]":
    enqueued = _seq(entries[-1]) if entries else 0
    waiting = [_seq(entry) for entry in entries if _open(entry)]
    state: dict[str, object] = {
        "group": _text(group.label),
        "description": "" if group.description == UNNAMED else _text(group.description),
        "backend": _text(group.backend),
        "members": group.members,
        "enqueued": enqueued,
        "completed": min(waiting) - 1 if waiting else enqueued,
        "last": _operations(entries),
    }
    if group.backend != "gloo" and entries:  # which records no start
        state["started"] = entries[-1].get("state") == "started"
    return state


def _operations(entries: "Sequence[Entry]") -> "list[dict[str, object]]":
    """Return the last operations. Those that were coalesced have one number, and count as one."""
    parts: dict[int, list[Entry]] = {}
    for entry in entries[::-1]:
        if _seq(entry) not in parts and len(parts) == MAX_LAST:
            break
        parts.setdefault(_seq(entry), []).insert(0, entry)
    return [
        {
            "seq": seq,
            "name": _text(str(same[-1]["profiling_name"]).partition(":")[2]),
            "signature": _text("; ".join(filter(None, map(_signature, same)))),
        }
        for seq, same in sorted(parts.items())
    ]


def _signature(entry: "Entry") -> str:
    given = _tensors(entry.get("input_dtypes"), entry.get("input_sizes"))
    returned = _tensors(entry.get("output_dtypes"), entry.get("output_sizes"))
    return f"{given} -> {returned}" if given or returned else ""


def _tensors(types: "Any", sizes: "Any") -> str:  # noqa: ANN401  # as torch writes them
    return ", ".join(f"{kind}{list(size)}" for kind, size in zip(types or (), sizes or (), strict=False))


def _text(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def as_arrivals(kept: "Sequence[Chosen]", *, offset_ns: int) -> "list[dict[str, object]]":
    """Return the times at which the last operations were entered, oldest first, as in `Arrival`.

    Args:
        kept: The groups.
        offset_ns: What to add to the recorder's times for CLOCK_MONOTONIC.
    """
    times = sorted(
        (int(entry["time_created_ns"]), group.label, _seq(entry)) for group, entries in kept for entry in entries
    )
    return [
        {"group": _text(label), "seq": seq, "entered_ns": at + offset_ns} for at, label, seq in times[-MAX_ARRIVALS:]
    ]


def as_file(kept: "Sequence[Chosen]", trace: "Mapping[str, Any]") -> "dict[str, Any]":
    """Return a trace for `torchfrtrace`: the entries of the given groups, and their members.

    What torch writes for gloo names no members, and has entries of groups that were destroyed.
    """
    first: dict[str, Chosen] = {}
    for group, entries in kept:  # of a group with two backends the one that was used more
        if len(entries) >= len(first[group.name][1] if group.name in first else ()):
            first[group.name] = group, entries
    entries = [{"frames": [], **entry} for _, own in first.values() for entry in own]
    return {
        **trace,
        "pg_config": {
            name: {"name": name, "desc": group.description, "ranks": str(group.members)}
            for name, (group, _) in first.items()
        },
        "entries": sorted(entries, key=lambda entry: int(entry["time_created_ns"])),
    }
