"""Errors build one line, carry exit codes and pickle."""

import inspect
import pickle

import pytest

from elastic_core import errors
from elastic_core.errors import (
    ConfigError,
    ElasticError,
    PluginError,
    ProgramMissingError,
    RendezvousError,
    RendezvousGracefulExitError,
)

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, ElasticError)]


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_pickles_with_its_parts(cls):
    error = pickle.loads(pickle.dumps(cls("port 5 is taken", hint="another port")))
    assert type(error) is cls
    assert (error.what, error.hint) == ("port 5 is taken", "another port")
    assert str(error) == "port 5 is taken. Try: another port"


def test_without_a_hint_there_is_no_try():
    assert str(ConfigError("no script")) == "no script"


@pytest.mark.parametrize(
    ("cls", "code"),
    [(ElasticError, 1), (ConfigError, 2), (PluginError, 3), (RendezvousError, 4), (RendezvousGracefulExitError, 0)],
)
def test_exit_codes(cls, code):
    assert cls.exit_code == code


def test_what_torch_raises_catches_ours():
    missing = ProgramMissingError("program 'x' not found", hint="its path")
    for error in (ConfigError("a", hint="b"), PluginError("a", hint="b"), missing):
        assert isinstance(error, ValueError)
    assert isinstance(missing, FileNotFoundError)
    assert (missing.errno, missing.args, missing.exit_code) == (None, ("program 'x' not found", "its path"), 2)
