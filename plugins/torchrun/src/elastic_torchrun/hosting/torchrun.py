"""elastic-core's rendezvous for stock torchrun: a handler with torch's methods.

Torch is named in strings so that the type checker needs no torch; a caller that needs a handler has imported it.
"""

import importlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from elastic_core.api import ElasticError, PluginError, RendezvousHandler, RendezvousSettings
from elastic_core.api.rendezvous import (
    Capability,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from elastic_core.api.stores import STORE_FORMAT
from elastic_core.api.tools import clean
from elastic_core.embedding import CoordinatedRendezvous, PluginRegistry, attempt_from_environment
from elastic_torchrun.hosting.round_store import RoundStores
from elastic_torchrun.rendezvous.agentless import AloneRounds, AloneServices
from elastic_torchrun.rendezvous.blocking_rendezvous import BlockingRendezvous

TORCH_RENDEZVOUS = "torch.distributed.elastic.rendezvous"

_ERRORS: tuple[tuple[type[ElasticError], str], ...] = (
    (RendezvousTimeoutError, "RendezvousTimeoutError"),
    (RendezvousClosedError, "RendezvousClosedError"),
    (RendezvousConnectionError, "RendezvousConnectionError"),
    (RendezvousStateError, "RendezvousStateError"),
    (RendezvousGracefulExitError, "RendezvousGracefulExitError"),
    (ElasticError, "RendezvousError"),
)
"""Name in elastic-core, and the corresponding name in torch."""

_log = logging.getLogger("elastic_core.torchrun")


class TorchParameters(Protocol):
    """The parameters that torch passes to a handler's creator."""

    backend: str
    endpoint: str
    run_id: str
    min_nodes: int
    max_nodes: int
    local_addr: str | None
    config: Mapping[str, object]


def make_handler(parameters: TorchParameters, backend: str) -> "TorchHandler":
    """Return a handler for torchrun, with the backend that `elastic run` knows by the name `backend`.

    Raises:
        ValueError: an option is invalid, or there is no such backend, as in torch's own backends.
    """
    conf = _conf(parameters.config)
    registry = PluginRegistry()
    try:
        made = registry.make_rendezvous(backend, _settings(parameters, backend, conf), conf)
        handler = BlockingRendezvous(made.store, made.settings) if isinstance(made, CoordinatedRendezvous) else made
        if Capability.CONTROL not in handler.capabilities:
            raise PluginError(f"rendezvous backend {backend!r} can't serve torchrun: it does not decide for a run")
    except ElasticError as error:
        raise ValueError(_for_torchrun(str(error))) from error
    for text in registry.warnings:
        _log.warning("elastic: %s", clean(text))
    importlib.import_module(TORCH_RENDEZVOUS).RendezvousHandler.register(TorchHandler)
    return TorchHandler(handler, name=parameters.backend)


def _conf(config: Mapping[str, object]) -> dict[str, str]:
    """Return the options that the user typed. Torch's launcher adds a `timeout`, which is a number and not a text."""
    return {key: str(value) for key, value in config.items() if key != "timeout" or isinstance(value, str)}


def _settings(parameters: TorchParameters, backend: str, conf: Mapping[str, str]) -> RendezvousSettings:
    attempt = attempt_from_environment(os.environ)
    return RendezvousSettings(
        backend=backend,
        run_id=parameters.run_id,
        endpoint=parameters.endpoint,
        min_nodes=parameters.min_nodes,
        max_nodes=parameters.max_nodes,
        local_world_size=1,  # torch's agents tell each other how many workers they have
        local_addr=parameters.local_addr,
        incarnation=os.urandom(16).hex(),
        attempt=attempt.number,
        attempt_given=attempt.given,
        job=attempt.job,
        # torch's nodes agree on nothing else; those of `elastic run` would not understand them.
        fingerprint={"agent": "torchrun", "format": str(STORE_FORMAT)},
        allow_mismatch=("nnodes",),
    )


class TorchHandler:
    """The handler that torch's agent calls, registered as a subclass of torch's `RendezvousHandler`.

    A round that is over for any reason (a node joined, left or was lost, another agent restarts its workers, the run
    has failed) is reported as a waiting node: the only report for which torch's agent restarts running workers.

    Threading: one thread at a time; the rendezvous keeps the node's lease on a thread of its own.
    """

    def __init__(self, handler: RendezvousHandler, *, name: str) -> None:
        """Connect to nothing before the first round.

        Args:
            handler: A handler that decides for the whole run.
            name: Torch's name of the backend.
        """
        self._handler = handler
        self._name = name
        self._torch: Any = importlib.import_module(TORCH_RENDEZVOUS)
        stores = RoundStores()
        handler.services = AloneServices(stores, _warn)
        self._rounds = AloneRounds(handler, stores, warn=_warn, rule="torchrun")

    def get_backend(self) -> str:
        """Return the name of the backend as given to torchrun."""
        return self._name

    @property
    def use_agent_store(self) -> bool:
        """Whether workers meet in the agents' store: false, the worker of rank 0 hosts its own.

        Workers of a round must not find keys of the previous round's workers.
        """
        return False

    def get_run_id(self) -> str:
        """Return the run's id."""
        return self._handler.get_run_id()

    def next_rendezvous(self) -> Any:  # noqa: ANN401  # torch's RendezvousInfo
        """Block until there is a round with this node in it. If the last round still runs, end it for all nodes.

        Raises:
            RendezvousError: torch's, and its subclasses.
        """
        with self._in_torch_words():
            info, store, port = self._rounds.join(again="an agent of torchrun starts its workers again")
        bootstrap = self._torch.RendezvousStoreInfo(info.master_addr, port)
        return self._torch.RendezvousInfo(store, info.rank, info.world_size, bootstrap)

    def num_nodes_waiting(self) -> int:
        """Return 1 if the round is over and workers must be restarted, else 0. Sends no request."""
        return int(self._rounds.is_over())

    def is_closed(self) -> bool:
        """Return whether this node knows that the run is over."""
        return self._handler.is_closed()

    def set_closed(self) -> None:
        """End the run for all nodes."""
        self._handler.set_closed()

    def shutdown(self) -> bool:
        """Leave, and end the run for all nodes, as torch does: with success, unless the launcher is about to fail."""
        return self._rounds.end()

    # --- inside

    @contextmanager
    def _in_torch_words(self) -> Iterator[None]:
        try:
            yield
        except ElasticError as error:
            name = next(name for cls, name in _ERRORS if isinstance(error, cls))
            raise getattr(self._torch, name)(_for_torchrun(str(error))) from error


def _warn(text: str) -> None:
    _log.warning("elastic: %s", clean(text))


def _for_torchrun(text: str) -> str:
    """Replace names of options by those of torchrun, and leave out those that torchrun does not have."""
    text = re.sub(r",? or --allow-mismatch \S+", "", text)
    for option in ("join_timeout", "connect_timeout"):
        text = text.replace(f"--{option.replace('_', '-')}", f"--rdzv-conf {option}=SECONDS")
    return text
