"""An agent of a test's own, its guard, and a seat in a real store."""

import importlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from elastic_core.api import RendezvousSettings, WaitBudget
from elastic_core.processes.sweep import is_alive
from patience import kept, patience
from proc_kit import children
from support import wait_for
from time_limits import GUARD_S

AGENT = """
import json, os, subprocess, sys
from elastic_core.agent.guard.guardian import Guardian
from elastic_core.logger import Logger
from elastic_core.system.reactor import Reactor

incarnation = sys.argv[1]
reactor = Reactor()
guardian = Guardian(reactor, incarnation=incarnation, log=Logger(print))
guardian.start()

def start(argv, mark="", **extra):
    environment = {**os.environ, **({"ELASTIC_INCARNATION": incarnation} if mark else {}), **extra}
    return subprocess.Popen(argv, env=environment, start_new_session=True).pid

def obey():
    for line in os.read(0, 1 << 20).decode().splitlines():
        name, *args = json.loads(line)
        if name == "worker":  # with a child that shows no environment
            pids = [start(["/bin/sh", "-c", "env -i sleep 60 & exec sleep 60"], "mark")]
            guardian.note_workers(pids)
        elif name == "sidecar":
            pids = [start(["sleep", "60"], "mark", ELASTIC_SIDECAR="1")]
        elif name == "child":
            pids = [start(["sleep", "60"])]
        elif name == "fence":
            guardian.fence(float(args[0]))
            pids = []
        elif name == "last":
            guardian.last_act(args[0], args[1].encode(), args[2].encode())
            pids = []
        elif name == "guard":
            pids = [guardian.pid]
        print(json.dumps(pids), flush=True)

reactor.add_reader(0, obey)
while True:
    reactor.turn()
"""


class Agent:
    """An agent that does what the test says."""

    def __init__(self, **env):
        self.incarnation = secrets.token_hex(8)
        self.mark = f"ELASTIC_INCARNATION={self.incarnation}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", AGENT, self.incarnation],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        self._others = []

    def do(self, *command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        pids = json.loads(self.process.stdout.readline())
        self._others += pids
        return pids[0] if pids else None

    def signal(self, signum):
        os.kill(self.process.pid, signum)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        for pid in self._others:
            try:
                if self.mark.encode() in environment(pid) or Path(f"/proc/{pid}/comm").read_text() == "sleep\n":
                    os.kill(pid, signal.SIGKILL)
            except OSError:
                continue


def environment(pid):
    return Path(f"/proc/{pid}/environ").read_bytes()


def start_worker(agent):
    """Start a worker and return it and its child."""
    worker = agent.do("worker")
    (child,) = wait_for(lambda: children(worker))
    return worker, child


def gone(*pids):
    return not any(map(is_alive, pids))


REDIS_STORE = "elastic_rdzv_redis.store:RedisStore"
ETCD_STORE = "elastic_rdzv_etcd.store:EtcdStore"


def settings_for(endpoint, backend="redis"):
    return RendezvousSettings(
        backend=backend,
        run_id=f"test-{secrets.token_hex(8)}",
        endpoint=endpoint,
        min_nodes=1,
        max_nodes=2,
        local_world_size=1,
    )


def limit():
    """How long a call to a server of the test may take."""
    return WaitBudget.lasting(patience(10))


class Place:
    """A seat in a real store."""

    def __init__(self, server, endpoint="", store=REDIS_STORE):
        self.settings = settings_for(endpoint or server.endpoint, "etcd" if store == ETCD_STORE else "redis")
        self._named = store
        module, _, name = store.partition(":")
        cls = getattr(importlib.import_module(module), name)
        self.store = cls(msgspec.structs.replace(self.settings, endpoint=server.endpoint))
        self.store.connect(wait=limit())
        self.seat = self.store.enlist(b"me", incarnation="abc", ttl_s=60, wait=limit())

    def leave_with(self, agent, store=""):
        told = (msgspec.json.encode(each).decode() for each in (self.seat, self.settings))
        agent.do("last", store or self._named, *told)

    def taken(self):
        return bool(self.store.members(wait=limit()).members)


def check_that_the_seat_is_given_back(agent, place):
    """Kill the agent; check that its seat is gone within a second, by the guard, which then ends."""
    start_worker(agent)
    place.leave_with(agent)
    assert place.taken()
    guard = agent.do("guard")
    began_s = time.monotonic()
    agent.signal(signal.SIGKILL)
    wait_for(lambda: not place.taken(), within_s=5)
    kept(time.monotonic() - began_s, GUARD_S)
    wait_for(lambda: gone(guard))
