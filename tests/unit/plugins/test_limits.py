"""How long the code of a plugin may take before a run, whose plugins have a limit, and what is said of them."""

import sys
import threading
import tomllib
from pathlib import Path

import pytest

from elastic_core._version import __version__
from elastic_core.errors import PluginError
from elastic_core.plugins.discovery import OUR_DISTRIBUTIONS, PluginEntry
from elastic_core.plugins.entry_import import HOOK_LIMIT, Limit, limit_of, limited
from elastic_core.plugins.registry import PluginRegistry
from elastic_core.rendezvous import registry as in_code
from elastic_core.types import RendezvousSettings


def test_a_backend_that_was_registered_in_code_has_as_long_as_the_others(monkeypatch):
    monkeypatch.setattr(in_code, "_makers", {"seats": lambda settings: threading.Event().wait()})
    fault = r"backend 'seats' \(in code\): building it takes longer than 0.05 s \(--connect-timeout\). Try: mend "
    with pytest.raises(PluginError, match=fault):
        PluginRegistry().make_rendezvous(
            "seats", RendezvousSettings(run_id="r", backend="seats"), {"connect_timeout": "50ms"}
        )


def entry_of(distribution, value, version=__version__):
    return PluginEntry("elastic_core.hooks", "control", value, distribution, version)


@pytest.mark.parametrize(
    ("entry", "limited"),
    [
        (entry_of("elastic-ops", "elastic_ops.control:Control"), False),
        (entry_of("elastic-ops", "elastic_ops.control:Control", "0.0.1"), True),
        (entry_of("elastic-seats", "elastic_seats:Hook"), True),
        (entry_of("elastic-ops", "acme:Hook"), True),
        (entry_of("acme", "elastic_ops.control:Control"), True),
    ],
)
def test_only_what_this_project_brings_has_no_limit(entry, limited):
    assert (limit_of(entry, HOOK_LIMIT) is not None) is limited


def test_this_project_is_what_its_tree_has():
    root = Path(__file__).parents[3]
    found = [root / "pyproject.toml", *root.glob("plugins/*/pyproject.toml")]
    names = {tomllib.loads(path.read_text())["project"]["name"] for path in found}
    assert names == OUR_DISTRIBUTIONS


def test_a_hook_that_takes_long_because_it_imports_torch_is_told_so(monkeypatch):
    over = threading.Event()

    def slow():
        monkeypatch.setitem(sys.modules, "torch", threading)
        over.wait()

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    fault = (
        "acme:Hook takes longer than 0.2 s: it imports torch into the supervisor. Try: import torch where it is used"
    )
    with pytest.raises(PluginError, match=fault):
        limited(entry_of("acme", "acme:Hook"), "importing acme:Hook", slow, Limit(0.2))
    over.set()
