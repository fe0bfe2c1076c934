"""The rendezvous handler of a `WorkerSpec`, with torch's methods."""

import os
from typing import Any

from elastic_core.api import RendezvousHandler, RendezvousSettings
from elastic_core.api.rendezvous import Capability
from elastic_core.embedding import LocalRendezvous
from elastic_torchrun.agent.worker_spec import WorkerSpec


def handler_of(spec: WorkerSpec) -> Any:  # noqa: ANN401  # ours, or torch's
    """Return a handler for `SimpleElasticAgent`: the spec's, an adapter for it, or a local one if there is none.

    A handler that reports changes by itself gets torch's interface, in which an agent polls for them; that needs torch.
    """
    handler = spec.rdzv_handler
    if handler is None:
        return local_handler(spec)
    if hasattr(handler, "adopt"):
        return handler  # in torch's shape where no agent of ours has it
    if isinstance(handler, RendezvousHandler) and Capability.CONTROL in handler.capabilities:
        from elastic_torchrun.hosting.torchrun import TorchHandler  # which imports torch's rendezvous

        return TorchHandler(handler, name=handler.get_backend())
    return handler


def local_handler(spec: WorkerSpec) -> RendezvousHandler:
    """Return the rendezvous of a single node."""
    return LocalRendezvous(
        RendezvousSettings(
            backend="local",
            run_id=os.urandom(8).hex(),
            endpoint="",
            min_nodes=1,
            max_nodes=1,
            local_world_size=spec.local_world_size,
            role=spec.role,
            local_addr=spec.local_addr,
            monitor_interval_s=spec.monitor_interval,
        )
    )
