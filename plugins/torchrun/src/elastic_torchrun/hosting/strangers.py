"""Makes a backend of a rendezvous handler that a distribution offers to stock torchrun, in `torchrun.handlers`."""

import importlib
import logging
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint

from elastic_core.api import PluginError, RendezvousSettings
from elastic_core.embedding import PluginEntry
from elastic_torchrun.hosting.hosted import HostedRendezvous
from elastic_torchrun.torch_errors import one_line

TORCH_RENDEZVOUS = "torch.distributed.elastic.rendezvous"


def begin_hosting(
    entry: PluginEntry, settings: RendezvousSettings, conf: Mapping[str, str]
) -> Callable[[], HostedRendezvous]:
    """Import torch; return a function that imports what the entry point names, and returns a handler around it.

    Args:
        entry: What was found.
        settings: All but the options.
        conf: The options as typed.

    Raises:
        PluginError: torch can't be imported; from the function: what the entry point names is not what torchrun takes.
    """
    try:
        importlib.import_module("torch")  # which takes as long as its disk does
    except Exception as error:
        raise _no_torch(entry, error) from error

    def make() -> HostedRendezvous:
        _import_rendezvous(entry)
        try:
            create = EntryPoint(entry.name, entry.value, entry.group).load()()  # as torch does
        except (Exception, SystemExit) as error:
            raise _refusal(entry, f"importing {entry.value} raised {type(error).__name__}: {error}") from error
        if not callable(create):
            what = f"{entry.value} gave {type(create).__name__}; a function that makes a handler is needed"
            raise _refusal(entry, what)
        return HostedRendezvous(settings, conf=conf, create=create, label=entry.label)

    return make


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
    what = f"rendezvous backend {entry.name!r} ({entry.label}) was written for torch, which can't be imported here"
    return PluginError(f"{what}: {type(error).__name__}: {one_line(error)}", hint="pip install torch")
