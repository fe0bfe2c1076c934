"""`--agent-store` with real torch: the store is a sidecar's, fresh each round, and never outlives the agent."""

import os
import signal
import socket
from functools import partial
from pathlib import Path

import pytest

import ports
from patience import promised
from proc_kit import children, command_line, is_alive
from support import wait_for
from time_limits import AT_ONCE_S

# Each worker says what it finds; rank 1 may wait for the test's word, and rank 0 for rank 1 and what that says.
WORKER = """
import json, os, sys, threading
import torch
import torch.distributed as dist

folder, mode = sys.argv[1:]

def say(**what):
    os.write(1, (json.dumps({"rank": int(os.environ["RANK"])} | what) + os.linesep).encode())

dist.init_process_group("gloo")
rank, count = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
store = dist.distributed_c10d._get_default_store()
before = store.check(["left-behind"])
dist.barrier()
store.set("left-behind", "1")
total = torch.ones(1) * (rank + 1)
dist.all_reduce(total)
say(count=count, total=total.item(), before=before, use=os.environ["TORCHELASTIC_USE_AGENT_STORE"])
store.set(f"said-{rank}", "1")
if mode == "crash" and count == 0 and rank == 0:
    store.wait(["said-1"])
    os._exit(3)
while mode in ("train", "ask") and rank == 1 and not os.path.exists(os.path.join(folder, "go")):
    threading.Event().wait(0.01)
dist.all_reduce(total)
if mode == "ask" and count == 0:
    store.get("left-behind")
say(end=total.item())
dist.destroy_process_group()  # else torch may abort at exit, with any launcher
"""


@pytest.fixture
def start(elastic, script, tmp_path):
    """Start two workers on an agent store."""

    def run(mode, *options, **surroundings):
        return elastic("--nproc-per-node", "2", *options, script(WORKER), tmp_path, mode, **surroundings)

    return run


def sidecars(agent):
    """The processes beside this agent that host a store."""
    ending = b"\0elastic-store\0"
    return [pid for pid in children(agent.pid) if command_line(pid).endswith(ending)]


def has_torch(pid):
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def rounds(agent):
    return sorted((line["count"], line["rank"]) for line in agent.lines() if "count" in line)


def test_a_restart_after_a_crash_meets_in_a_store_without_old_keys(start):
    agent = start("crash", "--agent-store", "--max-restarts", "1")
    assert agent.wait() == 0, agent.err
    assert rounds(agent) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for line in agent.lines():
        if "count" in line:
            assert line["use"] == "True"
            assert line["total"] == 3.0
            assert line["before"] is False
    assert len([line for line in agent.lines() if "end" in line]) == 2


def test_a_master_port_of_the_users_serves_every_round(start, free_port):
    agent = start("crash", "--agent-store", "--max-restarts", "1", "--master-port", free_port)
    assert agent.wait() == 0, agent.err
    assert rounds(agent) == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.fixture
def free_port():
    return ports.free_port()


def test_without_the_option_rank_0_hosts_and_there_is_no_sidecar(start, tmp_path):
    agent = start("train")
    wait_for(lambda: len(rounds(agent)) == 2, what="both workers")
    assert {line["use"] for line in agent.lines()} == {"False"}
    assert sidecars(agent) == []
    assert not has_torch(agent.pid)
    (tmp_path / "go").touch()
    assert agent.wait() == 0


def test_workers_train_on_when_the_sidecar_is_killed_and_another_takes_its_place(start, tmp_path):
    agent = start("train", "--agent-store")
    wait_for(lambda: len(rounds(agent)) == 2, what="both workers")
    (first,) = sidecars(agent)
    assert has_torch(first)
    assert not has_torch(agent.pid)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: [pid for pid in sidecars(agent) if pid != first], what="another sidecar")
    (tmp_path / "go").touch()
    assert agent.wait() == 0, agent.err
    assert "the process of the agent store was killed by SIGKILL" in agent.err
    assert sorted(line["end"] for line in agent.lines() if "end" in line) == [6.0, 6.0]


def test_workers_that_need_the_dead_sidecars_store_fail_and_are_restarted(start, tmp_path):
    agent = start("ask", "--agent-store", "--max-restarts", "1")
    wait_for(lambda: len(rounds(agent)) == 2, what="both workers")
    (first,) = sidecars(agent)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: not is_alive(first), what="the sidecar's end")
    (tmp_path / "go").touch()
    assert agent.wait() == 0, agent.err
    assert rounds(agent) == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize("stuck", [False, True])
def test_no_sidecar_survives_an_agent_that_is_killed(start, stuck):
    agent = start("train", "--agent-store")
    wait_for(lambda: len(rounds(agent)) == 2, what="both workers")
    (sidecar,) = sidecars(agent)
    if stuck:  # it can't see its input end: the guard must find it
        os.kill(sidecar, signal.SIGSTOP)
    agent.signal(signal.SIGKILL)
    agent.wait()
    wait_for(lambda: not is_alive(sidecar), within_s=5, what="the sidecar's end")


def test_a_stop_signal_while_the_store_is_awaited_ends_the_run_at_once(start):
    for _ in range(5):  # on a busy machine we may come late
        agent = start("train", "--agent-store")
        (sidecar,) = wait_for(partial(sidecars, agent), what="the sidecar")
        os.kill(sidecar, signal.SIGSTOP)
        if not has_torch(sidecar):  # its import of torch is not over yet, and never will be
            break
        os.kill(sidecar, signal.SIGCONT)
        agent.signal(signal.SIGTERM)
        agent.wait()
    assert not has_torch(sidecar)
    with promised(2 * AT_ONCE_S):
        agent.signal(signal.SIGTERM)
        assert agent.wait() == 128 + signal.SIGTERM
    assert not is_alive(sidecar)
    assert agent.lines() == []


def test_a_port_that_cannot_be_had_is_named_and_no_worker_starts(start, free_port):
    with socket.socket() as other:
        other.bind(("", free_port))
        other.listen()
        # With an address of another host the port is not ours to hold: only the store finds it taken.
        agent = start("train", "--agent-store", "--master-addr", "192.0.2.7", "--master-port", free_port)
        assert agent.wait() == 4, agent.err
    told = " ".join(agent.err.split())
    assert f"the agent store can't be opened: port {free_port}: address already in use. Try:" in told
    assert "Traceback" not in agent.err
    assert agent.lines() == []


def test_a_torch_that_cannot_be_imported_is_named(start, tmp_path):
    broken = tmp_path / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')")
    agent = start("train", "--agent-store", env={"PYTHONPATH": str(broken.parent)})
    assert agent.wait() == 4
    assert "torch can't be imported (ImportError: libcudart.so.13" in " ".join(agent.err.split())


def test_dry_run_shows_it_and_the_variable_gives_it(start):
    agent = start("train", "--dry-run", env={"PET_AGENT_STORE": "1"})
    assert agent.wait() == 0
    assert "TORCHELASTIC_USE_AGENT_STORE=True" in agent.out
    assert "env PET_AGENT_STORE" in agent.out
