"""The backends `etcd` and `etcd-v2`: nodes meet through an etcd server, or a cluster of them.

`EtcdServer` starts a private etcd on this machine, for tests and tools.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_rdzv_etcd.hosting.server import EtcdServer

__all__ = ["EtcdServer"]


def __getattr__(name: str) -> object:
    """Import a name at its first use: the choice of a backend needs none."""
    if name == "EtcdServer":
        from elastic_rdzv_etcd.hosting.server import EtcdServer

        return EtcdServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
