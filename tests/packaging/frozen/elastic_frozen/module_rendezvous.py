"""A rendezvous as a module with hookimpls."""

from elastic_core.api import RendezvousHandler, RendezvousSettings, hookimpl
from elastic_frozen.handler import PlacedRendezvous

api_version = 1
options = PlacedRendezvous.options


@hookimpl
def elastic_make_rendezvous(settings: RendezvousSettings) -> RendezvousHandler:
    """Make the rendezvous of the other module."""
    return PlacedRendezvous(settings)
