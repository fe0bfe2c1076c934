"""The interface of torch's dynamic rendezvous backends: one value for a run, replaced by compare-and-swap."""

from abc import ABC, abstractmethod
from typing import Any

Token = Any
"""A backend's id of a state. Only the backend interprets it."""


class RendezvousBackend(ABC):
    """Keeps the state of a rendezvous, as one value of bytes. Classes written for torch work unchanged.

    `StateStore` implements the core's rendezvous on it. Errors are RendezvousConnectionError (can be retried) or
    RendezvousStateError (can't be retried), torch's or elastic-core's.

    Threading: one call at a time, on a thread of its own, so a blocked call does not delay the end of an agent.
    """

    hosted_by_member: bool = False
    """Whether one of the run's nodes hosts the state, so that its loss ends the run."""
    hosting: bool = False
    """Whether this node hosts it. It then leaves last, if the others leave soon."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the name of the backend."""

    @abstractmethod
    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state and its token. `None` if there is none yet."""

    @abstractmethod
    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Replace the state if it is the one of `token` (`None`: if there is none).

        Returns:
            The current state, its token, and whether it is the new one. `None` if that is not known.
        """
