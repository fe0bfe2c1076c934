"""What the tests of this plugin share: servers, and stores that are closed afterwards."""

import uuid

import pytest

from elastic_core.api import RendezvousSettings, WaitBudget
from elastic_rdzv_redis.store import RedisStore
from redis_servers import redis_server, sentinel, tls_redis

__all__ = ["redis_server", "sentinel", "tls_redis"]


@pytest.fixture
def run_id():
    return f"test/{{{uuid.uuid4().hex}}}"  # characters that keys must quote


@pytest.fixture
def make_store(run_id):
    """Make stores of this test's run, or another's."""
    made = []

    def make(endpoint, *, run=run_id, **options):
        settings = RendezvousSettings(
            backend="redis",
            run_id=run,
            endpoint=endpoint,
            min_nodes=1,
            max_nodes=2,
            local_world_size=1,
            options=options,
        )
        made.append(RedisStore(settings))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def wait():
    return WaitBudget.lasting(10)
