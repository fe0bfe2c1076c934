"""What a v2 server answers that the store acts upon: each says that nothing was written."""

from elastic_core.api import BackendError, BackendUnavailableError


class MissingError(BackendError):
    """There is no such key."""


class ConflictError(BackendError):
    """The key is another than the request expects, or is there though it must not be."""


class ForgottenError(BackendUnavailableError):
    """The events that were asked for are forgotten: read anew, and watch from there."""
