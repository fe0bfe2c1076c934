"""What was written for the first release goes on working: plugins of every kind, in a wheel that nobody edits."""

import base64
import copy
import csv
import fcntl
import hashlib
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import api_shape
from chaos.multi_node import LEASE_S, Run
from elastic_core.api import HookSettings, PolicySettings
from elastic_plugin_kit import (
    AgentHookConformance,
    CoordinationStoreConformance,
    FailureHandlerConformance,
    RendezvousConformance,
    rendezvous_settings,
)
from ports import free_port

FROZEN = Path(__file__).parent / "frozen"
WHEEL = "elastic_frozen-1.0.0-py3-none-any.whl"
RECORD = "elastic_frozen-1.0.0.dist-info/RECORD"
RECORD_SHA256 = "6f836a47999e6896ca29dcd19ec2b1842cc67f320a038b0209dad275fa24dc7c"
LIST_SHA256 = "38f26b0061f6fd7a978f683381246c525be721ee764994a1b019653ccf071b2a"
WHEN = (2026, 1, 1, 0, 0, 0)


def wheel_files():
    """Return the wheel's files and their content in order; its RECORD, last, has the checksums of all others."""
    names = sorted(str(path.relative_to(FROZEN)) for path in FROZEN.glob("elastic_frozen*/*") if path.is_file())
    files = {name: (FROZEN / name).read_bytes() for name in names}
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.writerow([name, f"sha256={digest}", len(content)])
    rows.writerow([RECORD, "", ""])
    return files | {RECORD: record.getvalue().encode()}


def wheel():
    """Return the wheel."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, content in wheel_files().items():
            archive.writestr(zipfile.ZipInfo(name, WHEN), content)
    return packed.getvalue()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return a folder into which pip has installed the wheel."""
    folder = tmp_path_factory.mktemp("frozen")
    (folder / WHEEL).write_bytes(wheel())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-index", "--no-deps"]
    target = folder / "site"
    subprocess.run([*pip, "--target", target, folder / WHEEL], check=True, stdin=subprocess.DEVNULL, timeout=60)
    return target


@pytest.fixture
def frozen(site, monkeypatch):
    """Let agents find the plugins, and return what imports a name of theirs."""
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.syspath_prepend(str(site))

    def load(path):
        module, _, name = path.partition(":")
        return getattr(importlib.import_module(f"elastic_frozen.{module}"), name)

    yield load
    for name in [name for name in sys.modules if name.partition(".")[0] == "elastic_frozen"]:
        del sys.modules[name]


# --- nobody edits it


def test_the_wheel_is_what_it_was():
    recorded = hashlib.sha256(wheel_files()[RECORD]).hexdigest()
    assert recorded == RECORD_SHA256, (FROZEN / "README.md").read_text()


def test_the_list_is_what_it_was():
    listed = hashlib.sha256((FROZEN / "api_1.json").read_bytes()).hexdigest()
    assert listed == LIST_SHA256, (FROZEN / "README.md").read_text()


# --- the API still has what it had

LIST = json.loads((FROZEN / "api_1.json").read_text())


def test_everything_that_version_1_had_is_there():
    assert api_shape.broken(LIST, api_shape.shape()) == []


