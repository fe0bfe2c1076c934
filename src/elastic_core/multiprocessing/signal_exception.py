"""What a run that was told to stop raises in the process of a library's caller: torch's `SignalException`."""

import signal


class SignalException(Exception):  # torch's name
    """A signal has come that ends the run; the workers are gone when it is raised.

    Args:
        msg: For people.
        sigval: The signal.
    """

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        """Keep both."""
        super().__init__(msg)
        self.sigval = sigval

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by its parts."""
        return type(self), (str(self), self.sigval)
