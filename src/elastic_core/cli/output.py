"""What the commands print: all of it goes out here, cleaned of what could steer a terminal."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.types import Record


def echo(*lines: str, err: bool = False) -> None:
    """Print lines, each cleaned: what others have written in one can't make two of it."""
    from elastic_core.encoding import clean  # which help does without

    (sys.stderr if err else sys.stdout).writelines(f"{clean(line.expandtabs())}\n" for line in lines)


def echo_json(document: "Record | str") -> None:
    """Print a record, or a text that is JSON already, as JSON."""
    from elastic_core.encoding import encode_json, printable_json

    text = document if isinstance(document, str) else encode_json(document).decode()
    sys.stdout.write(printable_json(text) + "\n")
