"""Messages of torch's errors, on one line."""

from typing import Final

_LENGTH: Final = 400


def one_line(error: Exception) -> str:
    """Return the message of an error, without a full stop, and without the C++ frames that torch adds to it."""
    first = str(error).strip().partition("\n")[0].strip().rstrip(".")
    if not first:
        return type(error).__name__
    text = first.rpartition("message: ")[2] or first
    return text[:_LENGTH] if text != first else f"{type(error).__name__}: {first}"[:_LENGTH]
