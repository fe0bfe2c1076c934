"""How the ledger notes an event of a hook."""

from collections.abc import Mapping


def hook_note(name: str, values: Mapping[str, object]) -> tuple[str, str]:
    """Return the name and the text of the note.

    The name ends with the event's `state`, such as `hang_suspected`, so that it is not mistaken for a failure. The text
    is the event's `summary`, or else all its values.
    """
    state, summary = values.get("state"), values.get("summary")
    text = summary if isinstance(summary, str) else ", ".join(f"{key}={value}" for key, value in values.items())
    return (f"{name}_{state}" if isinstance(state, str) else name), text
