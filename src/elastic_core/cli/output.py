"""Prints the output of commands, without characters that control a terminal."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.types import Record


def echo(*lines: str, err: bool = False) -> None:
    """Print lines. Each is cleaned, so that foreign text cannot add lines."""
    from elastic_core.encoding import clean  # slow, and not needed for help

    (sys.stderr if err else sys.stdout).writelines(f"{clean(line.expandtabs())}\n" for line in lines)


def echo_json(document: "Record | str") -> None:
    """Print a record, or a JSON text, as JSON."""
    from elastic_core.encoding import encode_json, printable_json

    text = document if isinstance(document, str) else encode_json(document).decode()
    sys.stdout.write(printable_json(text) + "\n")
