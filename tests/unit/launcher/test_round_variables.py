"""What rounds change of a worker's environment is known to those who start workers ahead of their time."""

from elastic_core.launcher.plan import Attempt, worker_environment
from elastic_core.moments import LaunchChange
from elastic_core.options.settings import Entrypoint, RunSettings
from elastic_core.options.worker_options import WorkerSettings
from elastic_core.processes.spec import ROUND_VARIABLES, WorkerPaths
from elastic_core.types import RendezvousSettings, Round

ROUND = Round(
    index=0,
    token=0,
    nonce="0",
    node_rank=0,
    node_count=1,
    local_world_size=2,
    base_rank=0,
    world_size=2,
    role="default",
    role_base_rank=0,
    role_world_size=2,
    master_addr="node",
    master_port=1,
)


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
        round=Round(**(whole | different)),
        restart_count=index,
        membership_changes=index,
        incarnation="i",
        node_id="n",
        use_agent_store=bool(index),
        changes=(LaunchChange(startup=(f"acme.trace:begin{index}",)),) * 2,
    )
    paths = WorkerPaths(error_file=f"{index}/error.json", fault_file=f"{index}/fault.log")
    return worker_environment(settings, attempt, 1, paths, {"HOME": "/home/x"})


def devices(inherited, **workers):
    settings = RunSettings(
        entrypoint=Entrypoint(argv=("t",), name="t"),
        nodes=RendezvousSettings(run_id="r", local_world_size=2),
        workers=WorkerSettings(**workers),
    )
    attempt = Attempt(round=ROUND, restart_count=0, membership_changes=0, incarnation="i", node_id="n")
    paths = WorkerPaths(error_file="e", fault_file="f")
    made = [worker_environment(settings, attempt, rank, paths, inherited) for rank in (0, 1)]
    return [{name: text for name, text in env.items() if "VISIBLE" in name} for env in made]


def test_workers_of_rocm_find_their_devices_in_both_variables():
    hip = {"device_variable": "HIP_VISIBLE_DEVICES"}
    inherited = {"HIP_VISIBLE_DEVICES": "3,2", "CUDA_VISIBLE_DEVICES": "0,1"}
    found = devices(inherited, virtual_local_rank=True, **hip)
    assert found == [dict.fromkeys(inherited, "3"), dict.fromkeys(inherited, "2")]
    assert devices(inherited, devices=("5", "4"), **hip) == [dict.fromkeys(inherited, "5,4")] * 2
    assert devices(inherited, **hip) == [inherited] * 2
    assert devices({}, virtual_local_rank=True) == [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]


def test_all_that_rounds_change_is_known():
    first, second = environment(), environment(index=1)
    changed = {name for name in first if first[name] != second[name]}
    assert changed <= ROUND_VARIABLES
    assert {*first} >= ROUND_VARIABLES
    assert ROUND_VARIABLES - changed == {"ELASTIC_WORKER_HOOKS"}


def test_torchs_variables_have_the_place_of_the_worker():
    env = environment(index=1, node_rank=2, base_rank=4, role_base_rank=0, role_world_size=2)
    expected = {
        "RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "2",
        "GROUP_WORLD_SIZE": "3", "ROLE_NAME": "default", "ROLE_RANK": "1", "ROLE_WORLD_SIZE": "2",
        "MASTER_ADDR": "node1", "MASTER_PORT": "1001", "TORCHELASTIC_RUN_ID": "r", "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": "1/error.json", "ELASTIC_ROUND": "1", "ELASTIC_MEMBERSHIP_CHANGES": "1",
    }  # fmt: skip
    assert {name: env[name] for name in expected} == expected
