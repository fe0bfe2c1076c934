"""All options of `elastic run` in the core. Those of a section are in its module, such as `restart_options`.

Options with `torch` have torchrun's default and meaning; a test compares them with torch's parser.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from elastic_core.option_spec import VARIABLE_PREFIX, RunOption
from elastic_core.options.debug_options import COMPATIBILITY, DEBUGGING
from elastic_core.options.node_options import NODES
from elastic_core.options.output_options import LOGS
from elastic_core.options.restart_options import EXIT, RESTARTS, SIGNALS
from elastic_core.options.worker_options import WORKERS
from elastic_core.processes.spec import PLACE_VARIABLES

__all__ = ["BY_DEST", "OPTIONS", "chosen_elsewhere", "torch_variables"]

OPTIONS: Final[tuple[RunOption, ...]] = (
    *WORKERS,
    *NODES,
    *RESTARTS,
    *EXIT,
    *LOGS,
    *SIGNALS,
    *DEBUGGING,
    *COMPATIBILITY,
)

BY_DEST: Final[dict[str, RunOption]] = {option.name: option for option in OPTIONS}
"""The options by identifier."""

_VARIABLES: Final = frozenset(option.env_name for option in OPTIONS)


def chosen_elsewhere(given: Mapping[str, object], environ: Mapping[str, str]) -> Iterator[str]:
    """Return the given options, by command line or variable, that the core does not have: perhaps those of hooks."""
    yield from (dest for dest in given if dest not in BY_DEST)
    for name, text in environ.items():
        if name.startswith(VARIABLE_PREFIX) and text and name not in _VARIABLES:
            yield name.removeprefix(VARIABLE_PREFIX).lower()


def torch_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Return torch's variables that are set and do not describe a worker's place: perhaps options of hooks."""
    for name, text in environ.items():
        if text and name.startswith("TORCHELASTIC_") and name not in PLACE_VARIABLES:
            yield name
