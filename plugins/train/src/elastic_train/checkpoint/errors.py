"""Errors of checkpoints, one line each."""

import errno
import pickle
from typing import NamedTuple

from elastic_core.api import ConfigError, ElasticError


class CheckpointError(ElasticError):
    """A checkpoint could not be saved or read. Complete checkpoints are unchanged."""


class UnreadableError(CheckpointError):
    """All ranks know that a checkpoint has content that `save` does not write. The one before may be complete."""


class Problem(NamedTuple):
    """A rank's problem, in the form in which other ranks receive it."""

    what: str
    hint: str
    is_of_arguments: bool

    def error(self, before: str = "") -> ElasticError:
        """Return the error that all ranks raise."""
        kind = ConfigError if self.is_of_arguments and not before else CheckpointError
        return kind(f"{before}{self.what}", hint=self.hint)


def system_error(err: BaseException) -> OSError | None:
    """Return the system's error behind torch's exception. `None` if there is none."""
    cause: BaseException | None = err
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return cause


def reason_of(err: BaseException) -> str:
    """Return the reason of a failure in one line."""
    cause = system_error(err)
    if cause is not None:
        return f"{cause.strerror or cause} ({cause.filename})" if cause.filename else str(cause.strerror or cause)
    if isinstance(err, CheckpointError):
        return err.what
    if isinstance(err, pickle.UnpicklingError):
        return "there is something in it that only code could read"
    if isinstance(err, RecursionError):
        return "there is something in it that has itself in it, or is nested too deep"
    return " ".join(f"{type(err).__name__}: {err}".split())


def hint_of(err: BaseException) -> str:
    """Return advice for an error."""
    if isinstance(err, ElasticError):
        return err.hint
    cause = system_error(err)
    if cause is not None and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "more room there, or fewer to keep; those that were whole still are"
    return "a folder that all ranks share and can write; checkpoints that were whole still are"
