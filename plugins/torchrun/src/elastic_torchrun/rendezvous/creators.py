"""Torch's registry of rendezvous handlers: names, and functions that make a handler from parameters."""

import importlib
from collections.abc import Callable
from typing import Any, Final

from elastic_core.api import RendezvousHandler, RendezvousSettings, WaitBudget
from elastic_core.embedding import Backend, registry
from elastic_torchrun.rendezvous.parameters import RendezvousParameters

RendezvousHandlerCreator = Callable[[RendezvousParameters], Any]
"""Makes a handler: elastic-core's, or one written for torch."""

_OWN: Final = {
    "c10d": "elastic_torchrun.rendezvous.c10d_handler:create_c10d_handler",
    "etcd": "elastic_torchrun.rendezvous.etcd_rendezvous:create_rdzv_handler",
    "etcd-v2": "elastic_torchrun.rendezvous.etcd_v2_backend:create_etcd_v2_handler",
    "static": "elastic_torchrun.rendezvous.static_tcp:create_rdzv_handler",
}
"""Torch's own names, and the functions that make their handlers; each is imported at its first use."""
_INSTALLED: Final = "elastic_torchrun.hosting.library:make_handler"
"""Makes a handler of any other installed backend."""


class RendezvousHandlerRegistry:
    """Names of backends, each with the creator of its handlers."""

    def __init__(self) -> None:
        """Register none."""
        self._creators: dict[str, RendezvousHandlerCreator] = {}

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Register a backend's creator under a name.

        Raises:
            ValueError: the name is empty, or has another creator.
        """
        if not backend:
            raise ValueError("the name of the rendezvous backend is empty")
        known = self._creators.get(backend)
        if known is not None and known != creator:
            raise ValueError(f"rendezvous backend {backend!r} is registered with {known!r} already, not {creator!r}")
        self._creators[backend] = creator

    def create_handler(self, params: RendezvousParameters) -> Any:  # noqa: ANN401  # ours, or torch's
        """Return a new handler of the backend in the parameters.

        Raises:
            ValueError: the name is not registered.
            RuntimeError: the handler reports another name.
        """
        creator = self._creators.get(params.backend) or self._find(params.backend)
        if creator is None:
            names = ", ".join(sorted(self._creators)) or "none"
            raise ValueError(f"rendezvous backend {params.backend!r} is not registered; there are: {names}")
        handler = creator(params)
        if handler.get_backend() != params.backend:
            told = f"{params.backend!r} was asked for, and the handler calls itself {handler.get_backend()!r}"
            raise RuntimeError(f"rendezvous backend {told}")
        return handler

    def _find(self, backend: str) -> RendezvousHandlerCreator | None:
        """Return the creator of a backend that was not registered, or `None`."""
        return None


class _GlobalRegistry(RendezvousHandlerRegistry):
    """The registry of this process. A registered name also works in `elastic run` and `launch_agent`.

    A name that was not registered may be one of torch's own, or any installed backend.
    """

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Register a backend's creator, also for elastic-core's agents."""
        super().register(backend, creator)
        if registry.registered(backend) is None:
            registry.register(backend, _Maker(backend, creator))

    def _find(self, backend: str) -> RendezvousHandlerCreator | None:
        module, _, name = _OWN.get(backend, _INSTALLED).partition(":")
        creator: RendezvousHandlerCreator = getattr(importlib.import_module(module), name)
        return creator


class _Maker:
    """Makes the handlers of a creator for elastic-core's agent."""

    def __init__(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        self._backend = backend
        self._creator = creator
        self.__module__ = getattr(creator, "__module__", __name__)
        self.__qualname__ = getattr(creator, "__qualname__", repr(creator))

    def __call__(self, settings: RendezvousSettings) -> Backend:
        made = self._creator(parameters_of(settings))
        adopt: Callable[[RendezvousSettings], Backend] | None = getattr(made, "adopt", None)
        if adopt is not None:  # it was made of parameters, which know less than the run
            return adopt(settings)
        if isinstance(made, RendezvousHandler):
            if not hasattr(made, "settings"):  # constructors with torch's arguments know of none
                made.settings = settings
            if not hasattr(made, "wait"):
                made.wait = WaitBudget()
            return made
        from elastic_torchrun.hosting.hosted import HostedRendezvous  # which imports torch

        conf = {key: str(value) for key, value in settings.options.items()}
        return HostedRendezvous(settings, conf=conf, create=lambda _: made, label="registered in code")


def parameters_of(settings: RendezvousSettings) -> RendezvousParameters:
    """Return a run's settings as torch's parameters."""
    return RendezvousParameters(
        settings.backend,
        settings.endpoint,
        settings.run_id,
        settings.min_nodes,
        settings.max_nodes,
        settings.local_addr,
        **settings.options,
    )


rendezvous_handler_registry = _GlobalRegistry()
"""The registry of this process."""


def get_rendezvous_handler(params: RendezvousParameters) -> Any:  # noqa: ANN401  # ours, or torch's
    """Return a handler of the backend in the parameters: registered, one of torch's own, or installed.

    Raises:
        ValueError: there is no such backend, or an option is invalid.
    """
    return rendezvous_handler_registry.create_handler(params)
