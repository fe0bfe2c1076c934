"""The options of `elastic run`, one row each: names, environment variable, default, and what people read about them.

The rows stand in the files of their sections. Rows with `torch` are torchrun's, with its default and meaning; a test
compares them with torch's own parser. Values stay text here: `options.readers` reads them, the same way wherever they
come from.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from elastic_core.options.choices import VARIABLE_PREFIX, OptionRow, Section
from elastic_core.options.debug_options import COMPATIBILITY, DEBUGGING
from elastic_core.options.node_options import NODES
from elastic_core.options.output_options import LOGS
from elastic_core.options.restart_options import EXIT, RESTARTS, SIGNALS
from elastic_core.options.worker_options import WORKERS
from elastic_core.processes.spec import PLACE_VARIABLES

__all__ = ["BY_DEST", "OPTIONS", "OptionRow", "Section", "chosen_elsewhere", "torch_variables"]

OPTIONS: Final[tuple[OptionRow, ...]] = (
    *WORKERS,
    *NODES,
    *RESTARTS,
    *EXIT,
    *LOGS,
    *SIGNALS,
    *DEBUGGING,
    *COMPATIBILITY,
)

BY_DEST: Final[dict[str, OptionRow]] = {row.dest: row for row in OPTIONS}
"""The rows by identifier."""

_VARIABLES: Final = frozenset(row.env for row in OPTIONS if row.env is not None)


def chosen_elsewhere(given: Mapping[str, object], environ: Mapping[str, str]) -> Iterator[str]:
    """Return what was given, on the command line or by a variable, and is in no row here: options of hooks, perhaps."""
    yield from (dest for dest in given if dest not in BY_DEST)
    for name, text in environ.items():
        if name.startswith(VARIABLE_PREFIX) and text and name not in _VARIABLES:
            yield name.removeprefix(VARIABLE_PREFIX).lower()


def torch_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Return torch's variables that are set and say nothing of a worker's place: options of hooks, perhaps."""
    for name, text in environ.items():
        if text and name.startswith("TORCHELASTIC_") and name not in PLACE_VARIABLES:
            yield name
