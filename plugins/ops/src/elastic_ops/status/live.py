"""A run's status as a table on a terminal, drawn by rich if it is installed (the extra `ui`)."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from elastic_ops.status.page import Page, Table

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table as RichTable

_STYLES: Final = {
    "running": "green",
    "alive": "green",
    "done": "green",
    "failed": "red",
    "lost": "red",
    "silent": "red",
    "agent dead": "red",
    "all nodes lost": "red",
    "ended": "yellow",
}
_ANY: Final = "yellow"


def wanted() -> bool:
    """Return whether stdout is a terminal that can show a table, and rich is installed."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return False
    try:
        import rich  # noqa: F401  # whether it is there
    except ImportError:
        return False
    return True


def show(pages: Sequence[Page]) -> None:
    """Print pages once, one below the other."""
    from rich.console import Console

    Console(soft_wrap=False).print(_drawn(pages))


@contextmanager
def live() -> Iterator[Callable[[Sequence[Page]], None]]:
    """Yield a function that replaces the shown pages."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as shown:
        yield lambda pages: shown.update(_drawn(pages), refresh=True)


def _drawn(pages: Sequence[Page]) -> "Group":
    from rich.console import Group

    return Group(*map(_drawn_page, pages))


def _drawn_page(page: Page) -> "Group":
    from rich.console import Group
    from rich.text import Text

    above, below = Text("\n".join(page.above)), Text("\n".join(page.below))
    return Group(*([above] if page.above else []), *map(_table, page.tables), *([below] if page.below else []))


def _table(table: Table) -> "RichTable":
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in table.heads:
        drawn.add_column(head, overflow="fold")
    state = table.heads.index("STATE")
    for row in table.rows:
        # As text, not as rich's markup: a node may be called [red].
        cells = [Text(cell, style=_STYLES.get(cell, _ANY) if at == state else "") for at, cell in enumerate(row)]
        drawn.add_row(*cells)
    return drawn
