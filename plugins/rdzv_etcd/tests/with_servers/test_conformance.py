"""The kit's promises: on one server and its v2 API with every fault that the kit knows, through TLS, on three members.

A server tells of the end of a lease up to half a second late, and its leases are whole seconds.
"""

from elastic_rdzv_etcd.store import EtcdStore
from elastic_rdzv_etcd.v2.store import EtcdV2Store
from etcd_servers import EtcdCluster, EtcdServer, TlsEtcd
from store_kit import OnAServer, OnASharedServer, store_settings

LEASE_S = 3.0


class TestOnOneServer(OnAServer):
    lease_s = LEASE_S

    @staticmethod
    def make(folder):
        return EtcdServer(folder)

    @staticmethod
    def client_at(endpoint, run_id):
        return EtcdStore(store_settings("etcd", endpoint, run_id))


class TestOnV2(OnAServer):
    lease_s = 5.0

    @staticmethod
    def make(folder):
        return EtcdServer(folder, v2=True)

    @staticmethod
    def client_at(endpoint, run_id):
        return EtcdV2Store(store_settings("etcd-v2", endpoint, run_id))


class TlsEtcdWithUsers(TlsEtcd):
    """A server that lets in users only, from its start on."""

    def start(self):
        super().start()
        self.enable_auth()
        return self


class TestThroughTlsAsAUser(OnASharedServer):
    lease_s = LEASE_S

    @staticmethod
    def make(folder):
        return TlsEtcdWithUsers(folder)

    @staticmethod
    def client(server, run_id):
        files = {"ca_cert": str(server.ca), "cert": str(server.cert), "key": str(server.key)}
        return EtcdStore(store_settings("etcd", server.login_url, run_id, **files))


class TestOnThreeMembers(OnASharedServer):
    lease_s = LEASE_S

    @staticmethod
    def make(folder):
        return EtcdCluster(folder)

    @staticmethod
    def client(server, run_id):
        return EtcdStore(store_settings("etcd", server.endpoint, run_id))
