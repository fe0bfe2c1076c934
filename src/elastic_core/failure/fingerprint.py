"""The fingerprint that identifies a repeated failure: class, exception, place and message, without varying numbers."""

import re
from typing import Final

MAX_CHARS: Final = 200
MAX_MESSAGE_CHARS: Final = 2_048

# Addresses and ids come before plain numbers, because both contain digits. Hexadecimal text must contain a digit:
# "deadbeef" and "facade" may be words.
_VARYING: Final = re.compile(
    r"0x[0-9a-fA-F]+"
    r"|\b(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,}){0,4}\b"
    r"|\d+(?:[.,:]\d+)*(?:[eE][+-]?\d+)?"
)
# The file in an error of the operating system: it identifies which of a data set's thousand files is bad. The numbers
# of its folder may be those of a process or a day.
_NAMED_FILE: Final = re.compile(
    r"(\[Errno [\d#]+\] [^'\"\n]*: ['\"](?:[^'\"\n]*/)?)([^/'\"\n]+\.[A-Za-z]\w{1,9})(?=['\"])"
)
_BLANKS: Final = re.compile(r"\s+")


def fingerprint(*, failure_class: str, exception_type: str, place: str, message: str) -> str:
    """Return text of at most 200 characters that is equal for failures of one kind.

    `place` is the innermost line of the user's own code (`train.py:12`). In `message`, numbers, addresses and
    spacing are ignored, but not in a file's name after `[Errno N]`. An empty text is unknown.
    """
    text = "|".join((failure_class, exception_type, place, normalised(message)))
    if len(text) <= MAX_CHARS:
        return text
    import hashlib  # loads OpenSSL, half a MiB: few texts are so long

    mark = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
    return f"{text[: MAX_CHARS - len(mark) - 1]}#{mark}"


def normalised(message: str) -> str:
    """Return a message with `#` for each number and address, and one blank between words."""
    parts = _NAMED_FILE.split(message[:MAX_MESSAGE_CHARS])  # text, start of the path, file name, text …
    kept = "".join(part if index % 3 == 2 else _VARYING.sub("#", part) for index, part in enumerate(parts))
    return _BLANKS.sub(" ", kept).strip()
