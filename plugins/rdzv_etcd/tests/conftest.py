"""What the tests of this plugin share: servers, and clients and stores that are closed afterwards."""

import uuid

import pytest

from elastic_core.api import WaitBudget
from elastic_rdzv_etcd.store import EtcdStore
from elastic_rdzv_etcd.url import Tls, parse_target
from etcd_servers import etcd_cluster, etcd_private, etcd_server, tls_etcd
from patience import patience
from store_kit import store_settings

__all__ = ["etcd_cluster", "etcd_private", "etcd_server", "tls_etcd"]


@pytest.fixture
def run_id():
    return f"test/{{{uuid.uuid4().hex}}}"  # characters that keys must quote


@pytest.fixture
def make_store(run_id):
    """Make stores of this test's run, or another's."""
    made = []

    def make(endpoint, *, run=run_id, **options):
        made.append(EtcdStore(store_settings("etcd", endpoint, run, **options)))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def make_gateway():
    """Make clients of an endpoint; the login is the endpoint's."""
    from elastic_rdzv_etcd.gateway import Gateway

    made = []

    def make(endpoint, *, login=None, **tls):
        target = parse_target(endpoint, environ={})
        made.append(Gateway(target, login=login or (lambda: target.login), tls=Tls(**tls)))
        return made[-1]

    yield make
    for gateway in made:
        gateway.close()


@pytest.fixture
def wait():
    return WaitBudget.lasting(patience(20))  # for all calls of a test: some make thousands


@pytest.fixture
def key(run_id):
    return f"/elastic/{run_id}/key".encode()
