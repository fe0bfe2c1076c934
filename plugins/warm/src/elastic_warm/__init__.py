"""Warm rounds: workers that survive a failure or a join run on, and take a place in the next round.

Names for training scripts. Importing the package loads nothing; each name is imported at its first use.

    rounds          makes a function run once per round, in the same process
    protected       a block that the end of a round does not interrupt: a save
    should_stop     whether this round ends now
    RoundOver       the exception that leaves the function when its round ends
    State           the training state, kept in host memory: commit, restore, and the same step on all ranks
    StateError      the state can't be kept or brought back

None of them needs `elastic run`. Under another launcher, the function is called once.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from elastic_warm.leaving import RoundOver
    from elastic_warm.state import State
    from elastic_warm.state_errors import StateError
    from elastic_warm.worker import protected, rounds, should_stop

__all__ = ["RoundOver", "State", "StateError", "protected", "rounds", "should_stop"]

_ROOMS = {
    "leaving": "RoundOver",
    "state": "State",
    "state_errors": "StateError",
    "worker": "protected rounds should_stop",
}
_PLACES = {name: room for room, names in _ROOMS.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
