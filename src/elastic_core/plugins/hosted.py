"""Rendezvous handlers that were written for torch, found in torchrun's group `torchrun.handlers`.

Such a handler is used if no backend of this project has its name.
"""

from collections.abc import Callable, Sequence
from typing import Final, cast

from elastic_core.plugins.discovery import RENDEZVOUS_GROUP, TORCH_GROUP, PluginEntry, find_entries, is_of_this_project
from elastic_core.plugins.entry_import import Limit
from elastic_core.plugins.loading import build
from elastic_core.plugins.torch_side import torch_part
from elastic_core.rendezvous.handler import RendezvousHandler
from elastic_core.types import RendezvousSettings

OUR_NAMES: Final = frozenset({"c10d", "etcd", "etcd-v2", "static", "redis", "etcd-v3"})
"""Backends that torchrun has itself, which are this project's here, and those that we offer to torchrun."""


def find_hosted(ours: Sequence[PluginEntry]) -> list[PluginEntry]:
    """Return the handlers for torch that can be used here, as entries of our group.

    Names of this project's backends are left out, including those that we offer to torchrun.
    """
    names = OUR_NAMES | {entry.name for entry in ours if entry.group == RENDEZVOUS_GROUP}
    return [
        entry._replace(group=RENDEZVOUS_GROUP)
        for entry in find_entries(TORCH_GROUP)
        if entry.group == TORCH_GROUP and entry.name not in names
    ]


def adapted(entry: PluginEntry, limit: Limit) -> Callable[[RendezvousSettings], RendezvousHandler]:
    """Return a function that makes a handler around one of torch's, by elastic-torchrun, which imports torch.

    Its settings have the options as typed, because torch's handlers read them themselves.

    `limit` is for the handler's import, after torch's.

    Raises:
        PluginError: elastic-torchrun is not installed, torch cannot be imported, the handler is not one that torchrun
            accepts, or its import exceeded the limit.
    """
    begin = torch_part("hosted", needed_by=f"rendezvous backend {entry.name!r} ({entry.label}), written for torch,")
    # torch loads the handlers of all distributions, so any of them may be slow.
    labels = sorted({each.label for each in find_entries(TORCH_GROUP) if not is_of_this_project(each)})
    what = f"importing the handlers for torch of {', '.join(labels)}"
    return cast("Callable[[RendezvousSettings], RendezvousHandler]", build(entry, limit, begin(entry), what))
