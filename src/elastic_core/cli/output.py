"""Prints the output of commands, without characters that control a terminal."""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.system.colours import Painter
    from elastic_core.types import Record


def echo(*lines: str, err: bool = False, painter: "Painter | None" = None) -> None:
    """Print lines. Each is cleaned, so that foreign text cannot add lines.

    Args:
        lines: The lines.
        err: Whether they go to stderr.
        painter: Gives them colours if the stream is a terminal, or as `NO_COLOR` and `FORCE_COLOR` request.
    """
    from elastic_core.encoding import clean  # slow, and not needed for help

    stream = sys.stderr if err else sys.stdout
    shown = (clean(line.expandtabs()) for line in lines)
    if painter is not None:
        from elastic_core.logger import shows_colours

        shown = (painter(line) for line in shown) if shows_colours(os.environ, terminal=stream.isatty()) else shown
    stream.writelines(f"{line}\n" for line in shown)


def echo_json(document: "Record | str") -> None:
    """Print a record, or a JSON text, as JSON."""
    from elastic_core.encoding import encode_json, printable_json

    text = document if isinstance(document, str) else encode_json(document).decode()
    sys.stdout.write(printable_json(text) + "\n")