def later(change):
    """Return the list after a change of it."""
    changed = copy.deepcopy(LIST)
    change(changed["elastic_core.api"])
    return changed


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda api: api.pop("Seat"), "Seat is gone"),
        (lambda api: api.update(compare={"kind": "value"}), "compare was a function and is a value"),
        (lambda api: api["Failure"]["fields"].remove("message="), "Failure has lost message"),
        (lambda api: api["Failure"]["fields"].append("cost"), "Failure now demands cost"),
        (lambda api: api["Seat"]["fields"].__setitem__(0, "n"), "Seat has lost number"),
        (lambda api: api["FailureClass"]["members"].pop("HANG"), "FailureClass has lost HANG"),
        (lambda api: api["FailureClass"]["members"].update(HANG="hung"), "HANG was 'hang' and is 'hung'"),
        (lambda api: api["Decision"]["of"].remove("Ignore"), "Decision has lost Ignore"),
        (lambda api: api["WaitExpiredError"].update(bases=[]), "WaitExpiredError has lost ElasticError"),
        (lambda api: api["CoordinationStore"]["abstract"].append("ping"), "CoordinationStore demands ping"),
        (lambda api: api["CoordinationStore"]["methods"]["load"].append("*fresh="), "takes (key, *wait, *fresh=)"),
        (lambda api: api["AgentHook"]["methods"].pop("on_drain"), "AgentHook.on_drain is gone"),
        (lambda api: api["WaitBudget"]["methods"].update(sleep=["seconds", "why"]), "sleep() now demands why"),
        (lambda api: api["WaitBudget"]["methods"].update(sleep=["*seconds"]), "takes seconds by keyword only"),
        (lambda api: api["compare"].update(takes=["since", "now"]), "compare() has lost topics"),
    ],
)
def test_what_breaks_a_plugin_is_told(change, told):
    (line,) = [line for line in api_shape.broken(LIST, later(change)) if told in line]
    assert line.startswith("elastic_core.api.")


@pytest.mark.parametrize(
    "change",
    [
        lambda api: api.update(Later={"kind": "value"}),
        lambda api: api["Failure"]["fields"].insert(0, "cost="),
        lambda api: api["FailureClass"]["members"].update(BORED="bored"),
        lambda api: api["CoordinationStore"]["methods"].update(ping=["*wait"]),
        lambda api: api["WaitBudget"]["methods"]["sleep"].append("*why="),
    ],
)
def test_growing_breaks_nothing(change):
    assert api_shape.broken(LIST, later(change)) == []


# --- runs


