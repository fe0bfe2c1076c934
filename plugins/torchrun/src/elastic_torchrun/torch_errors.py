"""What torch's errors say, on one line."""

from typing import Final

_LENGTH: Final = 400


def one_line(error: Exception) -> str:
    """Return what an error says: without the C++ frames that torch appends, nor the frames' kin before the message."""
    first = str(error).strip().partition("\n")[0].strip()
    if not first:
        return type(error).__name__
    text = first.rpartition("message: ")[2] or first
    return text[:_LENGTH] if text != first else f"{type(error).__name__}: {first}"[:_LENGTH]
