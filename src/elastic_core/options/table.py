"""The options of `elastic run`, one row each: names, environment variable, default, and what people read about them.

Rows with `torch` are torchrun's, with its default and meaning; a test compares them with torch's own parser. Values
stay text here: `options.values` reads them, the same way wherever they come from.
"""

from elastic_core.options.option import OptionRow, Section
from elastic_core.options.table_observing import OBSERVING
from elastic_core.options.table_rest import REST
from elastic_core.options.table_start import START
from elastic_core.options.table_upkeep import UPKEEP

__all__ = ["BY_DEST", "OPTIONS", "OptionRow", "Section"]

OPTIONS: tuple[OptionRow, ...] = (*START, *UPKEEP, *OBSERVING, *REST)

BY_DEST: dict[str, OptionRow] = {row.dest: row for row in OPTIONS}
"""The rows by identifier."""
