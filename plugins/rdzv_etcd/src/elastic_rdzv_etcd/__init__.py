"""The backends `etcd` and `etcd-v2`: many nodes meet through an etcd server, or a cluster of them.

`EtcdServer` starts a private etcd on this machine, for tests and tools.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_rdzv_etcd.hosting.server import EtcdServer

__all__ = ["EtcdServer"]


def __getattr__(name: str) -> object:
    """Import what is asked for: whoever chooses a backend needs none of it."""
    if name == "EtcdServer":
        from elastic_rdzv_etcd.hosting.server import EtcdServer

        return EtcdServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
