"""The kits for policies, hooks and rendezvous bite: a broken plugin fails where its defect is named, only there."""

import inspect
import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

from broken.plugins import HOOKS, POLICIES, RENDEZVOUS, IsAlone, Listener, Sound
from elastic_core.api import HookSettings, PolicySettings
from elastic_plugin_kit import (
    AgentHookConformance,
    FailureHandlerConformance,
    MemoryServer,
    RendezvousConformance,
    rendezvous_settings,
    sample_moments,
)
from elastic_plugin_kit.conformance.kit import _HUNG as HUNG
from elastic_plugin_kit.conformance.rendezvous import RendezvousRun
from meeting import Meeting

pytestmark = pytest.mark.xdist_group("broken plugins")

LEAKS = frozenset(
    {"test_it_leaves_nothing", "test_it_changes_nothing_around_it", "test_shutdown_leaves_nothing"}
)  # of a process in which nothing else is tried
SEPARATE = frozenset({"test_its_import_is_light"})  # a process each; tried once below


def kit_tests(kit):
    return {name: test for name, test in inspect.getmembers(kit) if name.startswith("test_") and name not in SEPARATE}


def variants(test):
    """Yield the arguments of a test that pytest would run several times."""
    marks = [mark.args for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    for values in itertools.product(*(values for _, values in marks)):
        yield {name: value for (name, _), value in zip(marks, values, strict=True)}


def run_one(kit, test, given):
    """Return what a test of a kit says; None: all is well, or not for this plugin."""
    names = inspect.signature(test).parameters
    try:
        for arguments in variants(test):
            test(kit, **{name: given[name]() for name in given if name in names}, **arguments)
    except pytest.skip.Exception:
        return None
    except (Exception, pytest.fail.Exception) as err:  # noqa: BLE001  # whatever a broken plugin does
        return err
    return None


def given_for_policies(cls, _folder, _stack):
    return {"make_policy": lambda: lambda count: cls(PolicySettings(name="broken", max_restarts=count))}


def given_for_hooks(cls, folder, _stack):
    def make(run_dir):
        return cls(HookSettings(name="broken", run_dir=run_dir))

    return {
        "make_hook": lambda: make,
        "hook": lambda: make(str(folder)),
        "moments": lambda: sample_moments(run_dir=str(folder)),
        "tmp_path": lambda: folder,
    }


def given_for_rendezvous(cls, _folder, stack):
    server = MemoryServer()

    def make(*, run_id, node_rank, min_nodes, max_nodes):
        settings = rendezvous_settings(run_id=run_id, node_rank=node_rank, min_nodes=min_nodes, max_nodes=max_nodes)
        return cls(settings, server=server)

    def new_run():
        run = RendezvousRun(make)
        stack.callback(run.close)
        return run

    return {"make_handler": lambda: make, "run": new_run}


class ShortRounds(RendezvousConformance):
    """What never comes is not waited for as long as strangers' servers are."""

    round_s = 3.0


SOUND = [
    (FailureHandlerConformance, given_for_policies, Sound, frozenset()),
    (AgentHookConformance, given_for_hooks, Listener, frozenset()),
    (ShortRounds, given_for_rendezvous, Meeting, frozenset()),
]
KITS = [
    *SOUND,
    *((FailureHandlerConformance, given_for_policies, cls, tests) for cls, tests in POLICIES),
    *((AgentHookConformance, given_for_hooks, cls, tests) for cls, tests in HOOKS),
    *((ShortRounds, given_for_rendezvous, cls, tests) for cls, tests in RENDEZVOUS),
]


def told_by(kit, given_for, cls, name, folder):
    """Return what one test says of one plugin."""
    own = folder / cls.__name__ / name
    own.mkdir(parents=True)
    with ExitStack() as stack:
        stack.enter_context(suppress(Exception))
        return run_one(kit(), kit_tests(kit)[name], given_for(cls, own, stack))


def is_alone(kit, cls, name):
    """Return whether a test moves the process's clocks, counts its threads, or is of a plugin that shares something."""
    return kit is FailureHandlerConformance or name in LEAKS or cls is IsAlone


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the kits say of each plugin; most tests of them only wait, so that those are run at once."""
    folder = tmp_path_factory.mktemp("plugins")
    every = [(kit, given, cls, name) for kit, given, cls, _ in KITS for name in kit_tests(kit)]
    said = {}
    for kit, given, cls, name in every:
        if is_alone(kit, cls, name):
            said[cls, name] = told_by(kit, given, cls, name, folder)
    with ThreadPoolExecutor(24) as pool:
        started = {
            (cls, name): pool.submit(told_by, kit, given, cls, name, folder)
            for kit, given, cls, name in every
            if not is_alone(kit, cls, name)
        }
        return said | {key: ended.result() for key, ended in started.items()}


@pytest.mark.parametrize(("kit", "given_for", "cls", "expected"), KITS, ids=[cls.__name__ for _, _, cls, _ in KITS])
def test_a_broken_plugin_fails_where_its_defect_is_named(told, kit, given_for, cls, expected, tmp_path):
    found = {name: err for (of, name), err in told.items() if of is cls and err is not None}
    if set(found) != expected:
        # What must be quick can be late on a machine that is busy; in peace it is not.
        for call in [call for call in HUNG if call[0] is cls]:
            del HUNG[call]
        again = {name: told_by(kit, given_for, cls, name, tmp_path) for name in kit_tests(kit)}
        found = {name: err for name, err in again.items() if err is not None}
    assert set(found) == expected, "\n".join(f"{name}: {err!r}" for name, err in found.items())


@pytest.mark.parametrize(
    ("kit", "group"), [(FailureHandlerConformance, POLICIES), (AgentHookConformance, HOOKS), (ShortRounds, RENDEZVOUS)]
)
def test_nearly_every_test_catches_something(kit, group):
    """Left out: what only a plugin with a heavy import, of torch say, could fail."""
    caught = frozenset().union(*(tests for _, tests in group))
    assert set(kit_tests(kit)) - caught <= {"test_nothing_heavy_is_imported_on_the_way"}