def test_all_are_loaded_without_a_word(elastic, frozen):
    listed = subprocess.run(
        [sys.executable, "-m", "elastic_core", "plugins", "--json"],
        check=True, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert listed.stderr == ""
    found = {(p["kind"], p["name"]): p["status"] for p in json.loads(listed.stdout) if p["name"].startswith("frozen")}
    assert found == {
        ("rendezvous backend", "frozen-handler"): "loaded",
        ("rendezvous backend", "frozen-module"): "loaded",
        ("rendezvous backend", "frozen-store"): "loaded",
        ("policy", "frozen"): "loaded",
        ("policy", "frozen-module"): "loaded",
        ("hook", "frozen"): "loaded",
        ("hook", "frozen-module"): "loaded",
    }


SCRIPT = """
import os, sys
names = "RANK", "WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "FROZEN_MODULE"
os.write(1, " ".join(os.environ[name] for name in names).encode() + b"\\n")
assert os.path.exists(os.environ["FROZEN_DIARY"])
if os.environ["RANK"] == "0" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise KeyError("lost")
"""


@pytest.mark.parametrize(("backend", "policy"), [("frozen-handler", "frozen"), ("frozen-module", "frozen-module")])
def test_two_nodes_run_with_handler_policy_and_hooks(elastic, frozen, script, tmp_path, backend, policy):
    """Node 0 fails once; its policy restarts it; the hooks of both see it all."""
    path, port, agents = script(SCRIPT), free_port(), []
    for place in (0, 1):
        conf = f"nodes=2,place={place},port={port},named=true,address=127.0.0.1"
        line = ["--nnodes", "2", "--rdzv-backend", backend, "--rdzv-conf", conf, "--run-dir", tmp_path / f"run{place}"]
        policies = ["--policy", policy, "--policy-conf", "first_delay=0.1", "--max-restarts", "2"]
        agents.append(elastic("--rdzv-id", "frozen", *line, *policies, path))
    assert [agent.wait(30) for agent in agents] == [0, 0], [agent.err for agent in agents]
    said = sorted(line for agent in agents for line in agent.out.splitlines())
    assert said == [f"0 2 {port} 0 round 0", f"0 2 {port} 1 round 1", f"1 2 {port} 0 round 0"]
    diary = (tmp_path / "run0/frozen.txt").read_text()
    for line in (
        "agent started: run frozen node",
        "round 0 (1, frozen-1): node 0 of 2, 1 workers from 0 of 2, default 0 of 2, 127.0.0.1:",
        "failure of",
        "user exception: KeyError: 'lost'",
        "worker 0: intrinsic KeyError",
        f"{policy} decided Restart",
        "joining round 1",
        "agent stopped: 0",
    ):
        assert line in diary, diary
    assert agents[1].err == ""


def test_the_policy_ends_a_run_well(elastic, frozen, script):
    agent = elastic("--policy", "frozen", script("class EnoughError(Exception): pass\nraise EnoughError('done')\n"))
    assert agent.wait(30) == 0, agent.err


def test_nodes_meet_in_the_store_come_and_are_killed(elastic, frozen, tmp_path):
    (tmp_path / "directory").mkdir()
    run = Run(elastic, tmp_path, endpoint=str(tmp_path / "directory"))
    run.backend = "frozen-store"
    a = run.node("a", "1:2", "--run-dir", str(tmp_path / "kept"), conf="poll=0.05")
    a.said(world=1)
    b = run.node("b", "1:2", conf="poll=0.05")
    a.said(world=2)
    b.said(world=2)
    b.kill_agent()
    a.said(world=1, gen=2, within_s=LEASE_S)
    run.all_end(a)
    diary = (tmp_path / "kept/frozen.txt").read_text()
    assert "membership of round 0: RoundEnded" in diary
    assert "agent stopped: 0" in diary


# --- the kits of today


class TestHandler(RendezvousConformance):
    @pytest.fixture
    def make_handler(self, frozen):
        cls = frozen("handler:PlacedRendezvous")

        def make(*, run_id, node_rank, min_nodes, max_nodes):
            options = {"nodes": max_nodes if min_nodes == max_nodes else min_nodes, "place": node_rank}
            return cls(
                rendezvous_settings(
                    run_id=run_id,
                    backend="frozen-handler",
                    declared=cls.options,
                    options=options,
                    min_nodes=min_nodes,
                    max_nodes=max_nodes,
                )
            )

        return make


class TestStore(CoordinationStoreConformance):
    @pytest.fixture
    def connect(self, frozen, tmp_path):
        cls, self.folder = frozen("store:DirectoryStore"), tmp_path
        return lambda run_id: cls(
            rendezvous_settings(run_id=run_id, endpoint=str(tmp_path), declared=cls.options, options={"poll": 0.02})
        )

    @pytest.fixture
    def pause_server(self, tmp_path):
        @contextmanager
        def locked():
            with ExitStack() as stack:
                for path in tmp_path.glob("*/lock"):
                    fcntl.flock(stack.enter_context(path.open("ab")), fcntl.LOCK_EX)
                yield

        return locked

    @pytest.fixture
    def empty_server(self, tmp_path):
        return lambda: [shutil.rmtree(path) for path in tmp_path.iterdir()]

    @pytest.fixture
    def connect_nowhere(self, connect, frozen, tmp_path):
        cls = frozen("store:DirectoryStore")
        return lambda: cls(rendezvous_settings(run_id="r", endpoint=str(tmp_path / "gone"), declared=cls.options))

    def pass_time(self, seconds):
        for lock in self.folder.glob("*/lock"):
            at_s = lock.stat().st_mtime - seconds
            os.utime(lock, (at_s, at_s))
        for path in self.folder.glob("*/content.json"):
            content = json.loads(path.read_bytes())
            content["ends_s"] = {name: end_s - seconds for name, end_s in content["ends_s"].items()}
            content["heard_s"] -= seconds
            path.write_text(json.dumps(content))


class TestPolicy(FailureHandlerConformance):
    @pytest.fixture
    def make_policy(self, frozen):
        cls = frozen("policy:Careful")
        options = {spec.name: spec.default for spec in cls.options}
        return lambda max_restarts: cls(PolicySettings(name="frozen", max_restarts=max_restarts, options=options))


class TestHook(AgentHookConformance):
    @pytest.fixture
    def make_hook(self, frozen):
        cls = frozen("hook:Diary")
        return lambda run_dir: cls(HookSettings(name="frozen", run_id="r", run_dir=run_dir))
