"""The tables on the pages that are made from the code: `make docs-tables` writes them, a test compares them.

On a page `<!-- table: NAME -->` begins one, and `<!-- end of table -->` ends it.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from agent_states import GENERATORS as OF_STATES
from benchmark_page import GENERATORS as OF_BENCHMARKS
from hangs_table import GENERATORS as OF_HANGS
from migration_tables import GENERATORS as OF_TORCH
from recordings import stored
from reference_tables import GENERATORS
from stacks_table import GENERATORS as OF_STACKS
from warm_picture import timeline_table

DOCS: Final = Path(__file__).resolve().parents[1]
ALL: Final[Mapping[str, Callable[[], str]]] = {
    **GENERATORS, **OF_TORCH, **OF_STACKS, **OF_STATES, **OF_BENCHMARKS, **OF_HANGS,
    "warm-timelines": lambda: timeline_table(stored),
}  # fmt: skip
MADE: Final = re.compile(r"^<!-- table: (?P<name>\S+) -->\n(?P<text>.*?)^<!-- end of table -->$", re.M | re.S)


def pages() -> Iterator[Path]:
    """Give the pages that may have such tables."""
    yield from sorted(DOCS.glob("*/*.md"))


def renewed(text: str) -> str:
    """Return a page's text with its tables as the code has them now."""
    return MADE.sub(
        lambda match: f"<!-- table: {match['name']} -->\n\n{ALL[match['name']]()}\n\n<!-- end of table -->", text
    )


def main() -> None:
    """Write them."""
    for page in pages():
        text = page.read_text()
        if (new := renewed(text)) != text:
            page.write_text(new)
            sys.stdout.write(f"{page.relative_to(DOCS.parent)}\n")


if __name__ == "__main__":
    main()
