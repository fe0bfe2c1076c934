"""The parts that need torch, found by entry points of elastic-torchrun.

The distribution has them in a group of their own; each is imported at its first use.
"""

from typing import Any

from elastic_core.errors import PluginError
from elastic_core.plugins.discovery import TORCH_SIDE_GROUP, core_name, find_entries
from elastic_core.plugins.entry_import import import_value


def torch_part(name: str, *, needed_by: str) -> Any:  # noqa: ANN401  # a module, a class or a function
    """Return a part of elastic-torchrun.

    `name` is that of its entry point, `needed_by` the feature that needs it, for the message.

    Raises:
        PluginError: elastic-torchrun is not installed.
    """
    entries = find_entries()
    value = next((entry.value for entry in entries if (entry.group, entry.name) == (TORCH_SIDE_GROUP, name)), None)
    if value is None:
        from elastic_core.plugins.missing import install_hint

        hint = install_hint("elastic-torchrun", core=core_name(entries))
        raise PluginError(f"{needed_by} comes with elastic-torchrun, which is not installed", hint=hint)
    return import_value(value)


def torch_import(name: str, *, needed_by: str) -> Any:  # noqa: ANN401  # as above
    """Return the same for a name that is imported from the core.

    Raises:
        ImportError: elastic-torchrun is not installed.
    """
    try:
        return torch_part(name, needed_by=needed_by)
    except PluginError as error:
        raise ImportError(str(error)) from None


def torch_handler(parameters: object, *, backend: str) -> Any:  # noqa: ANN401  # torch's RendezvousHandler
    """Return a handler for stock torchrun on one of our backends.

    For an entry point of torch's group `torchrun.handlers`: a function that returns a function that calls this one.
    Import it within that function, because every start of torchrun imports the entry point's module, for any backend.

    Args:
        parameters: The `RendezvousParameters` of torch that the entry point's function receives.
        backend: The backend's name in our group. It must use a `CoordinationStore`.

    Raises:
        PluginError: elastic-torchrun is not installed.
        ValueError: An option is invalid, or the backend does not exist.
    """
    return torch_part("handler", needed_by=f"a rendezvous of ours for torchrun ({backend!r})")(parameters, backend)
