"""Stock torchrun on our backends, as users start it: two agents, real servers."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from etcd_servers import etcd_server
from patience import patience
from redis_servers import redis_server
from support import wait_for
from torch_kit import WORKER, last_round

__all__ = ["etcd_server", "redis_server"]

LEASE_S = patience(2.0)
"""So long that a node is not taken for lost where its torchrun gets no turn for a while."""

GLOO = """
import os
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
os.write(1, f'{{"total": {total.item():.0f}}}{os.linesep}'.encode())
dist.destroy_process_group()
"""


class Agent:
    """One torchrun."""

    def __init__(self, python, folder, args):
        folder.mkdir()
        self._out, self._err = folder / "out", folder / "err"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ELASTIC_", "TORCHELASTIC_"))}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [python, "-m", "torch.distributed.run", *map(str, args)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                env=inherited | {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1", "PYTHON_EXEC": python},
            )

    @property
    def err(self):
        return self._err.read_text(errors="replace")

    def lines(self):
        return [json.loads(line) for line in self._out.read_text().splitlines() if line.endswith("}")]

    def world(self):
        """The world size of the last workers that it started; 0: none yet."""
        lines = self.lines()
        return int(lines[-1]["WORLD_SIZE"]) if lines else 0

    def wait(self, within_s=60.0):
        within_s = patience(within_s)  # torch 2.15's torchrun takes a second to start and to end, on an idle machine
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {within_s:g} s\n{self.err}") from None

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture(params=["redis", "etcd-v3"])
def backend(request):
    """The name under which torchrun knows a backend of ours, and its server's endpoint."""
    return request.param, request.getfixturevalue(f"{request.param.partition('-')[0]}_server").endpoint


@pytest.fixture
def torchrun(tmp_path, backend, script, torch_python):
    """Start torchruns of one run, with the same script."""
    started, run_id = [], f"test-{os.getpid()}-{time.monotonic_ns()}"
    name, endpoint = backend
    text = script(WORKER)

    def start(*args, nnodes="2", path=text, conf=f"lease_ttl={LEASE_S:g}"):
        conf = f"{conf},last_call_timeout=1,join_timeout=40"
        options = ["--rdzv-backend", name, "--rdzv-endpoint", endpoint, "--rdzv-id", run_id, "--rdzv-conf", conf]
        options += ["--nnodes", nnodes, "--shutdown-timeout", "5"]
        started.append(Agent(torch_python, tmp_path / f"agent{len(started)}", [*options, *args, path, tmp_path]))
        return started[-1]

    yield start
    for agent in started:
        agent.close()


def until(condition, *agents, within_s=40):
    """Wait for what agents do, unless one of them has ended."""
    wait_for(lambda: condition() or any(agent.process.poll() is not None for agent in agents), within_s=within_s)
    assert condition(), "".join(agent.err for agent in agents)


def test_two_nodes_train_and_leave_no_word_of_trouble(torchrun, script):
    path = script(GLOO, "gloo.py")
    agents = [torchrun("--nproc-per-node", count, path=path) for count in ("2", "1")]
    assert [agent.wait() for agent in agents] == [0, 0], agents[0].err + agents[1].err
    assert [line["total"] for agent in agents for line in agent.lines()] == [6, 6, 6]
    assert "arning" not in agents[0].err + agents[1].err
    assert "Traceback" not in agents[0].err + agents[1].err


def test_crash_of_one_worker_restarts_both_nodes_at_once(torchrun, tmp_path):
    agents = [torchrun("--max-restarts", "1"), torchrun("--max-restarts", "1")]
    until(lambda: last_round(agents, 2), *agents)
    first = [agent.lines()[-1] for agent in agents]
    assert {line["TORCHELASTIC_USE_AGENT_STORE"] for line in first} == {"False"}
    (tmp_path / "crash1").touch()
    until(lambda: [len(agent.lines()) for agent in agents] == [2, 2] and last_round(agents, 2), *agents, within_s=20)
    assert agents[0].lines()[-1]["MASTER_PORT"] != first[0]["MASTER_PORT"]
    (tmp_path / "finish").touch()
    assert [agent.wait() for agent in agents] == [0, 0], agents[0].err + agents[1].err


