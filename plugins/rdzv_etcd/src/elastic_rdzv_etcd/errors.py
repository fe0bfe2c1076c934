"""What etcd answers that a caller may want to know apart from other failures."""

from elastic_core.api import BackendError, BackendUnavailableError


class LeaseGoneError(BackendError):
    """The lease that a request names has expired or was revoked; nothing was written."""


class CompactedError(BackendUnavailableError):
    """The revisions that were asked for are forgotten: read anew, and watch from there."""
