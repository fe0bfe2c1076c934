"""Rendezvous handlers that were written for torch, found where stock torchrun finds them: `torchrun.handlers`.

One of them serves where no backend of ours has its name.
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
"""What torchrun brings itself, which here is ours, and what we bring for torchrun."""


def find_hosted(ours: Sequence[PluginEntry]) -> list[PluginEntry]:
    """Return the handlers for torch that can serve here, as entries of our group.

    Left out are the names of ours, also of those that we offer to torchrun: that is the other way.
    """
    names = OUR_NAMES | {entry.name for entry in ours if entry.group == RENDEZVOUS_GROUP}
    return [
        entry._replace(group=RENDEZVOUS_GROUP)
        for entry in find_entries(TORCH_GROUP)
        if entry.group == TORCH_GROUP and entry.name not in names
    ]


def adapted(entry: PluginEntry, limit: Limit) -> Callable[[RendezvousSettings], RendezvousHandler]:
    """Return what makes a handler of ours around one of torch's; elastic-torchrun does, which imports torch.

    It takes settings with the options as typed: torch's handlers read them themselves.

    Args:
        entry: What was found.
        limit: How long what the entry point names may take, after torch itself.

    Raises:
        PluginError: elastic-torchrun is not installed, torch can't be imported, or what the entry point names is not
            what torchrun takes; or that took longer.
    """
    begin = torch_part("hosted", needed_by=f"rendezvous backend {entry.name!r} ({entry.label}), written for torch,")
    # torch loads the handlers of all distributions, so any of them may be what takes long.
    labels = sorted({each.label for each in find_entries(TORCH_GROUP) if not is_of_this_project(each)})
    what = f"importing the handlers for torch of {', '.join(labels)}"
    return cast("Callable[[RendezvousSettings], RendezvousHandler]", build(entry, limit, begin(entry), what))
