"""What a caller may want to know apart from other failures: what etcd answers, and why one can't be started."""

from elastic_core.api import ConfigError
from elastic_core.api.stores import BackendError, BackendUnavailableError


class LeaseGoneError(BackendError):
    """The lease that a request names has expired or was revoked; nothing was written."""


class CompactedError(BackendUnavailableError):
    """The revisions that were asked for are forgotten: read anew, and watch from there."""


class EtcdMissingError(ConfigError, FileNotFoundError):
    """There is no etcd to run on this host. The system's error for those who use `EtcdServer` as torch's."""


class NotAnsweringError(BackendUnavailableError):
    """An etcd of ours runs, and has not answered in time."""


class EtcdServerError(BackendUnavailableError, RuntimeError):
    """`EtcdServer` can't be started. Its kinds are those that torch's raises."""


class EtcdServerTimeoutError(EtcdServerError, TimeoutError):
    """It runs and does not answer in time. A `TimeoutError` here alone: a store must not take it for the system's."""


class EtcdServerSystemError(EtcdServerError, OSError):
    """The system refuses what it needs: a directory for its data, a process."""
