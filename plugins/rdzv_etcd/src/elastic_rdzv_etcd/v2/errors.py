"""A v2 server's errors that the store handles; each means that nothing was written."""

from elastic_core.api.stores import BackendError, BackendUnavailableError


class MissingError(BackendError):
    """There is no such key; `index` is the server's at the read."""

    def __init__(self, what: str, *, hint: str = "", index: int = 0) -> None:
        """Keep the parts."""
        super().__init__(what, hint=hint)
        self.index = index


class ConflictError(BackendError):
    """The key differs from the expected one, or exists although it must not."""


class ForgottenError(BackendUnavailableError):
    """The requested events are no longer kept: read again, and watch from there."""
