"""A worker that connects to MASTER_PORT before anybody hosts a store there: with real torch, and a stand-in."""

import datetime
import os
import sys
import threading
import types

import pytest

from elastic_torchrun.store import watch as store_watch
from proc_kit import children, command_line
from support import wait_for

# What torchft's Manager does: a client first, of every rank; a process group later.
CLIENT_FIRST = """
import json, os, sys
from datetime import timedelta
import torch
import torch.distributed as dist

rank, count = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
limit = timedelta(seconds=float(sys.argv[1]))
store = dist.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=limit)
store.set(f"met-{count}-{rank}", "1")
store.wait([f"met-{count}-0", f"met-{count}-1"])
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
watched = any("StoreWatch" in str(finder) for finder in sys.meta_path)
found = {"rank": int(rank), "count": count, "total": total.item(), "watched": watched}
os.write(1, (json.dumps(found) + os.linesep).encode())
store.set(f"said-{count}-{rank}", "1")
if count == 0 and rank == "1":
    store.wait(["said-0-0"])
    os._exit(3)
dist.all_reduce(total)
dist.destroy_process_group()
"""

SLOW_RANK_0 = """
import os, pathlib, sys, threading
folder = pathlib.Path(sys.argv[1])
if os.environ["RANK"] == "0":
    while not (folder / "go").exists():
        threading.Event().wait(0.02)
import torch.distributed as dist
(folder / f"up-{os.environ['RANK']}").touch()
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""

OTHER_HOST = """
import os, pathlib, sys, threading
from datetime import timedelta
import torch.distributed as dist
folder, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
if rank == "0":
    while not (folder / "up").exists():
        threading.Event().wait(0.02)
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=rank == "1",
                      wait_for_workers=False, timeout=timedelta(seconds=60))
(folder / "up").touch()
store.set(f"done-{rank}", "1")
store.wait(["done-0", "done-1"])
store.set(f"over-{rank}", "1")
if rank == "1":
    store.wait(["over-0"])
"""


def words(agent):
    return " ".join(agent.err.split())


def sidecars(agent):
    """The processes beside this agent that host a store."""
    return [pid for pid in children(agent.pid) if command_line(pid).endswith(b"\0elastic-store\0")]


def test_a_client_on_rank_0_gets_a_store_also_after_a_restart(elastic, script):
    agent = elastic("--nproc-per-node", "2", "--max-restarts", "1", script(CLIENT_FIRST), "120")
    assert agent.wait(150) == 0, agent.err
    found = sorted((line["count"], line["rank"], line["total"], line["watched"]) for line in agent.lines())
    assert found == [(0, 0, 2.0, False), (0, 1, 2.0, False), (1, 0, 2.0, False), (1, 1, 2.0, False)]
    assert words(agent).count("no process hosts one: one is opened beside this agent") == 1
    assert agent.survivors() == []


def test_a_rank_0_that_comes_late_hosts_its_store_itself(elastic, script, tmp_path):
    agent = elastic("--nproc-per-node", "2", script(SLOW_RANK_0), tmp_path)
    wait_for((tmp_path / "up-1").exists, within_s=90)
    threading.Event().wait(4.0)  # rank 1 is refused again and again
    assert sidecars(agent) == []
    (tmp_path / "go").touch()
    assert agent.wait(120) == 0, agent.err
    assert "store" not in agent.err


def test_a_store_that_another_worker_hosts_is_left_alone(elastic, script, tmp_path):
    agent = elastic("--nproc-per-node", "2", script(OTHER_HOST), tmp_path)
    assert agent.wait(120) == 0, agent.err
    assert "store" not in agent.err


def test_without_a_control_plane_there_is_a_line(elastic, script):
    agent = elastic("--no-control-plane", script(CLIENT_FIRST), "2")
    assert agent.wait(120) == 1
    assert "and no process hosts one (its agent has no control plane). Try: elastic run --agent-store" in words(agent)


# --- the watch alone


class Made:
    """As the base of torch's classes, it takes what `__init__` is to have."""

    def __new__(cls, *args, **kwargs):
        return super().__new__(cls)


class Store(Made):
    """In the place of torch's."""

    def __init__(self, host_name, port, world_size=None, is_master=False, **more):
        """Make it."""
        self.made = (host_name, port, is_master)


