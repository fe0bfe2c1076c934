"""Rendezvous handlers that were written for torch, found where stock torchrun finds them: `torchrun.handlers`.

One of them serves where no backend of ours has its name. torch is imported only when one is chosen.
"""

import importlib
import logging
from collections.abc import Callable, Sequence
from typing import Final, cast

from elastic_core.errors import PluginError
from elastic_core.plugins.discovery import RENDEZVOUS_GROUP, TORCH_GROUP, PluginEntry, find_entries, is_of_this_project
from elastic_core.plugins.entry_import import Limit, import_value, limited, mend, one_line, refusal
from elastic_core.plugins.loading import build
from elastic_core.plugins.torch_side import torch_part
from elastic_core.rendezvous.handler import RendezvousHandler
from elastic_core.types import RendezvousSettings

TORCH_RENDEZVOUS: Final = "torch.distributed.elastic.rendezvous"
OUR_NAMES: Final = frozenset({"c10d", "etcd", "etcd-v2", "static", "redis", "etcd-v3"})
"""What torchrun brings itself, which here is ours, and what we bring for torchrun."""


def find_hosted(ours: Sequence[PluginEntry]) -> list[PluginEntry]:
    """Return the handlers for torch that can serve here, as entries of our group.

    Left out are the names of ours, also of those that we offer to torchrun: that is the other way.
    """
    names = OUR_NAMES | {entry.name for entry in ours if entry.group == RENDEZVOUS_GROUP}
    return [
        PluginEntry(
            group=RENDEZVOUS_GROUP,
            name=entry.name,
            value=entry.value,
            distribution=entry.distribution,
            version=entry.version,
        )
        for entry in find_entries(TORCH_GROUP)
        if entry.group == TORCH_GROUP and entry.name not in names
    ]


def adapted(entry: PluginEntry, limit: Limit) -> Callable[[RendezvousSettings], RendezvousHandler]:
    """Return what makes a handler of ours around one of torch's; imports torch.

    It takes settings with the options as typed: torch's handlers read them themselves.

    Args:
        entry: What was found.
        limit: How long what the entry point names may take.

    Raises:
        PluginError: torch can't be imported, or what the entry point names is not what torchrun takes; or that took
            longer.
    """
    hosted = torch_part("hosted", needed_by=f"rendezvous backend {entry.name!r} ({entry.label}), written for torch,")
    _import_torch(entry, limit)
    create = build(entry, limit, lambda: import_value(entry.value)(), f"importing {entry.value}")  # as torch does
    if not callable(create):
        what = f"{entry.value} made {type(create).__name__}; expected a function that makes a handler"
        raise refusal(entry, what, hint=mend(entry))

    def make(settings: RendezvousSettings) -> RendezvousHandler:
        return cast("RendezvousHandler", hosted(settings, conf=settings.options, create=create, label=entry.label))

    return make


def _import_torch(entry: PluginEntry, limit: Limit) -> None:
    # torch loads the handlers of all distributions, and tells of each broken one at length: of those that nobody asked
    # for, too.
    registry = logging.getLogger("torch.distributed.elastic.rendezvous.registry")
    quiet, registry.disabled = registry.disabled, True
    others = sorted({each.label for each in find_entries(TORCH_GROUP) if not is_of_this_project(each)})
    what = f"importing the handlers for torch of {', '.join(others)}"
    try:
        importlib.import_module("torch")  # which takes as long as its disk does
        limited(entry, what, lambda: importlib.import_module(TORCH_RENDEZVOUS), limit)
    except PluginError:
        raise
    except Exception as error:
        what = f"rendezvous backend {entry.name!r} ({entry.label}) was written for torch, which can't be imported here"
        raise PluginError(f"{what}: {type(error).__name__}: {one_line(error)}", hint="pip install torch") from error
    finally:
        registry.disabled = quiet
