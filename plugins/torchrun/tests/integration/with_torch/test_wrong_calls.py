"""What torch's library raises, ours raises too: calls with ordinary and with wrong arguments, made on both sides.

`except` clauses of code that is ported go on working: ours is a kind of what torch raised, whatever its text says.
"""

import datetime
import importlib
import io
import logging
import pathlib
import signal
import socket
import sys
import tempfile
import warnings
from contextlib import redirect_stderr, redirect_stdout

import pytest
import torch_calls

from support import places_of_runs


class Backend:
    """Keeps nothing."""

    name = "x"

    def get_state(self):
        return None

    def set_state(self, state, token=None):
        return None


@pytest.fixture(scope="module")
def taken():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held.getsockname()[1]


@pytest.fixture(scope="module", autouse=True)
def own_place():
    """Both sides leave log directories behind, torch's others too; a path that is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="calls-") as folder, pytest.MonkeyPatch.context() as patch:
        for name, place in places_of_runs(folder).items():
            patch.setenv(name, place)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(autouse=True)
def quiet():
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(before)


def outcome(module, text, names):
    """Return what a call raises, or None; and what it returns."""
    known = {name: getattr(module, name) for name in dir(module)} | names
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            return None, eval(text, known)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it is, it is what the test is about
            return error, None


def called(side, call, tmp_path, taken):
    import torch.distributed

    name, text = call
    names = {"TMP": str(tmp_path), "TAKEN": taken, "STORE": torch.distributed.HashStore(), "BACKEND": Backend()}
    names |= {"sys": sys, "signal": signal, "datetime": datetime, "pathlib": pathlib}
    rendezvous = importlib.import_module(f"{side}.elastic.rendezvous")
    names |= {"P": rendezvous.RendezvousParameters, "Registry": rendezvous.RendezvousHandlerRegistry}
    names["C10D"] = {"run_id": "r", "rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:0"}
    names["SOON"] = {"rdzv_configs": {"last_call_timeout": 1}}
    return outcome(importlib.import_module(f"{side}.{name}"), text, names)


@pytest.mark.parametrize("call", torch_calls.CALLS, ids=": ".join)
def test_ours_raises_a_kind_of_what_torch_raises(call, tmp_path, taken):
    theirs, their_value = called("torch.distributed", call, tmp_path / "torch", taken)
    own, own_value = called("elastic_core.compat", call, tmp_path / "ours", taken)
    said = f"torch: {theirs!r}, {their_value!r}; ours: {own!r}, {own_value!r}"
    expected = torch_calls.DIFFERENT.get(": ".join(call))
    if expected is not None:
        kind = "nothing" if own is None else type(own).__name__
        assert kind == expected.here, said
        assert theirs is None or not isinstance(own, type(theirs)), f"{said}: no difference, take it out of the table"
        return
    assert (theirs is None) == (own is None), said
    if theirs is not None:
        assert isinstance(own, type(theirs)) or type(theirs).__name__ in map(_name, type(own).__mro__), said
    elif isinstance(their_value, (bool, int, str, bytes, list)):
        assert own_value == their_value, said


def _name(kind):
    return kind.__name__
