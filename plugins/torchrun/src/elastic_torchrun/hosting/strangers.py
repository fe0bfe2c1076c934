"""A backend from a rendezvous handler that a distribution offers to stock torchrun, in `torchrun.handlers`."""

import importlib
import logging
from collections.abc import Callable
from importlib.metadata import EntryPoint

from elastic_core.api import ConfigError, PluginError, RendezvousSettings
from elastic_core.api.plugins import PluginEntry
from elastic_core.api.workers import TORCH_HINT, import_torch
from elastic_torchrun.hosting.hosted import HostedRendezvous
from elastic_torchrun.torch_errors import one_line

TORCH_RENDEZVOUS = "torch.distributed.elastic.rendezvous"


Maker = Callable[[RendezvousSettings], HostedRendezvous]
"""Makes a handler from settings with the options as typed."""


def begin_hosting(entry: PluginEntry) -> Callable[[], Maker]:
    """Import torch. Return a function that imports the entry point's object, and returns the maker of its handlers.

    Args:
        entry: The entry point.

    Raises:
        PluginError: torch is missing, or its release is not supported. From the function: the entry point names an
            object that torchrun does not accept.
    """
    try:
        import_torch(_name(entry))  # which takes as long as its disk does
    except ConfigError as error:
        raise PluginError(error.what, hint=error.hint) from error

    def load() -> Maker:
        _import_rendezvous(entry)
        try:
            create = EntryPoint(entry.name, entry.value, entry.group).load()()  # as torch does
        except (Exception, SystemExit) as error:
            raise _refusal(entry, f"importing {entry.value} raised {type(error).__name__}: {error}") from error
        if not callable(create):
            what = f"{entry.value} made {type(create).__name__}; expected a function that makes a handler"
            raise _refusal(entry, what)

        def make(settings: RendezvousSettings) -> HostedRendezvous:
            conf = {key: str(value) for key, value in settings.options.items()}
            return HostedRendezvous(settings, conf=conf, create=create, label=entry.label)

        return make

    return load


def _import_rendezvous(entry: PluginEntry) -> None:
    # torch loads the handlers of all distributions, and logs each broken one at length, also those that are not used.
    registry = logging.getLogger("torch.distributed.elastic.rendezvous.registry")
    quiet, registry.disabled = registry.disabled, True
    try:
        importlib.import_module(TORCH_RENDEZVOUS)
    except Exception as error:
        raise _no_torch(entry, error) from error
    finally:
        registry.disabled = quiet


def _refusal(entry: PluginEntry, what: str) -> PluginError:
    hint = f"install a newer {entry.distribution} from where this one came, or report it to its authors"
    return PluginError(f"rendezvous backend {entry.name!r} ({entry.label}): {what}", hint=hint)


def _no_torch(entry: PluginEntry, error: Exception) -> PluginError:
    what = f"{_name(entry)}: {TORCH_RENDEZVOUS} can't be imported ({type(error).__name__}: {one_line(error)})"
    return PluginError(what, hint=TORCH_HINT)


def _name(entry: PluginEntry) -> str:
    return f"rendezvous backend {entry.name!r} ({entry.label}), written for torchrun"
