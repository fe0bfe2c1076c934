"""All errors that users and plugin authors can meet.

A message is one line: the object, the observed and the expected value, then `Try:`. Each class has these parts as
fields, builds its text from them, and can be pickled. `exit_code` is the exit code of the command line.
"""

import errno
from collections.abc import Iterable
from typing import ClassVar, Final

MOMENTARY_ERRNOS: Final = frozenset(
    {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EIO}
)
"""Errors of the system that may pass within a second: no processes, memory, descriptors or disk space."""


class ElasticError(Exception):
    """Base class of all errors of this project.

    Args:
        what: The observed and the expected value; one line, no secrets.
        hint: The remedy, without `Try:`. Empty means no hint.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, hint: str = "") -> None:
        Exception.__init__(self, what, hint)  # a builtin base class must not read the parts as its own
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}. Try: {self.hint}" if self.hint else self.what

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the parts: pickling does not know keyword-only arguments by default."""
        return _rebuild, (type(self), self.what, self.hint)


def _rebuild(cls: type[ElasticError], what: str, hint: str) -> ElasticError:
    make = OSError.__new__ if issubclass(cls, OSError) else cls.__new__  # memory layout of OSError
    error = make(cls)
    ElasticError.__init__(error, what, hint=hint)
    return error


def is_momentary(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, is a refusal by the system that may pass within a second."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in MOMENTARY_ERRNOS:
            return True
        if isinstance(error, RuntimeError) and "start new thread" in str(error):  # `threading` reports EAGAIN so
            return True
        error = error.__cause__
    return False


class ConfigError(ElasticError, ValueError):
    """The user's input cannot be used; exit code 2. A `ValueError`, as torch raises for such input."""

    exit_code: ClassVar[int] = 2


class ProgramMissingError(ConfigError, FileNotFoundError):
    """The workers' program does not exist; also a `FileNotFoundError`, which the system raises for it."""


class PluginError(ElasticError, ValueError):
    """A plugin is missing or broken, or it refuses; exit code 3. The message names its distribution."""

    exit_code: ClassVar[int] = 3


class RendezvousError(ElasticError):
    """No round could be formed; exit code 4. Like torch's errors, it may be raised without a text."""

    exit_code: ClassVar[int] = 4

    def __init__(self, what: str = "", *, hint: str = "") -> None:
        super().__init__(what or f"{type(self).__name__} was raised", hint=hint)


class RendezvousClosedError(RendezvousError):
    """The run is over: its rendezvous was closed. `exit_code` is the run's, if its result is known."""

    def __init__(self, what: str = "", *, hint: str = "", exit_code: int | None = None) -> None:
        super().__init__(what, hint=hint)
        if exit_code is not None:
            vars(self)["exit_code"] = exit_code  # overrides the class's


class RendezvousTimeoutError(RendezvousError):
    """Not enough nodes joined in time."""


class NodesRefusedError(RendezvousError):
    """Not enough nodes joined in time, because hooks (health gates) of some nodes refused; exit code 1."""

    exit_code: ClassVar[int] = 1


class RendezvousConnectionError(RendezvousError):
    """The rendezvous backend cannot be reached."""


class RendezvousStateError(RendezvousError):
    """The backend's data is corrupt or has another version."""


class RendezvousGracefulExitError(RendezvousError):
    """The run does not need this node (an unused spare), which may leave with exit code 0."""

    exit_code: ClassVar[int] = 0


class BackendError(ElasticError):
    """A call to a store failed; subclasses give the outcome."""

    exit_code: ClassVar[int] = 4


class BackendUnavailableError(BackendError):
    """The store could not be reached; nothing was written."""


class OutcomeUnknownError(BackendError):
    """The reply was lost: the write may have been applied or not. Read again."""


class BackendRefusedError(BackendError):
    """The server rejected the client (password, permission, version); a retry would not help."""


class WorkerError(ElasticError):
    """A worker failed or could not be started; exit code 1 if there is no better one."""


class WaitCancelledError(ElasticError):
    """The agent cancelled a blocking call. Plugin code must not catch it."""

    def __init__(self, what: str = "the wait was cancelled by the agent", *, hint: str = "") -> None:
        super().__init__(what, hint=hint)


class WaitExpiredError(ElasticError):
    """The deadline of a blocking call has passed."""

    def __init__(self, what: str = "the wait's deadline has passed", *, hint: str = "") -> None:
        super().__init__(what, hint=hint)


class IllegalEventError(ElasticError):
    """A state machine received an event that is illegal in its state: a bug. The state is unchanged."""


def nearest(text: str, names: Iterable[str]) -> str:
    """Return the one of `names` that a user probably meant by `text`, for a hint. Empty if none is similar."""
    import difflib  # needed for mistyped names only

    return next(iter(difflib.get_close_matches(text, sorted(set(names)), n=1)), "")
