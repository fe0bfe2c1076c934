"""What a v2 server answers that the store acts upon: each says that nothing was written."""

from elastic_core.api.stores import BackendError, BackendUnavailableError


class MissingError(BackendError):
    """There is no such key; `index` is how far the server was when it looked."""

    def __init__(self, what: str, *, hint: str = "", index: int = 0) -> None:
        """Keep the parts."""
        super().__init__(what, hint=hint)
        self.index = index


class ConflictError(BackendError):
    """The key is another than the request expects, or is there though it must not be."""


class ForgottenError(BackendUnavailableError):
    """The events that were asked for are forgotten: read anew, and watch from there."""
