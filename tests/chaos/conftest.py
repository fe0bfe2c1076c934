"""Fixtures of this folder; and which tests of it take too long for every day."""

import os
import random
from collections import defaultdict

import pytest

from chaos.multi_node import any_run, redis_run, run, served_run, troubled_run  # noqa: F401
from etcd_servers import etcd_cluster, etcd_private, etcd_server, tls_etcd  # noqa: F401
from redis_servers import redis_server, sentinel, tls_redis  # noqa: F401
from systemd_kit import systemd  # noqa: F401

IN_A_STORE = ("run", "any_run", "served_run")
"""Fixtures of scenarios that are the same in every store. What a store does about trouble differs: `troubled_run`."""


@pytest.hookimpl(trylast=True)  # after -k
def pytest_collection_modifyitems(config, items):
    """Leave out what is marked `chaos_full`, and all stores but one of each scenario, unless `make chaos` wants all.

    Which one is drawn by the session's seed.
    """
    if os.environ.get("CHAOS_FULL"):
        return
    left_out = {item for item in items if item.get_closest_marker("chaos_full")}
    scenarios = defaultdict(list)
    for item in items:
        of_test = getattr(item, "callspec", None)
        if of_test and (fixture := next(filter(of_test.params.__contains__, IN_A_STORE), None)):
            store = of_test.params[fixture]
            if not isinstance(store, str):  # another fixture with this name, of another folder
                continue
            others = of_test.id.replace(store, "", 1)  # indices number all combinations
            scenarios[f"{item.path.name}::{item.originalname}[{others}]"].append(item)
    for scenario, in_stores in scenarios.items():
        drawn = random.Random(f"{os.environ['TESTS_SEED']} {scenario}").choice(in_stores)
        left_out |= {*in_stores} - {drawn}
    if left_out:
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]
