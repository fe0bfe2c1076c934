"""Any installed backend for a script, with torch's parameters."""

import os
from typing import Any

from elastic_core.api import ElasticError, RendezvousSettings
from elastic_core.embedding import CoordinatedRendezvous, PluginRegistry
from elastic_torchrun.hosting.hosted import HostedRendezvous
from elastic_torchrun.rendezvous.dynamic import DynamicRendezvousHandler
from elastic_torchrun.rendezvous.parameters import RendezvousParameters, run_id_of


def make_handler(params: RendezvousParameters) -> Any:  # noqa: ANN401  # ours, or torch's
    """Return a handler of the backend with the name `params.backend` in `elastic run`.

    Raises:
        ValueError: there is no such backend, or an option is invalid, as in torch's registry.
    """
    settings = RendezvousSettings(
        backend=params.backend,
        run_id=run_id_of(params.run_id),
        endpoint=params.endpoint,
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        local_world_size=1,
        local_addr=params.local_addr,
        incarnation=os.urandom(16).hex(),
    )
    conf = {key: str(value) for key, value in params.config.items() if key != "timeout" or isinstance(value, str)}
    try:
        made = PluginRegistry().make_rendezvous(params.backend, settings, conf)
    except ElasticError as error:
        raise ValueError(str(error)) from error
    if isinstance(made, HostedRendezvous):
        return made.bare()
    return DynamicRendezvousHandler(made.store, made.settings) if isinstance(made, CoordinatedRendezvous) else made
