"""A hook as a module with hookimpls."""

from elastic_core.api import AddEnvironment, Refuse, WorkersStarting, hookimpl

api_version = 1


@hookimpl
def on_workers_starting(event: WorkersStarting) -> AddEnvironment | Refuse | None:
    """Tell the workers that this module was asked."""
    return AddEnvironment(variables={"FROZEN_MODULE": f"round {event.round.index}"})
