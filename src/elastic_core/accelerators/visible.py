"""Visible-devices variables (`CUDA_VISIBLE_DEVICES`), which narrow the devices that a process sees."""


def visible_entries(text: str) -> tuple[str, ...]:
    """Return the devices in a visible-devices variable, up to the first invalid entry, as the runtimes do.

    All entries are numbers, or ids with the first one's prefix (`GPU-`, `MIG-`). With a duplicate, there are none.
    """
    entries: list[str] = []
    for item in (part.strip() for part in text.split(",")):
        if not (item.isdecimal() or item.startswith(("GPU-", "MIG-"))) or (
            entries and _prefix(item) != _prefix(entries[0])
        ):
            break
        entry = str(int(item)) if item.isdecimal() else item
        if entry in entries:
            return ()
        entries.append(entry)
    return tuple(entries)


def _prefix(entry: str) -> str:
    return "" if entry.isdecimal() else entry[:4]
