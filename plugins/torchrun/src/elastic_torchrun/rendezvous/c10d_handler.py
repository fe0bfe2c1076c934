"""The handler of torch's name `c10d`, for library users."""

from elastic_torchrun.rendezvous.c10d_backend import create_backend
from elastic_torchrun.rendezvous.dynamic import DynamicRendezvousHandler, create_handler
from elastic_torchrun.rendezvous.parameters import RendezvousParameters


def create_c10d_handler(params: RendezvousParameters) -> DynamicRendezvousHandler:
    """Return a handler on torch's store (`c10d_backend` has its options).

    Raises:
        ValueError: an option is invalid.
        RendezvousConnectionError: the store can't be made or reached.
    """
    backend, store = create_backend(params)
    return create_handler(store, backend, params)
