"""What broken plugins do to real runs: a line with whose they are, where and what to do; the rest is in a file."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from patience import patience
from support import wait_for

HOOKS = """
from elastic_core.api import AgentHook

class Posts(AgentHook):
    api_version = 1

    def post(self, event):
        raise ConnectionError("nobody there")

    on_agent_started = on_round_joined = on_workers_started = on_worker_exited = on_agent_stopped = post

class Odd(AgentHook):
    api_version = 1

    def close(self):
        raise ValueError("closed twice")
"""

STORES = """
import os
import re
import threading
import time
from elastic_plugin_kit import MemoryServer, MemoryStore

SERVER = MemoryServer()

class Store(MemoryStore):
    def __init__(self, settings):
        super().__init__(settings, server=SERVER)

class Enlists(Store):
    api_version = 1

    def enlist(self, record, **rest):
        return 7

class Decodes(Store):
    api_version = 1

    def members(self, **rest):
        seen = super().members(**rest)
        texts = [type(m)(seat=m.seat, incarnation=m.incarnation, record=m.record.decode()) for m in seen.members]
        return type(seen)(revision=seen.revision, members=tuple(texts))

class Renews(Store):
    api_version = 1
    calls = 0

    def renew(self, seat, **rest):
        self.calls += 1
        if self.calls < 2:
            return super().renew(seat, **rest)
        return self._seat_of({})

    def _seat_of(self, seats):
        return seats["seat"]

class Hangs(Store):
    api_version = 1
    calls = 0

    def renew(self, seat, **rest):
        self.calls += 1
        if self.calls > 1:
            threading.Event().wait()
        return super().renew(seat, **rest)

class Unreachable(Store):
    api_version = 1

    def connect(self, *, wait):
        threading.Event().wait()

def search(power):
    began = time.thread_time()
    re.match("(a+)+$", "a" * power + "b")
    return time.thread_time() - began

def power_of(cpu_s):
    power = 12
    while search(power) < cpu_s / 64:
        power += 1
    return power + 6

class Computes(Store):
    # Holds the interpreter once the worker trains, in a regular expression that backtracks.
    api_version = 1
    held = False

    def __init__(self, settings):
        super().__init__(settings)
        self.power = power_of(cpu_s=2)

    def renew(self, seat, **rest):
        if not self.held and os.path.exists(os.environ["BEATS"]):
            self.held = True
            search(self.power)
            with open(os.environ["HELD_UNTIL"], "w") as file:
                file.write(repr(time.monotonic()))
        return super().renew(seat, **rest)

class Connects(Store):
    api_version = 1

    def connect(self, *, wait):
        raise SystemExit(9)