@pytest.fixture
def watched(monkeypatch):
    """Watch as the worker with a rank does; yield the class, and what was asked of the agent."""
    made = Store.__init__
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", types.SimpleNamespace(TCPStore=Store))
    asked = []
    monkeypatch.setattr(store_watch, "_refusal", lambda: asked.append(1) or "")

    def begin(rank, use="False", port="1"):
        for name, value in (("RANK", rank), ("MASTER_PORT", port), ("TORCHELASTIC_USE_AGENT_STORE", use)):
            monkeypatch.setenv(name, value)
        before = list(sys.meta_path)
        store_watch.watch()
        return before != sys.meta_path

    def untouched():
        return Store.__init__ is made and "__new__" not in vars(Store)

    yield types.SimpleNamespace(begin=begin, asked=asked, untouched=untouched)
    if not untouched():
        del Store.__new__
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, store_watch.StoreWatch)]


@pytest.mark.parametrize("how", [("127.0.0.1", 1), ("127.0.0.1", 1, 2, False), {"host_name": "127.0.0.1", "port": 1}])
def test_the_first_client_asks_and_leaves_nothing_behind(watched, how):
    assert watched.begin("0")
    store = Store(**how) if isinstance(how, dict) else Store(*how)
    assert store.made == ("127.0.0.1", 1, False)
    assert (watched.asked, watched.untouched()) == ([1], True)
    assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    Store("127.0.0.1", 1)
    assert watched.asked == [1]


@pytest.mark.parametrize(
    ("how", "untouched"),
    [
        ({"port": 1, "is_master": True}, True),
        ({"port": 2}, False),
        ({"port": 0, "is_master": True}, False),
    ],
)
def test_other_stores_are_of_no_interest(watched, how, untouched):
    watched.begin("0")
    Store("127.0.0.1", **how)
    assert (watched.asked, watched.untouched()) == ([], untouched)
    assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "False"


@pytest.mark.parametrize(("rank", "use", "port"), [("2", "False", "1"), ("0", "True", "1"), ("0", "False", "")])
def test_where_there_is_nothing_to_see_nothing_is_watched(watched, rank, use, port):
    assert not watched.begin(rank, use, port)
    assert watched.untouched()


def test_a_refusal_is_told_and_changes_nothing(watched, monkeypatch, capsys):
    monkeypatch.setattr(store_watch, "_refusal", lambda: "no rank 0 runs on this node")
    watched.begin("0")
    Store("127.0.0.1", 1)
    assert capsys.readouterr().err == (
        "elastic: rank 0 connects to a store at 127.0.0.1:1, and no process hosts one (no rank 0 runs on this node). "
        "Try: elastic run --agent-store, if it is not to be rank 0's\n"
    )
    assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "False"


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_store_that_cannot_be_made_has_no_frame_of_ours_in_its_traceback(watched, monkeypatch, rank):
    import torch  # noqa: F401  # before the stand-in for its class is put away
    from torch.distributed import DistNetworkError, TCPStore

    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", types.SimpleNamespace(TCPStore=TCPStore))
    watched.begin(rank)
    with pytest.raises(DistNetworkError) as caught:
        TCPStore("127.0.0.1", 1, is_master=False, timeout=datetime.timedelta(seconds=0.3))
    assert {entry.frame.code.path.name for entry in caught.traceback} == {"test_store_watch.py"}
    assert watched.asked == ([1] if rank == "0" else [])
    served = TCPStore("127.0.0.1", 0, is_master=True)  # as before
    assert served.port


def wrap_once():
    """Replace the class's `__new__` for one call, as elastic-standby does for a client that waits."""
    inner = Store.__new__

    def __new__(cls, *args, **kwargs):
        Store.__new__ = inner
        return inner(cls, *args, **kwargs)

    Store.__new__ = __new__


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_rank_that_waits_for_rank_0_says_so_once(watched, monkeypatch, wrapped):
    monkeypatch.setattr(store_watch, "TOLD_AFTER_S", 0.01)
    said = []
    monkeypatch.setattr(store_watch, "_tell", said.append)
    slow = Store.__init__

    def late(store, *args, **kwargs):
        wait_for(lambda: said)
        slow(store, *args, **kwargs)

    monkeypatch.setattr(Store, "__init__", late)
    watched.begin("1")
    if wrapped:
        wrap_once()
    Store("127.0.0.1", 1)
    assert "__new__" not in vars(Store)
    assert said == ["rank 1 has waited 0.01 s for a store at 127.0.0.1:1: rank 0 has not opened one yet"]
    assert watched.asked == []
    monkeypatch.setattr(Store, "__init__", slow)


def test_a_rank_that_is_served_says_nothing(watched, monkeypatch):
    said = []
    monkeypatch.setattr(store_watch, "_tell", said.append)
    watched.begin("1")
    before = {*threading.enumerate()}
    Store("127.0.0.1", 1)
    wait_for(lambda: {*threading.enumerate()} <= before)
    assert said == []
