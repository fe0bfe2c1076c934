"""The options of `elastic run`, one row each: names, environment variable, default, and what people read about them.

The rows stand in the files of their sections. Rows with `torch` are torchrun's, with its default and meaning; a test
compares them with torch's own parser. Values stay text here: `options.values` reads them, the same way wherever they
come from.
"""

from typing import Final

from elastic_core.options.debug_options import COMPATIBILITY, DEBUGGING
from elastic_core.options.node_options import NODES
from elastic_core.options.observing_options import OBSERVING
from elastic_core.options.option import OptionRow, Section
from elastic_core.options.output_options import LOGS
from elastic_core.options.restart_options import RESTARTS
from elastic_core.options.standby_options import STANDBY
from elastic_core.options.stop_options import EXIT, SIGNALS
from elastic_core.options.watch_options import HANGS
from elastic_core.options.worker_options import WORKERS

__all__ = ["BY_DEST", "OPTIONS", "OptionRow", "Section"]

OPTIONS: Final[tuple[OptionRow, ...]] = (
    *WORKERS,
    *NODES,
    *RESTARTS,
    *EXIT,
    *HANGS,
    *STANDBY,
    *LOGS,
    *SIGNALS,
    *OBSERVING,
    *DEBUGGING,
    *COMPATIBILITY,
)

BY_DEST: Final[dict[str, OptionRow]] = {row.dest: row for row in OPTIONS}
"""The rows by identifier."""
