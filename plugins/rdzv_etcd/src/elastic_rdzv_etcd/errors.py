"""Errors that a caller may distinguish: responses of etcd, and reasons why one can't be started."""

from elastic_core.api import ConfigError
from elastic_core.api.stores import BackendError, BackendUnavailableError


class LeaseGoneError(BackendError):
    """The lease in a request has expired or was revoked; nothing was written."""


class CompactedError(BackendUnavailableError):
    """The requested revisions are compacted: read again, and watch from there."""


class EtcdMissingError(ConfigError, FileNotFoundError):
    """There is no etcd to run on this host. Also a `FileNotFoundError`, as with torch's `EtcdServer`."""


class NotAnsweringError(BackendUnavailableError):
    """A hosted etcd runs, and has not responded in time."""


class EtcdServerError(BackendUnavailableError, RuntimeError):
    """`EtcdServer` can't be started. Its subclasses match the errors that torch's class raises."""


class EtcdServerTimeoutError(EtcdServerError, TimeoutError):
    """etcd runs and does not respond in time. A `TimeoutError` only here: a store must not treat it as the system's."""


class EtcdServerSystemError(EtcdServerError, OSError):
    """The system rejects a needed resource: a directory for the data, a process."""
