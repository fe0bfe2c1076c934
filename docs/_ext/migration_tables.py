"""The tables of the migration page, from `torch_map` and from the options of the command."""

from collections.abc import Callable, Mapping
from typing import Final

from page_parts import table
from reference_tables import READ_VARIABLES, VARIABLES_OF_HOOKS, WORKER_VARIABLES
from torch_calls import DIFFERENT
from torch_map import COMMANDS, MODULES, PAGES, SINCE, VARIABLES, Module, compat

from elastic_core.option_spec import RunOption
from elastic_core.options.hook_options import all_hook_options
from elastic_core.options.table import OPTIONS


def commands() -> str:
    """Return the commands and entry-point groups."""
    return table(("torch", "here"), ((f"`{torchs}`", ours) for torchs, ours in COMMANDS))


def pages() -> str:
    """Torch's pages and ours."""
    return table(("torch's page", "ours"), PAGES)


def options() -> str:
    """Return the options of torchrun."""
    rows = (
        (_signature(row), f"`{row.env_name}`" if row.env_name else "", _default(row), row.help)
        for row in (*OPTIONS, *all_hook_options())
        if row.torch
    )
    return table(("option", "variable", "default", "here"), rows)


def _signature(row: RunOption) -> str:
    names = ", ".join(f"`{name}`" for name in ([f"-{row.short}"] if row.short else []) + [f"--{row.flag}"])
    return names if not row.value_name else f"{names} `{row.value_name}`"


def _default(row: RunOption) -> str:
    return row.default_note or (f"`{row.default_text}`" if row.default_text else "")


_OURS: Final = ("ELASTIC_", "ETCDCTL_", "JOB_", "LAST_ROUND_", "PATH", "REDIS_", "SLURM_", "TRAINING_", "XDG_")
"""Prefixes of variables that torchrun does not know."""


def variables() -> str:
    """Return the variables that torchrun or a library below it knows, and `elastic run` sets or reads."""
    in_workers = {**WORKER_VARIABLES, **VARIABLES_OF_HOOKS}
    known = {**in_workers, **READ_VARIABLES, **VARIABLES}
    known |= {
        name: f"For workers: {in_workers[name]}. Read: {known[name]}" for name in in_workers.keys() & READ_VARIABLES
    }
    return table(
        ("variable", "here"), ((f"`{name}`", text) for name, text in known.items() if not name.startswith(_OURS))
    )


def names() -> str:
    """Return each public name of torch's modules, by module."""
    return "\n\n".join(_module(name, module) for name, module in MODULES.items())


def _module(name: str, module: Module) -> str:
    rows = [(f"`{each}`", f"`{module.room}.{each}`") for each in module.names]
    rows += [(f"`{each}`", f"`{compat(name)}.{each}`") for each in module.compat_only]
    rows += [(f"`{each}`", f"none; {reason}") for each, reason in module.absent.items()]
    return f"### `{name}`\n\nModule here: `{compat(name)}`.\n\n" + table(("name", "here"), sorted(rows))


def versions() -> str:
    """Return the names that newer releases of torch added."""
    return table(("name", "since torch"), ((f"`{name}`", since) for name, since in SINCE.items()))


def calls() -> str:
    """Return the calls that raise another class of exception."""
    return table(
        ("call", "torch", "here", "why"),
        ((f"`{call}`", f"`{each.torch}`", each.here, each.why) for call, each in DIFFERENT.items()),
    )


GENERATORS: Final[Mapping[str, Callable[[], str]]] = {
    "migration-commands": commands,
    "migration-pages": pages,
    "migration-options": options,
    "migration-variables": variables,
    "migration-names": names,
    "migration-versions": versions,
    "migration-calls": calls,
}
"""By the name that a page asks for."""