"""


def line_of(source, text):
    return next(number for number, line in enumerate(source.splitlines(), 1) if text in line)


@pytest.fixture
def install(tmp_path):
    """Make a distribution that brings these entry points, as pip would have; return the environment that has it."""

    def make(source, **groups):
        folder = tmp_path / "site"
        info = folder / "acme-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / "acme.py").write_text(source)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
        text = "".join(f"[elastic_core.{group}]\n" + "\n".join(names) + "\n" for group, names in groups.items())
        (info / "entry_points.txt").write_text(text)
        return {"PYTHONPATH": str(folder)}

    return make


def log_of(agent):
    (path,) = agent.runtime.glob("elastic-*/*/plugin-errors.log")
    return path


def test_a_hook_that_raises_at_each_moment_is_one_line_and_one_count(elastic, script, install):
    agent = elastic(script("pass"), env=install(HOOKS, hooks=["posts = acme:Posts"]))
    assert agent.wait() == 0
    fault = f"ConnectionError: nobody there (acme.py:{line_of(HOOKS, 'nobody there')} in post)"
    hook = "elastic: hook 'posts' (acme 1.0): "
    advice = "Try: -p no:posts, or report it to the authors of acme"
    lines = agent.err.splitlines()
    assert f"{hook}on_agent_started raised {fault}. {advice}" in lines
    assert f"{hook}{fault}; 4 more until the end" in lines
    assert sum("posts" in line for line in lines) == 2
    path = log_of(agent)
    assert f"elastic: tracebacks of plugins are in {str(path)!r}" in lines
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().count('raise ConnectionError("nobody there")') == 1


def test_with_elastic_debug_tracebacks_are_on_stderr_as_well(elastic, script, install):
    env = install(HOOKS, hooks=["posts = acme:Posts"]) | {"ELASTIC_DEBUG": "1"}
    agent = elastic(script("pass"), env=env)
    assert agent.wait() == 0
    assert agent.err.count('    raise ConnectionError("nobody there")') == 1


def test_the_end_of_a_hook_is_told_of_too(elastic, script, install):
    agent = elastic(script("pass"), env=install(HOOKS, hooks=["odd = acme:Odd"]))
    assert agent.wait() == 0
    place = f"acme.py:{line_of(HOOKS, 'closed twice')} in close"
    assert agent.err == f"elastic: hook 'odd' (acme 1.0): close raised ValueError: closed twice ({place})\n"


def test_a_hook_that_can_not_be_imported_leaves_its_traceback_too(elastic, script, install):
    source = f"{HOOKS}\nimport no_such_client\n"
    agent = elastic(script("pass"), env=install(source, hooks=["gone = acme:Odd"]))
    assert agent.wait() == 0
    place = f"acme.py:{line_of(source, 'no_such_client')}"
    assert f"raised ModuleNotFoundError: No module named 'no_such_client' ({place}). Try: " in agent.err
    assert "import no_such_client" in log_of(agent).read_text()


@pytest.mark.parametrize(
    ("name", "operation", "fault"),
    [
        ("Enlists", "enlist", "TypeError: answered int; expected a Seat"),
        ("Decodes", "members", "TypeError: Member.record: answered str; expected a bytes object"),
        ("Connects", "connect", f"SystemExit: 9 (acme.py:{line_of(STORES, 'SystemExit')} in connect)"),
    ],
)
def test_a_store_that_breaks_its_contract_is_named_with_the_call(elastic, script, install, name, operation, fault):
    env = install(STORES, rendezvous=[f"seats = acme:{name}"])
    agent = elastic("--rdzv-backend", "seats", "--nnodes", "1:2", script("pass"), env=env)
    assert agent.wait() == 4
    line = f"elastic: error: {operation} of backend 'seats' (acme 1.0) raised {fault}. Try: "
    assert f"{line}report it to the authors of acme" in agent.err


def test_a_renewal_that_raises_ends_the_round_by_name_with_its_place(elastic, script, install):
    env = install(STORES, rendezvous=["seats = acme:Renews"])
    conf = f"lease_ttl={patience(1):g},last_call_timeout=0.1"  # so that the lease of a slow agent does not run out
    path = script("import time\ntime.sleep(600)\n")
    agent = elastic("--rdzv-backend", "seats", "--rdzv-conf", conf, "--nnodes", "1:2", path, env=env)
    assert agent.wait() == 4
    place = f"acme.py:{line_of(STORES, 'return seats[')} in _seat_of"
    fault = f"renew of backend 'seats' (acme 1.0) raised KeyError: 'seat' ({place})"
    assert f"round 0 is over: {fault}" in agent.err
    assert f"rendezvous: {fault}.\n  Try: report it to the authors of acme\n" in agent.err
    assert "stood still" not in agent.err
    assert "in _seat_of" in log_of(agent).read_text()
    assert wait_for(lambda: not agent.survivors())


def test_a_renewal_that_hangs_is_named_where_the_lease_is_lost_and_given_up_in_time(elastic, script, install):
    env = install(STORES, rendezvous=["seats = acme:Hangs"])
    conf = f"lease_ttl={patience(2):g},last_call_timeout=0.1,connect_timeout=3"
    path = script("import time\ntime.sleep(600)\n")
    agent = elastic("--rdzv-backend", "seats", "--rdzv-conf", conf, "--nnodes", "1:2", path, env=env)
    assert agent.wait() == 4
    hung = r"renew of backend 'seats' \(acme 1\.0\) has not returned, \d+\.\d s past its wait"
    assert re.search(f"round 0 is over: {hung}, and this node's lease can't be kept without it", agent.err)
    told = " ".join(agent.err.split())  # the block is wrapped
    assert re.search(rf"{hung}: given up after 3 s \(--connect-timeout\)", told)
    assert "report it to the authors of acme" in told
    assert "stood still" not in agent.err
    assert wait_for(lambda: not agent.survivors())


def test_a_connect_that_hangs_ends_after_the_connect_timeout(elastic, script, install):
    env = install(STORES, rendezvous=["seats = acme:Unreachable"])
    conf = "connect_timeout=2"
    agent = elastic("--rdzv-backend", "seats", "--rdzv-conf", conf, "--nnodes", "1:2", script("pass"), env=env)
    assert agent.wait() == 4
    hung = r"connect of backend 'seats' \(acme 1\.0\) has not returned, \d+\.\d s past its wait"
    assert re.search(rf"{hung}: given up after 2 s \(--connect-timeout\)", " ".join(agent.err.split()))


def test_the_guard_keeps_the_fence_where_a_call_holds_the_interpreter(elastic, script, install, tmp_path):
    beats = tmp_path / "beats"
    env = install(STORES, rendezvous=["seats = acme:Computes"])
    env |= {"HELD_UNTIL": str(tmp_path / "held"), "BEATS": str(beats)}
    conf = "lease_ttl=1,last_call_timeout=0.1"
    path = script(
        "import os, sys, time\n"
        f"if os.path.exists({str(beats)!r}): sys.exit()\n"
        f"with open({str(beats)!r}, 'w') as file:\n"
        "    while True:\n        print(time.monotonic(), file=file, flush=True)\n        time.sleep(0.05)\n"
    )
    agent = elastic("--rdzv-backend", "seats", "--rdzv-conf", conf, "--nnodes", "1:2", path, env=env)
    assert agent.wait() == 0, agent.err
    assert "round 0 is over: this agent stood still for longer than its lease" in agent.err
    last_s = max(float(line) for line in beats.read_text().split("\n")[:-1])
    assert last_s < float((tmp_path / "held").read_text())


HANGS = """
import threading
from elastic_core.api import AgentHook, FailureHandler, Stop