def test_last_failure_of_one_node_ends_the_other(torchrun, tmp_path):
    agents = [torchrun(), torchrun()]
    until(lambda: last_round(agents, 2), *agents)
    (tmp_path / "crash0").touch()
    assert [agent.wait(20) for agent in agents] == [1, 1]
    survivor = next(agent for agent in agents if agent.lines()[-1]["RANK"] == "1")
    assert "RendezvousClosedError" in survivor.err
    assert "rank 0 failed with exit code 3" in survivor.err


def test_node_joins_and_the_one_of_rank_0_is_killed(torchrun, tmp_path):
    first = torchrun(nnodes="1:2")
    until(lambda: first.world() == 1, first)
    second = torchrun(nnodes="1:2")
    until(lambda: last_round([first, second], 2), first, second)
    assert first.lines()[-1]["RANK"] == "0"
    os.kill(first.process.pid, signal.SIGKILL)
    until(lambda: second.world() == 1, second, within_s=10)
    (tmp_path / "finish").touch()
    assert second.wait() == 0, second.err
    assert len(second.lines()) == 2


def test_node_that_is_told_to_stop_is_missed_at_once(torchrun, tmp_path):
    agents = [torchrun(nnodes="1:2", conf="lease_ttl=30") for _ in range(2)]
    until(lambda: last_round(agents, 2), *agents)
    agents[0].process.terminate()
    until(lambda: agents[1].world() == 1, agents[1], within_s=10)
    (tmp_path / "finish").touch()
    assert agents[1].wait() == 0, agents[1].err


def test_bad_option_is_said_by_torchrun_itself(torchrun):
    agent = torchrun("--rdzv-conf", "leas_ttl=3")
    assert agent.wait() == 1
    assert "ValueError: rendezvous backend" in agent.err
    assert "has no option 'leas_ttl'" in agent.err
    assert "Try: --rdzv-conf lease_ttl=" in agent.err


ERRORS = """
import sys
import torch.distributed.elastic.rendezvous as torch_rendezvous
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

name, endpoint, run_id, joins_in_s = sys.argv[1:]

def join(endpoint, **conf):
    parameters = torch_rendezvous.RendezvousParameters(name, endpoint, run_id, 2, 2, None, timeout=900, **conf)
    handler = get_rendezvous_handler(parameters)
    assert isinstance(handler, torch_rendezvous.RendezvousHandler)
    try:
        handler.next_rendezvous()
    except torch_rendezvous.RendezvousError as error:
        print(type(error).__name__, error)
    assert (handler.get_backend(), handler.get_run_id()) == (name, run_id)
    assert handler.num_nodes_waiting() == 0
    assert handler.shutdown() and handler.shutdown()

join(endpoint, join_timeout=joins_in_s)
join("127.0.0.1:1", connect_timeout="0.5")
"""


def test_errors_are_torchs_and_name_options_that_torchrun_has(backend, script):
    path = script(ERRORS, "errors.py")
    run_id = f"test-{os.getpid()}-{time.monotonic_ns()}"
    command = [sys.executable, "-W", "error", path, *backend, run_id, f"{patience(1):g}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    late, unreachable = done.stdout.splitlines()
    assert late.startswith(f"RendezvousTimeoutError run '{run_id}': 1 of at least 2 nodes joined")
    assert late.endswith("or raise --rdzv-conf join_timeout=SECONDS")
    assert unreachable.startswith(f"RendezvousConnectionError run '{run_id}': ")
    assert "127.0.0.1:1 could not be reached within 0.5 s" in unreachable


def test_import_of_torchs_rendezvous_warns_of_nothing(backend):
    name, _ = backend
    code = (
        f"import torch.distributed.elastic.rendezvous as r; assert {name!r} in r.rendezvous_handler_registry._registry"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize(
    ("module", "function"), [("elastic_rdzv_redis.torchrun", "redis"), ("elastic_rdzv_etcd.torchrun", "etcd_v3")]
)
def test_what_every_start_of_torchrun_imports_is_nothing_but_itself(module, function):
    code = (
        f"import sys, {module}\n{module}.{function}()\n"
        "print(*sorted({name for name in sys.modules} - set(sys.stdlib_module_names) - {'__main__'}))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, env=_path(), check=False)
    assert done.stderr == ""
    imported = [name for name in done.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names]
    assert imported == [module.partition(".")[0], module]


def _path():
    """The environment of an interpreter that finds our packages, and runs no .pth file."""
    packages = [importlib.util.find_spec(name) for name in ("elastic_rdzv_etcd", "elastic_rdzv_redis")]
    folders = [str(Path(package.origin).parents[1]) for package in packages]
    return os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
