"""The store kit bites: each store that is wrong in one way fails at the tests that name its defect, and only there."""

import inspect
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from broken import calls, documents, leases, seats, surveys, watches  # noqa: F401
from broken.base import BROKEN
from elastic_plugin_kit import CoordinationStoreConformance, MemoryStore
from elastic_plugin_kit.conformance.store_run import StoreRun
from memory_kit import Bench

pytestmark = pytest.mark.xdist_group("broken stores")  # one process tries them all

TESTS = {name: test for name, test in inspect.getmembers(CoordinationStoreConformance) if name.startswith("test_")}
ALONE = frozenset({"test_leases_are_judged_by_the_stores_clock", "test_close_leaves_nothing"})
"""One moves the clocks of this process, the other counts what is open in it."""


def run_one(cls, name):
    """Return what a test of the kit says of a store; None: all is well."""
    bench = Bench(cls)
    run = StoreRun(bench.connect, lease_s=1.0, pass_time=bench.pass_time)
    given = {
        "run": run,
        "pause_server": bench.pause,
        "empty_server": bench.server.empty,
        "connect_nowhere": bench.connect_nowhere,
    }
    kit = CoordinationStoreConformance()
    try:
        TESTS[name](kit, **{key: given[key] for key in inspect.signature(TESTS[name]).parameters if key != "self"})
    except pytest.skip.Exception:
        return None  # a promise that this store does not make
    except Exception as err:  # noqa: BLE001  # whatever a broken store does
        return err
    finally:
        with suppress(Exception):
            run.close()
    return None


def failures(cls, pool):
    """Return the tests of the kit that a store fails, and what they say."""
    told = {name: pool.submit(run_one, cls, name) for name in TESTS if name not in ALONE}
    return {name: err for name, ended in told.items() if (err := ended.result()) is not None}


@pytest.fixture(scope="module")
def told():
    """What the kit says of each store; most tests of it only wait, so that all are run at once."""
    stores = [MemoryStore, *(broken.cls for broken in BROKEN)]
    alone = {cls: {name: err for name in ALONE if (err := run_one(cls, name))} for cls in stores}
    with ThreadPoolExecutor(80) as outer, ThreadPoolExecutor(40) as pool:
        return dict(zip(stores, outer.map(lambda cls: alone[cls] | failures(cls, pool), stores), strict=True))


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.cls.__name__)
def test_a_broken_store_fails_where_its_defect_is_named(told, broken):
    found = told[broken.cls]
    if set(found) - ALONE != broken.caught_by - ALONE:
        # What must be quick can be late on a machine that is busy; in peace it is not.
        with ThreadPoolExecutor(4) as pool:
            found = {name: err for name, err in found.items() if name in ALONE} | failures(broken.cls, pool)
    assert set(found) == broken.caught_by, "\n".join(f"{name}: {err!r}" for name, err in found.items())


def test_the_whole_one_passes_in_this_way_too(told):
    found = told[MemoryStore]
    if found:  # as above
        with ThreadPoolExecutor(4) as pool:
            found = {name: err for name in ALONE if (err := run_one(MemoryStore, name))} | failures(MemoryStore, pool)
    assert found == {}


def test_every_test_of_the_kit_catches_something():
    """One that no broken store fails may be one that can't fail."""
    assert set(TESTS) == frozenset().union(*(broken.caught_by for broken in BROKEN))