class Waits(AgentHook):
    api_version = 1

    def __init__(self, settings):
        super().__init__(settings)
        threading.Event().wait()

class Policy(FailureHandler):
    api_version = 1

    def __init__(self, settings):
        threading.Event().wait()

    def decide(self, failure, history):
        return Stop(reason="never asked")
"""


def test_a_hook_that_hangs_in_its_constructor_is_left_out_and_the_run_goes_on(elastic, script, install):
    agent = elastic(script("pass"), env=install(HANGS, hooks=["waits = acme:Waits"]))
    assert agent.wait() == 0
    line = "elastic: left out: hook 'waits' (acme 1.0): building it takes longer than 5 s. Try: "
    assert agent.err.startswith(line)
    assert "-p no:waits" in agent.err


def test_a_hook_that_hangs_at_import_is_left_out_and_shown_so(elastic, script, install):
    env = install("import threading\nthreading.Event().wait()\n", hooks=["waits = acme:Waits"])
    agent = elastic(script("pass"), env=env)
    fault = "hook 'waits' (acme 1.0): importing acme:Waits takes longer than 5 s"
    shown = subprocess.run(
        [sys.executable, "-m", "elastic_core", "plugins", "-v"],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=patience(120),
        check=True,
    )
    (row,) = [line for line in shown.stdout.splitlines() if line.startswith("waits ")]
    assert fault in row
    assert agent.wait() == 0
    assert f"elastic: left out: {fault}" in agent.err


def test_a_policy_that_hangs_is_named_while_it_lasts_and_given_up_in_time(elastic, script, install):
    env = install(HANGS, failure=["waits = acme:Policy"])
    nodes = ("--nnodes", "1:2", "--rdzv-backend", "seats", "--rdzv-conf", "connect_timeout=6")
    (site := Path(env["PYTHONPATH"]) / "acme.py").write_text(f"{STORES}\n{HANGS}")
    points = site.with_name("acme-1.0.dist-info") / "entry_points.txt"
    points.write_text(points.read_text() + "[elastic_core.rendezvous]\nseats = acme:Renews\n")
    agent = elastic(*nodes, "--policy", "waits", script("pass"), env=env)
    assert agent.wait() == 3
    told, error = agent.err.splitlines()
    assert told == (
        "elastic: policy 'waits' (acme 1.0): building it has not returned after 5 s; "
        "it is given up after 6 s (--connect-timeout)"
    )
    fault = "policy 'waits' (acme 1.0): building it takes longer than 6 s (--connect-timeout)"
    assert error.startswith(f"elastic: error: {fault}. Try: ")


TORCH = """
from importlib.metadata import entry_points

