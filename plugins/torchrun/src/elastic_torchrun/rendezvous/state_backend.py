"""The seam of torch's dynamic rendezvous: somebody keeps one value for a run, and replaces it by compare-and-swap."""

from abc import ABC, abstractmethod
from typing import Any

Token = Any
"""What a backend knows a state by; nobody else looks into it."""


class RendezvousBackend(ABC):
    """Keeps the state of a rendezvous, as one value of bytes. One written for torch serves as it is.

    `StateStore` makes of it what the core's rendezvous needs. What goes wrong is raised as RendezvousConnectionError
    (may be tried again) or RendezvousStateError (can't be), torch's or ours.

    Threading: one call at a time, on a thread of its own: a call that blocks holds up nobody who has been told to end.
    """

    hosted_by_member: bool = False
    """Whether what keeps the state belongs to one of the nodes, so that its loss ends the run."""
    hosting: bool = False
    """Whether that is this one: it then leaves last, if the others leave soon."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the name of the backend."""

    @abstractmethod
    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state and its token; None where there is none yet."""

    @abstractmethod
    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Replace the state if it is the one that `token` belongs to (None: if there is none).

        Returns:
            The state that stands now, its token, and whether that is the new one; None where it is not known.
        """
