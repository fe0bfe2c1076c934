"""What knows torch, found by entry points: it comes with elastic-torchrun.

The distribution offers its parts in a group of their own; each is imported when it is first asked for.
"""

from typing import Any

from elastic_core.errors import PluginError
from elastic_core.plugins.discovery import TORCH_SIDE_GROUP, core_name, find_entries
from elastic_core.plugins.entry_import import import_value


def torch_part(name: str, *, needed_by: str) -> Any:  # noqa: ANN401  # a module, a class or a function
    """The part of elastic-torchrun with this name.

    Args:
        name: As its entry point is called.
        needed_by: What can't be had without it, for the message.

    Raises:
        PluginError: the distribution is not installed.
    """
    entries = find_entries()
    value = next((entry.value for entry in entries if (entry.group, entry.name) == (TORCH_SIDE_GROUP, name)), None)
    if value is None:
        from elastic_core.plugins.missing import install_hint

        hint = install_hint("elastic-torchrun", core=core_name(entries))
        raise PluginError(f"{needed_by} comes with elastic-torchrun, which is not installed", hint=hint)
    return import_value(value)


def torch_import(name: str, *, needed_by: str) -> Any:  # noqa: ANN401  # as above
    """As `torch_part`, for what is imported by a path of the core's.

    Raises:
        ImportError: the distribution is not installed.
    """
    try:
        return torch_part(name, needed_by=needed_by)
    except PluginError as error:
        raise ImportError(str(error)) from None


def torch_handler(parameters: object, *, backend: str) -> Any:  # noqa: ANN401  # torch's RendezvousHandler
    """A handler for stock torchrun on one of our backends.

    For an entry point of torch's group `torchrun.handlers`: a function that returns a function which calls this one.
    Import this within that function: every start of torchrun imports the entry point's module, whatever backend is
    asked for.

    Args:
        parameters: torch's `RendezvousParameters`, as the entry point's function is handed them.
        backend: The name of the backend in our group; it must be one on a `CoordinationStore`.

    Raises:
        PluginError: elastic-torchrun is not installed.
        ValueError: an option can't be, or there is no such backend.
    """
    return torch_part("handler", needed_by=f"a rendezvous of ours for torchrun ({backend!r})")(parameters, backend)