for point in entry_points(group="torchrun.handlers"):  # as torch's own module does when it is imported
    try:
        point.load()()
    except Exception:
        pass
"""


def test_a_handler_for_torch_that_hangs_at_import_is_named_and_given_up(elastic, script, install, tmp_path):
    env = install("import threading\nthreading.Event().wait()\n", rendezvous=[])
    site = Path(env["PYTHONPATH"])
    (site / "acme-1.0.dist-info" / "entry_points.txt").write_text("[torchrun.handlers]\nseats = acme:handlers\n")
    (place := site / "torch/distributed/elastic/rendezvous").mkdir(parents=True)
    for parent in [site / "torch", *list(place.parents)[:2]]:
        (parent / "__init__.py").touch()
    (place / "__init__.py").write_text(TORCH)
    where = ("--rdzv-backend", "seats", "--rdzv-conf", "connect_timeout=1", "--nnodes", "1:2")
    agent = elastic(*where, script("pass"), env=env)
    assert agent.wait() == 3
    what = "importing the handlers for torch of acme 1.0 takes longer than 1 s (--connect-timeout)"
    assert agent.err.splitlines()[-1].startswith(
        f"elastic: error: rendezvous backend 'seats' (acme 1.0): {what}. Try: "
    )


THREADS = """
import json
import threading
from elastic_core.api import AgentHook

class Starts(AgentHook):
    api_version = 1

    def on_workers_started(self, event):
        for _ in range(2):
            thread = threading.Thread(target=self.work, name="acme-posts")
            thread.start()
            thread.join()
        foreign = threading.Thread(target=json.loads, args=("{",), name="nobodys")
        foreign.start()
        foreign.join()

    def work(self):
        json.loads("{")
"""


def test_what_a_plugins_own_thread_raises_is_its_plugins_and_said_once(elastic, script, install):
    agent = elastic(script("pass"), env=install(THREADS, hooks=["starts = acme:Starts"]))
    assert agent.wait() == 0
    fault = r"its thread 'acme-posts' raised JSONDecodeError: .* \(acme.py:19 in work\)"
    assert len(re.findall(rf"^elastic: hook 'starts' \(acme 1\.0\): {fault}\. Try: -p no:starts", agent.err, re.M)) == 1
    assert re.search(
        r"^elastic: hook 'starts' \(acme 1\.0\): JSONDecodeError: .*; 1 more until the end$", agent.err, re.M
    )
    log = log_of(agent).read_text()
    assert log.count("Traceback") == 1
    assert "hook 'starts' (acme 1.0): its thread 'acme-posts', thread acme-posts" in log
    # A thread in which no plugin's code has run is nobody's.
    assert agent.err.count("Traceback (most recent call last)") == 1
    assert "Exception in thread nobodys:" in agent.err
