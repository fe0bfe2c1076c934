"""Every error that users or plugin authors can meet.

Messages have one line: where, what was seen against what was needed, then `Try:`. Each class keeps the parts as fields,
builds its own text, and pickles. `exit_code` is what the command line ends with.
"""

import errno
from collections.abc import Iterable
from typing import ClassVar, Final

MOMENTARY_ERRNOS: Final = frozenset(
    {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EIO}
)
"""What the system refuses today may be granted in a second: processes, memory, descriptors, room on a disk."""


class ElasticError(Exception):
    """Base of all errors of this project.

    Args:
        what: What was seen, and what was needed; one line, no secrets.
        hint: What to do about it, without the word `Try:`; empty where there is nothing to say.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, hint: str = "") -> None:
        """Keep the parts; the text is built by `__str__`."""
        Exception.__init__(self, what, hint)  # a builtin class beside ours must not read the parts as its own
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        """Return the message on one line."""
        return f"{self.what}. Try: {self.hint}" if self.hint else self.what

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by parts: keyword-only arguments are unknown to the default."""
        return _rebuild, (type(self), self.what, self.hint)


def _rebuild(cls: type[ElasticError], what: str, hint: str) -> ElasticError:
    make = OSError.__new__ if issubclass(cls, OSError) else cls.__new__  # what is laid out as the system's errors are
    error = make(cls)
    ElasticError.__init__(error, what, hint=hint)
    return error


def is_momentary(error: BaseException | None) -> bool:
    """Whether the system refused something that it may grant a moment later: for an error, or one of its causes."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in MOMENTARY_ERRNOS:
            return True
        if isinstance(error, RuntimeError) and "start new thread" in str(error):  # EAGAIN, in the words of `threading`
            return True
        error = error.__cause__
    return False


class ConfigError(ElasticError, ValueError):
    """What the user asked for can't be done as written; exit code 2. A `ValueError`, as torch raises there."""

    exit_code: ClassVar[int] = 2


class ProgramMissingError(ConfigError, FileNotFoundError):
    """A program that workers should run is not there; also what the system raises where it is started."""


class PluginError(ElasticError, ValueError):
    """A plugin is missing, broken or refuses; exit code 3. The message names its distribution. See `ConfigError`."""

    exit_code: ClassVar[int] = 3


class RendezvousError(ElasticError):
    """No round could be formed; exit code 4. Its kinds may be raised without a word, as torch's are."""

    exit_code: ClassVar[int] = 4

    def __init__(self, what: str = "", *, hint: str = "") -> None:
        """Keep the parts."""
        super().__init__(what or f"{type(self).__name__} was raised", hint=hint)


class RendezvousClosedError(RendezvousError):
    """The run is over: its rendezvous was closed. `exit_code` is the run's, where it is known how it ended."""

    def __init__(self, what: str = "", *, hint: str = "", exit_code: int | None = None) -> None:
        """Keep the parts."""
        super().__init__(what, hint=hint)
        if exit_code is not None:
            vars(self)["exit_code"] = exit_code  # this one's own, over that of its class


class RendezvousTimeoutError(RendezvousError):
    """Not enough nodes came in time."""


class NodesRefusedError(RendezvousError):
    """Not enough nodes came in time, as hooks of others kept them out (a health gate); exit code 1."""

    exit_code: ClassVar[int] = 1


class RendezvousConnectionError(RendezvousError):
    """The rendezvous backend can't be reached."""


class RendezvousStateError(RendezvousError):
    """What the backend holds is corrupt or of another version."""


class RendezvousGracefulExitError(RendezvousError):
    """This node is not needed (an unused spare) and may leave with exit code 0."""

    exit_code: ClassVar[int] = 0


class BackendError(ElasticError):
    """A call to a store failed; its subclasses say how."""

    exit_code: ClassVar[int] = 4


class BackendUnavailableError(BackendError):
    """The store could not be reached, and nothing was written."""


class OutcomeUnknownError(BackendError):
    """The reply was lost: the write may or may not have happened; read again."""


class BackendRefusedError(BackendError):
    """The server answered and will not serve us (password, permission, version): trying again would not help."""


class WorkerError(ElasticError):
    """A worker could not be started, or failed; exit code 1 where there is no better."""


class WaitCancelledError(ElasticError):
    """The agent asked a blocked call to end; plugin code lets it pass."""

    def __init__(self, what: str = "the wait was cancelled by the agent", *, hint: str = "") -> None:
        """Keep the parts."""
        super().__init__(what, hint=hint)


class WaitExpiredError(ElasticError):
    """The deadline of a blocked call has passed."""

    def __init__(self, what: str = "the wait's deadline has passed", *, hint: str = "") -> None:
        """Keep the parts."""
        super().__init__(what, hint=hint)


class IllegalEventError(ElasticError):
    """A state machine was given an event that can't happen in its state: a defect of ours. The state is unchanged."""


def nearest(text: str, names: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the name that a user probably meant, for a hint; empty: none is like what was typed.

    Args:
        text: What was typed.
        names: What there is.
        cutoff: How alike two names are at least, as `difflib` counts.
    """
    import difflib  # only a user's mistake needs it

    return next(iter(difflib.get_close_matches(text, sorted(set(names)), n=1, cutoff=cutoff)), "")
