"""Names for training scripts. Importing the package loads nothing; each name is imported at its first use.

State       the training state, kept in host memory: commit, restore, and the same step on all ranks
StateError  the state can't be kept or brought back
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from elastic_warm.state import State
    from elastic_warm.state_errors import StateError

__all__ = ["State", "StateError"]

_PLACES = {"State": "state", "StateError": "state_errors"}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
