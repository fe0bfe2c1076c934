"""By what a failure is known again: class, exception, place and message, without what changes from one to the next."""

import hashlib
import re
from typing import Final

MAX_CHARS: Final = 200
MAX_MESSAGE_CHARS: Final = 2_048

# Addresses and ids before plain numbers: both have digits in them. Hexadecimal only with a digit in it: "deadbeef" may
# be a word, and "facade" is one.
_VARYING: Final = re.compile(
    r"0x[0-9a-fA-F]+"
    r"|\b(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,}){0,4}\b"
    r"|\d+(?:[.,:]\d+)*(?:[eE][+-]?\d+)?"
)
# The file that an error of the operating system names: of a data set's thousand files this one is the trouble. Its
# folder's numbers may be a process's or a day's.
_NAMED_FILE: Final = re.compile(
    r"(\[Errno [\d#]+\] [^'\"\n]*: ['\"](?:[^'\"\n]*/)?)([^/'\"\n]+\.[A-Za-z]\w{1,9})(?=['\"])"
)
_BLANKS: Final = re.compile(r"\s+")


def fingerprint(*, failure_class: str, exception_type: str, place: str, message: str) -> str:
    """Return text of at most 200 characters that is equal for failures of one kind.

    Args:
        failure_class: What kind of failure.
        exception_type: As Python prints it, empty where there was none.
        place: The innermost line of the user's own code (`train.py:12`), empty where unknown.
        message: Numbers and addresses in it don't count, except in the name of a file after `[Errno N]`; nor does how
            its words are spaced.
    """
    text = "|".join((failure_class, exception_type, place, normalised(message)))
    if len(text) <= MAX_CHARS:
        return text
    mark = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
    return f"{text[: MAX_CHARS - len(mark) - 1]}#{mark}"


def normalised(message: str) -> str:
    """Return a message with `#` for each number and address, and one blank between words."""
    parts = _NAMED_FILE.split(message[:MAX_MESSAGE_CHARS])  # text, what leads to a file's name, the name, text …
    kept = "".join(part if index % 3 == 2 else _VARYING.sub("#", part) for index, part in enumerate(parts))
    return _BLANKS.sub(" ", kept).strip()
