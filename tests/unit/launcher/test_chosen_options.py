"""The options of a run for hooks: those of `--dry-run -v`, or of a library call without origins."""

import os
import sys

import pytest

from elastic_core.cli.dry_run import describe
from elastic_core.launcher.chosen_options import chosen_options
from elastic_core.options.devices import Node
from elastic_core.options.resolve import resolve
from elastic_core.options.settings import Resolution


@pytest.fixture
def resolved(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")

    def resolved(**given):
        environ = {"PATH": os.environ["PATH"], "PET_MAX_RESTARTS": "3"}
        return resolve(given, str(script), (), environ=environ, node=Node(environ))

    return resolved


def test_the_options_are_those_that_a_verbose_dry_run_shows(resolved):
    resolution = resolved(nnodes="2", rdzv_backend="theirs", rdzv_id="x", rdzv_conf="password=hunter2,a=1")
    shown = chosen_options(resolution)
    by_name = {option.name: (option.value, option.origin) for option in shown}
    assert by_name["max_restarts"] == ("3", "env PET_MAX_RESTARTS")
    assert by_name["nnodes"] == ("2:2", "flag --nnodes")
    assert by_name["rdzv_conf"] == ("password=***,a=1", "flag --rdzv-conf")
    assert by_name["role"] == ("default", "default")
    assert "hunter2" not in str(shown)
    lines = describe(resolution, {}, verbose=True).partition("\n\n")[0].splitlines()[1:]
    assert [line.split() for line in lines] == [f"{one.name} {one.value} {one.origin}".split() for one in shown]


def test_without_origins_each_value_that_is_no_default_is_the_callers(resolved):
    settings = resolved(nnodes="1:2", rdzv_backend="theirs", rdzv_id="x", plugin=("gpu:limit=5",)).settings
    shown = chosen_options(Resolution(settings=settings, origins={}))
    by_name = {option.name: (option.value, option.origin) for option in shown}
    assert by_name["nnodes"] == ("1:2", "call")
    assert by_name["max_restarts"] == ("3", "call")
    assert by_name["rdzv_id"] == ("x", "call")
    assert by_name["hook gpu"] == ("limit=5", "call")
    assert by_name["shutdown_timeout"] == ("30", "default")
    assert by_name["script"][1] == f"script, run by {sys.executable} (call)"
