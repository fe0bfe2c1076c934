"""What `--standby` resolves to, and that what rounds change is known to it."""

import os
from pathlib import Path

import pytest

from elastic_core.errors import ConfigError
from elastic_core.launcher.plan import Attempt, worker_environment
from elastic_core.options.devices import Node
from elastic_core.options.resolve import resolve
from elastic_core.options.settings import Entrypoint, RunSettings
from elastic_core.options.worker_options import WorkerSettings
from elastic_core.processes import standby_pool
from elastic_core.processes.environment import ROUND_VARIABLES
from elastic_core.processes.spec import WorkerPaths
from elastic_core.types import RendezvousSettings, Round
from elastic_core.worker import standby


@pytest.fixture
def settle(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    script.chmod(0o755)

    def settle(environ=None, **given):
        variables = {"PATH": os.environ["PATH"], **(environ or {})}
        return resolve(given, str(script), [], environ=variables, node=Node(variables)).settings

    return settle


def test_it_is_off_unless_asked_for(settle):
    assert not settle(max_restarts="1").workers.standby
    assert settle(max_restarts="1", standby=True).workers.standby
    settings = settle({"PET_STANDBY": "1", "PET_MAX_RESTARTS": "2"})
    assert settings.workers.standby
    assert settings.workers.standby_imports == ("torch", "torch.distributed")


@pytest.mark.parametrize(("text", "names"), [("", ()), ("torch, my_model.layers,", ("torch", "my_model.layers"))])
def test_what_spares_import_can_be_chosen(settle, text, names):
    assert settle(standby=True, max_restarts="1", standby_imports=text).workers.standby_imports == names


def test_what_is_no_module_is_refused(settle):
    with pytest.raises(ConfigError, match=r"--standby-imports 'torch,my-model': needed module names.*'my-model' is"):
        settle(standby=True, standby_imports="torch,my-model")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"no_python": True, "max_restarts": "1"}, "only Python scripts"),
        ({"debug_rank": "0", "max_restarts": "1"}, "--debug-rank"),
        ({}, "--max-restarts 0"),
    ],
)
def test_where_it_can_do_nothing_it_is_off_and_says_so(settle, given, why):
    settings = settle(standby=True, **given)
    assert not settings.workers.standby
    assert any(line.startswith("--standby has no effect") and why in line for line in settings.notices)


def test_a_membership_change_or_another_policy_may_restart_without_a_budget(settle):
    assert settle(standby=True, nnodes="1:2", rdzv_backend="redis", rdzv_id="x", rdzv_endpoint="h:1").workers.standby
    assert settle(standby=True, policy="rules").workers.standby


def test_imports_without_spares_are_told(settle):
    assert "--standby-imports 'numpy' has no effect without --standby" in settle(standby_imports="numpy").notices


def environment(**different):
    index = different.pop("index", 0)
    whole = {
        "index": index,
        "token": index,
        "nonce": str(index),
        "node_rank": index,
        "node_count": 2 + index,
        "local_world_size": 2,
        "base_rank": 2 * index,
        "world_size": 4 + 2 * index,
        "role": "default",
        "role_base_rank": 2 * index,
        "role_world_size": 4 + 2 * index,
        "master_addr": f"node{index}",
        "master_port": 1000 + index,
    }
    settings = RunSettings(
        entrypoint=Entrypoint(argv=("python", "-u", "t.py"), name="t.py"),
        nodes=RendezvousSettings(run_id="r"),
        workers=WorkerSettings(omp_threads=1),
    )
    attempt = Attempt(
        round=Round(**whole),
        restart_count=index,
        membership_changes=index,
        incarnation="i",
        node_id="n",
        use_agent_store=bool(index),
    )
    paths = WorkerPaths(
        error_file=f"{index}/error.json", fault_file=f"{index}/fault.log", beat_file=f"/proc/1/fd/{index}"
    )
    return worker_environment(settings, attempt, 1, paths, {"HOME": "/home/x"})


def test_all_that_rounds_change_is_known():
    first, second = environment(), environment(index=1)
    changed = {name for name in first if first[name] != second[name]}
    assert changed <= ROUND_VARIABLES
    assert {*first} >= ROUND_VARIABLES
    assert ROUND_VARIABLES - changed == {"ELASTIC_WORKER_HOOKS"}


def test_agent_and_spare_speak_the_same_language():
    assert Path(standby_pool._PROGRAM) == Path(standby.__file__)
    assert standby_pool._FAILED == standby.FAILED
    assert not standby.READY.startswith(standby.FAILED)
