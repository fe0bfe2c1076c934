"""Any handler as a rendezvous of events; each form is imported only where it is needed."""

from elastic_core.rendezvous.handler import RendezvousHandler
from elastic_core.rendezvous.local import LocalRendezvous, LocalRounds
from elastic_core.rendezvous.loop import AgentSide, Attachable, Rendezvous


def open_rendezvous(handler: RendezvousHandler, agent: AgentSide) -> Rendezvous:
    """Return what posts a handler's events to the agent.

    Args:
        handler: Ours, or somebody else's.
        agent: Takes the events.
    """
    if type(handler) is LocalRendezvous:  # a class that is built on it may do more
        return LocalRounds(handler, agent)
    if isinstance(handler, Attachable):
        return handler.attach(agent)
    from elastic_core.rendezvous.blocking import HandlerThread

    return HandlerThread(handler, agent)
