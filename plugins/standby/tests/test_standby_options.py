"""What `--standby` makes of its options, and where it has no effect."""

import os
import sys
from pathlib import Path

import pytest

from elastic_core.api import ConfigError, HookSettings
from elastic_core.launcher.plan import hook_settings
from elastic_core.options.devices import Node
from elastic_core.options.resolve import resolve
from elastic_core.plugins.missing import option_not_installed
from elastic_core.plugins.registry import PluginRegistry
from elastic_plugin_kit import AgentHookConformance, RealLoop, WorkerStarterConformance
from elastic_standby import forks, orders, pool, spare
from elastic_standby.hook import Standby
from group_kit import set_subreaper


@pytest.fixture
def settle(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    script.chmod(0o755)

    def settle(environ=None, **given):
        """Return the hook; None: no option has chosen it."""
        variables = {"PATH": os.environ["PATH"], **(environ or {})}
        settings = resolve(given, str(script), [], environ=variables, node=Node(variables)).settings
        found = PluginRegistry().make_chosen_hooks(hook_settings(settings, ""), settings.hook_options)
        return found[0].hook if found else None

    return settle


def test_it_is_off_unless_asked_for(settle):
    assert settle(max_restarts="1") is None
    assert settle(max_restarts="1", standby=True).wanted
    hook = settle({"PET_STANDBY": "1", "PET_MAX_RESTARTS": "2"})
    assert hook.wanted
    assert hook.imports == ("torch", "torch.distributed", "elastic_warm.ahead")
    assert hook.notices == ()


@pytest.mark.parametrize(("text", "names"), [("", ()), ("torch, my_model.layers,", ("torch", "my_model.layers"))])
def test_what_spares_import_can_be_chosen(settle, text, names):
    assert settle(standby=True, max_restarts="1", standby_imports=text).imports == names


def test_what_is_no_module_is_refused(settle):
    with pytest.raises(ConfigError, match=r"--standby-imports: 'torch,my-model'; expected module names.*'my-model' is"):
        settle(standby=True, standby_imports="torch,my-model")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"no_python": True, "max_restarts": "1"}, "only Python scripts"),
        ({"debug_rank": "0", "max_restarts": "1"}, "--debug-rank"),
        ({"run_path": True, "max_restarts": "1"}, "functions as workers (--run-path among them) start afresh"),
        ({"standby_start": "spawn"}, "--max-restarts 0"),
    ],
)
def test_where_it_can_do_nothing_it_is_off_and_says_so(settle, given, why):
    hook = settle(standby=True, **given)
    assert not hook.wanted
    assert hook.worker_starter(RealLoop()) is None
    (line,) = hook.notices
    assert line.startswith("--standby has no effect: ")
    assert why in line


def test_forks_help_without_a_restart(settle):
    assert settle(standby=True).how == "auto"
    assert settle(standby=True, standby_start="fork").wanted


def test_a_membership_change_or_another_policy_may_restart_without_a_budget(settle):
    spawn = {"standby": True, "standby_start": "spawn"}
    assert settle(**spawn, nnodes="1:2", rdzv_backend="redis", rdzv_id="x", rdzv_endpoint="h:1").wanted
    assert settle(**spawn, policy="rules").wanted


@pytest.mark.parametrize(("how", "lines"), [("auto", 1), ("fork", 1), ("spawn", 0)])
def test_a_library_call_forks_nothing(how, lines):
    options = {"standby": True, "standby_start": how, "standby_imports": "json"}
    loop = RealLoop()
    starter = Standby(HookSettings(name="standby", options=options, own_process=False)).worker_starter(loop)
    assert not starter.pids()
    assert len(loop.notices) == lines
    assert all("not forked (--standby): a library call" in line for line in loop.notices)
    starter.close()


def test_imports_without_spares_are_told(settle):
    hook = settle(standby_imports="numpy")
    assert hook.notices == ("--standby-imports 'numpy' has no effect without --standby",)
    assert hook.worker_starter(RealLoop()) is None
    (line,) = settle(standby_start="fork").notices
    assert line == "--standby-start 'fork' has no effect without --standby"
    assert len(settle(standby_start="fork", standby_imports="numpy").notices) == 2


@pytest.mark.parametrize("flag", ["standby", "standby-imports", "standby-start"])
def test_without_this_distribution_one_line_says_so(flag):
    needed = "pip install . ./plugins/standby, in a checkout of elastic-core"
    assert str(option_not_installed(flag)) == f"--{flag} comes with elastic-standby. Try: {needed}"


def test_agent_and_spare_speak_the_same_language():
    assert Path(orders._PROGRAM) == Path(spare.__file__)
    assert pool._FAILED == forks._FAILED == spare.FAILED
    assert not spare.READY.startswith(spare.FAILED)
    for name in ("READY", "COUNTED", "FORKED", "ADOPTED", "MAX_BATCH"):
        assert getattr(forks, f"_{name}") == getattr(spare, name)


class TestStandby(AgentHookConformance):
    @pytest.fixture
    def make_hook(self):
        options = {"standby": True, "standby_start": "auto", "standby_imports": "json"}
        return lambda run_dir: Standby(HookSettings(name="standby", run_dir=run_dir, options=options))


class TestStandbyPool(WorkerStarterConformance):
    @pytest.fixture
    def make_starter(self):
        return lambda loop: pool.StandbyPool(loop, imports=("json",), delay_s=0.0)

    def is_ready(self, starter):
        return starter.ready_count > 0


class TestForkServer(WorkerStarterConformance):
    @pytest.fixture
    def make_starter(self, tmp_path):
        set_subreaper(True)
        command = (sys.executable, "-u", str(tmp_path / "report.py"))
        environment = {"PATH": os.defpath}
        yield lambda loop: forks.ForkServer(
            loop, command=command, environment=environment, marks={"ELASTIC_INCARNATION": "the-kit"}, imports=("json",)
        )
        set_subreaper(False)
