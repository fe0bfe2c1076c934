"""Names for training scripts whose workers keep running over rounds. Each name is imported at its first use.

    rounds          makes a function run once per round, in the same process
    protected       a block that the end of a round does not interrupt: a save
    should_stop     whether this round ends now
    RoundOver       the exception that leaves the function when its round ends
    State           the training state, with copies in memory

None of them needs `elastic run`. Under another launcher, the function is called once.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from elastic_warm.leaving import RoundOver
    from elastic_warm.worker import protected, rounds, should_stop

__all__ = ["RoundOver", "protected", "rounds", "should_stop"]

_ROOMS = {
    "leaving": "RoundOver",
    "state": "State",
    "worker": "protected rounds should_stop",
}
_PLACES = {name: room for room, names in _ROOMS.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
