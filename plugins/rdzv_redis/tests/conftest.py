"""What the tests of this plugin share: servers, and stores that are closed afterwards."""

import uuid

import pytest

from elastic_core.api import WaitBudget
from elastic_rdzv_redis.store import RedisStore
from patience import patience
from redis_servers import redis_server, sentinel, tls_redis
from store_kit import store_settings

__all__ = ["redis_server", "sentinel", "tls_redis"]


@pytest.fixture
def run_id():
    return f"test/{{{uuid.uuid4().hex}}}"  # characters that keys must quote


@pytest.fixture
def make_store(run_id):
    """Make stores of this test's run, or another's."""
    made = []

    def make(endpoint, *, run=run_id, **options):
        made.append(RedisStore(store_settings("redis", endpoint, run, **options)))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def wait():
    return WaitBudget.lasting(patience(10))
