"""The checks of `elastic doctor`, each with what would make it warn or fail, and how they are run together."""

import json
import os
import resource
import socket
import threading
from collections import namedtuple
from types import SimpleNamespace

import pytest

from elastic_core.api.commands import StoreChoice
from elastic_core.api.stores import CONTROL_KEY, BackendUnavailableError, Member, Survey
from elastic_core.api.workers import NvidiaGpus
from elastic_core.cli.main import main
from elastic_doctor import Asked, Finding, Level, checks, host, network, software, variables
from patience import patience
from ports import free_ports
from terminal_kit import CODE, GREEN, OFF, RED

STORE = StoreChoice(backend="redis", endpoint="redis.example:6379", run_id="bert", conf={})
GIB = 1 << 30


def only(found):
    (finding,) = found
    return finding


def levels(found):
    return [finding.level.value for finding in found]


# --- the host


@pytest.mark.parametrize(
    ("limits", "level", "remedy"),
    [
        ((100, 100), "fail", "a higher hard limit than 100"),
        ((1024, 524288), "warn", "ulimit -n 65536"),
        ((1024, 5000), "warn", "ulimit -n 5000"),
        ((1024, -1), "warn", "ulimit -n 4096"),
        ((65536, 65536), "ok", ""),
        ((-1, -1), "ok", ""),
    ],
)
def test_open_files(monkeypatch, limits, level, remedy):
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    finding = only(host.open_files(Asked()))
    assert (finding.level, finding.remedy.startswith(remedy), bool(finding.remedy)) == (level, True, bool(remedy))


def test_processes_of_a_container(monkeypatch, tmp_path):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (-1, -1))
    folder = tmp_path / "pod"
    folder.mkdir()
    own = tmp_path / "cgroup"
    own.write_text("1:cpu:/x\n0::/pod\n")
    (folder / "pids.current").write_text("90\n")
    for most, expected in (("max", ["ok"]), ("100000", ["ok"]), ("512", ["ok", "warn"])):
        (folder / "pids.max").write_text(f"{most}\n")
        found = list(host.processes(Asked(), cgroup=tmp_path, own=own))
        assert levels(found) == expected
    assert found[1].what == "this container may have 512 processes and threads, and has 90"
    assert levels(host.processes(Asked(), own=tmp_path / "none")) == ["ok"]


Space = namedtuple("Space", "f_blocks f_bavail f_frsize f_files f_favail")


@pytest.mark.parametrize(
    ("size", "free", "level", "word"),
    [
        (1 << 26, 1 << 26, "warn", "SIGBUS"),
        (8 * GIB, GIB // 2, "warn", "512 MiB of 8 GiB free"),
        (8 * GIB, 8 * GIB, "ok", "8 GiB of 8 GiB free"),
    ],
)
def test_shared_memory(monkeypatch, size, free, level, word):
    monkeypatch.setattr(os, "statvfs", lambda place: Space(size // 4096, free // 4096, 4096, 0, 0))
    finding = only(host.shared_memory(Asked()))
    assert (finding.level, word in finding.what) == (level, True)


def test_no_shared_memory(tmp_path):
    assert only(host.shared_memory(Asked(), place=tmp_path / "none")).level == "warn"


@pytest.mark.parametrize(
    ("free", "inodes", "level"),
    [(GIB * 50, 10**6, "ok"), (GIB, 10**6, "warn"), (1 << 20, 10**6, "fail"), (GIB * 50, 9, "warn")],
)
def test_disks_are_judged_where_they_will_be(monkeypatch, tmp_path, free, inodes, level):
    monkeypatch.setattr(os, "statvfs", lambda place: Space(free // 4096, free // 4096, 4096, 10**7, inodes))
    wanted = tmp_path / "not" / "made" / "yet"
    found = list(host.disks(Asked(log_dir=str(wanted), run_dir=str(tmp_path))))
    assert [(each.check, each.level) for each in found] == [("run directory", level), ("log directory", level)]
    assert not wanted.parent.parent.exists()  # nothing was made
    assert repr(str(wanted)) in found[1].what


def test_a_place_that_can_not_be_written_fails(tmp_path):
    file = tmp_path / "file"
    file.touch()
    finding = only(host.disks(Asked(run_dir=str(file))))
    assert (finding.level, "can't be written" in finding.what) == ("fail", True)


def test_fewer_processors_than_workers(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert only(host.processors(Asked(worker_count=2))).level == "ok"
    assert only(host.processors(Asked(worker_count=3))).what == "2 for this process, 3 workers"


# --- software and GPUs


def with_torch(monkeypatch, tmp_path, text):
    (tmp_path / "version.py").write_text(text)
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(software, "find_spec", lambda name: spec)


def test_torch_is_read_and_not_imported(monkeypatch, tmp_path):
    with_torch(
        monkeypatch, tmp_path, "raise RuntimeError\n__version__ = '2.14.0+cu130'\ncuda: Optional[str] = '13.0'\n"
    )
    monkeypatch.setattr(software, "nvidia_gpus", lambda **_: NvidiaGpus(count=8))
    first, second = software.torch(Asked())
    assert (first.level, first.what, second.check) == ("ok", "2.14.0+cu130, for CUDA 13.0", "nccl")


def test_torch_that_can_not_use_the_gpus_fails(monkeypatch, tmp_path):
    with_torch(monkeypatch, tmp_path, "__version__ = '2.14.0+cpu'\ncuda: Optional[str] = None\n")
    monkeypatch.setattr(software, "nvidia_gpus", lambda **_: NvidiaGpus(count=8))
    assert only(software.torch(Asked())).what == "2.14.0+cpu, for processors only: it can't use 8 GPUs"
    monkeypatch.setattr(software, "nvidia_gpus", lambda **_: NvidiaGpus(count=0))
    assert only(software.torch(Asked())).level == "ok"
    with_torch(monkeypatch, tmp_path, "__version__ = '2.12.1+cpu'\ncuda: Optional[str] = None\n")
    older = only(software.torch(Asked()))
    assert (older.level, older.remedy) == ("warn", "pip install 'torch>=2.13,<2.16'")
    assert older.what.startswith("2.12.1+cpu, for processors only; expected 2.13 to 2.15")
    monkeypatch.setattr(software, "find_spec", lambda name: None)
    assert only(software.torch(Asked())).level == "warn"


def entry(distribution, version, group="elastic_core.hooks", name="x", value="m:f"):
    label = f"{distribution} {version}"
    return SimpleNamespace(group=group, name=name, value=value, distribution=distribution, version=version, label=label)


def test_distributions_of_two_versions_warn(monkeypatch):
    entries = [entry("elastic-core", "0.2.0"), entry("elastic-ops", "0.2.0"), entry("acme", "7")]
    monkeypatch.setattr(software, "find_entries", lambda prefix: entries)
    assert only(software.plugins(Asked())).what == "elastic-core 0.2.0, with ops; acme 7"
    entries.append(entry("elastic-watch", "0.1.0"))
    assert only(software.plugins(Asked())).what == "elastic-core 0.2.0 beside elastic-watch 0.1.0"


@pytest.mark.parametrize(
    ("count", "visible", "workers", "level", "what"),
    [
        (None, None, None, "warn", "there are devices, and the driver's library does not answer"),
        (0, None, 4, "ok", "none"),
        (8, None, 8, "ok", "8"),
        (8, None, 9, "warn", "8, 9 workers"),
        (8, "0,1", 2, "ok", "2 of 8 visible (CUDA_VISIBLE_DEVICES='0,1')"),
        (8, "0,1,9,2", None, "ok", "2 of 8 visible (CUDA_VISIBLE_DEVICES='0,1,9,2')"),
        (8, "", None, "fail", "0 of 8 visible (CUDA_VISIBLE_DEVICES='')"),
    ],
)
def test_gpus(monkeypatch, count, visible, workers, level, what):
    monkeypatch.setattr(software, "nvidia_gpus", lambda **_: NvidiaGpus(count=count))
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    finding = only(software.gpus(Asked(environ=environ, worker_count=workers)))
    assert (finding.level, finding.what) == (level, what)


# --- variables


def test_variables_of_no_option_and_without_a_value_warn():
    environ = {"PET_NNODE": "2", "PET_RDZV_ID": " ", "PET_NPROC_PER_NODE": "8", "HOME": "/"}
    found = list(variables.run_variables(Asked(environ=environ)))
    assert [(each.what.split()[0], each.remedy) for each in found] == [
        ("PET_NNODE", "PET_NNODES"),
        ("PET_RDZV_ID", "a value, or unset PET_RDZV_ID"),
    ]
    assert only(variables.run_variables(Asked(environ={"PET_NNODES": "2", "PET_METRICS_PORT": "0"}))).level == "ok"
    assert list(variables.run_variables(Asked(environ={}))) == []


def test_what_an_earlier_launch_has_left_warns():
    environ = {"MASTER_ADDR": "node0", "RANK": "3", "CUDA_LAUNCH_BLOCKING": "1"}
    place, slow = variables.left_over(Asked(environ=environ))
    assert (place.what, slow.level) == ("left over: RANK=3, MASTER_ADDR=node0", "warn")
    assert levels(variables.left_over(Asked(environ={**environ, "TORCHELASTIC_RUN_ID": "r"}))) == ["warn"]


@pytest.mark.parametrize(
    ("variable", "text", "level"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", "ok"),
        ("NCCL_SOCKET_IFNAME", "ib0,eth1", "fail"),
        ("NCCL_SOCKET_IFNAME", "=eth", "fail"),
        ("NCCL_SOCKET_IFNAME", "=eth0", "ok"),
        ("NCCL_SOCKET_IFNAME", "^lo", "ok"),
        ("NCCL_SOCKET_IFNAME", "^lo,eth", "fail"),
        ("GLOO_SOCKET_IFNAME", "eth", "fail"),
        ("GLOO_SOCKET_IFNAME", "ib0,eth0", "ok"),
        ("UCX_NET_DEVICES", "all", "ok"),
    ],
)
def test_interfaces_that_are_not_there_fail(monkeypatch, variable, text, level):
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    assert only(variables.interfaces(Asked(environ={variable: text}))).level == level


# --- the network


class Store:
    """A store that answers, or does not."""

    where = "redis at redis.example:6379"

    def __init__(self, error=None, *, hosted=False, **found):
        self.hosted_by_member, self._error, self._found = hosted, error, {"members": (), **found}

    def connect(self, *, wait):
        if self._error is not None:
            raise self._error

    def survey(self, keys, *, wait):
        return Survey(**self._found)

    def close(self):
        pass


class Clock:
    """Each look at it takes 1.2 ms."""

    now_s = 0.0

    def monotonic_s(self):
        self.now_s += 0.0012
        return self.now_s


AWAY = BackendUnavailableError("redis at redis.example:6379: connection refused", hint="is it up?")
HERE = "redis at redis.example:6379 answers within 2 ms; run 'bert'"
MEMBERS = tuple(Member(incarnation=each, seat=seat, record=b"") for seat, each in enumerate(("a", "b", "c")))


@pytest.mark.parametrize(
    ("store", "level", "what"),
    [
        (Store(), "ok", f"{HERE} is not there"),
        (Store(members=MEMBERS, silent=frozenset({"b"})), "ok", f"{HERE} has 2 live nodes"),
        (Store(members=MEMBERS, documents={CONTROL_KEY: b'{"verdict":null}'}), "ok", f"{HERE} has 3 live nodes"),
        (Store(documents={CONTROL_KEY: b'{"v":9,"verdict":{"outcome":"done"}}'}), "ok", f"{HERE} has ended"),
        (Store(AWAY), "fail", AWAY.what),
        (
            Store(AWAY, hosted=True),
            "ok",
            f"{AWAY.what}: as long as no node of the run has begun, that is right",
        ),
    ],
)
def test_endpoint(monkeypatch, store, level, what):
    monkeypatch.setattr(network, "open_store", lambda choice: store)
    monkeypatch.setattr(network, "SYSTEM_CLOCK", Clock())
    finding = only(network.endpoint(Asked(store=STORE)))
    assert (finding.level, finding.what) == (level, what)


def test_a_port_that_another_run_has_fails_unless_nodes_meet_there(monkeypatch):
    taken = BackendUnavailableError("c10d at h:1: port 1 is in use by another run")
    monkeypatch.setattr(network, "open_store", lambda choice: Store(taken, hosted=True))
    assert only(network.endpoint(Asked(store=STORE))).level == "fail"
    assert list(network.endpoint(Asked(store=STORE, node_count=2))) == []


def test_an_endpoint_on_the_loopback_warns(monkeypatch):
    monkeypatch.setattr(network, "route_source", lambda address: "10.0.0.7")
    local = StoreChoice(backend="redis", endpoint="redis://u:secret@127.0.0.1:6379/0", run_id="r", conf={})
    assert only(network.address(Asked(store=local))).level == "warn"
    far = StoreChoice(backend="redis", endpoint="10.0.0.9:6379", run_id="r", conf={})
    assert only(network.address(Asked(store=far))).what == "10.0.0.7, by the way to the endpoint"
    monkeypatch.setattr(network, "route_source", lambda address: "")
    assert only(network.address(Asked(store=far))).level == "warn"


def test_a_host_name_that_leads_to_the_loopback_warns(monkeypatch):
    def resolves(*addresses):
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", (each, 0)) for each in addresses])

    resolves("127.0.1.1")
    assert only(network.host_name(Asked(store=STORE))).level == "warn"
    resolves("127.0.1.1", "10.0.0.7")
    assert only(network.host_name(Asked(store=STORE))).level == "ok"
    assert list(network.host_name(Asked())) == []


@pytest.mark.parametrize(
    ("took_s", "lookups", "found"),
    [([0.001] * 100, 100, []), ([0.001, 5.0], 2, ["warn"]), ([0.15] * 7, 7, [])],
    ids=["found at once", "a lost query", "slow, and no longer than a second in all"],
)
def test_a_name_server_that_loses_queries_warns(monkeypatch, took_s, lookups, found):
    now, asked = [0.0], []

    def look_up(address, flags):
        asked.append(address[0])
        now[0] += took_s[len(asked) - 1]

    monkeypatch.setattr(network, "SYSTEM_CLOCK", SimpleNamespace(monotonic_s=lambda: now[0]))
    monkeypatch.setattr(socket, "getnameinfo", look_up)
    assert levels(network.client_names(Asked())) == found
    assert asked == ["::ffff:127.0.0.1"] * lookups


def test_ports_that_are_taken_fail():
    agent_port, master_port = free_ports(2)
    taken = Asked(agent_port=agent_port, master_port=master_port)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, socket.create_server(("", master_port)):
        udp.bind(("", agent_port))
        assert levels(network.ports(taken)) == ["fail", "fail"]
    assert levels(network.ports(taken)) == ["ok", "ok"]
    assert list(network.ports(Asked())) == []


# --- together


def test_a_check_that_hangs_or_raises_is_a_finding_and_keeps_nobody():
    never = threading.Event()

    def hangs(asked):
        never.wait()
        return []

    def raises(asked):
        raise ZeroDivisionError("by 0")

    def works(asked):
        yield Finding(check="disk", level=Level.OK, what="fine")

    limit_s = patience(0.4)  # in which the others run, on a busy machine too
    found = checks.examine(Asked(), {"mount": hangs, "sum": raises, "disk": works}, limit_s=limit_s)
    never.set()
    assert [(each.check, each.level.value) for each in found] == [("mount", "fail"), ("sum", "warn"), ("disk", "ok")]
    assert found[0].what == f"no answer within {limit_s:g} s"
    assert "ZeroDivisionError: by 0" in found[1].what


def test_checks_of_distributions_are_taken_by_entry_points(monkeypatch):
    entries = [entry("acme", "7", checks.CHECKS_GROUP, name, f"acme:{name}") for name in ("raid", "wrong")]
    monkeypatch.setattr(checks, "find_entries", lambda group: entries)
    monkeypatch.setattr(checks, "import_entry", lambda each: (lambda asked: []) if each.name == "raid" else 7)
    found, broken = checks.installed_checks()
    assert list(found) == ["raid"]
    assert [each.what for each in broken] == ["acme:wrong (acme 7) is no function"]


@pytest.fixture
def two_checks(monkeypatch):
    def own(asked):
        yield Finding(check="disk", level=Level.OK, what="fine")
        yield Finding(check="files", level=Level.FAIL, what="few\nof \x1b[31mthem", remedy="more")

    monkeypatch.setattr("elastic_doctor.command.OWN", {"own": own})
    monkeypatch.setattr("elastic_doctor.command.installed_checks", lambda: ({}, []))


def test_each_finding_is_a_line_and_a_failure_is_the_code(two_checks, capsys):
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ok    disk   fine"
    assert lines[1].startswith("fail  files  few of ")
    assert "\x1b" not in lines[1]
    assert lines[2].endswith(": 1 fail, 0 warn, 1 ok")
    assert main(["doctor", "--quiet"]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_levels_have_colours_on_request_and_json_has_none(two_checks, capsys, monkeypatch):
    main(["doctor"])
    plain = capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    main(["doctor"])
    coloured = capsys.readouterr().out
    assert CODE.sub("", coloured) == plain
    assert "\x1b" not in plain
    assert f"\n{RED}fail{OFF}  files  few of ?[31mthem. Try: more\n" in coloured
    assert f"\n{GREEN}ok{OFF}    " in f"\n{coloured}"
    assert f": {RED}1 fail{OFF}, 0 warn, {GREEN}1 ok{OFF}\n" in coloured
    main(["doctor", "--json"])
    assert "\x1b" not in capsys.readouterr().out


def test_json(two_checks, capsys):
    assert main(["doctor", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["schema_version"], document["failed"]) == (1, True)
    (node,) = document["nodes"]
    assert node["findings"][0] == {"check": "disk", "level": "ok", "what": "fine", "remedy": ""}


def test_the_real_checks_end_on_this_machine(capsys):
    assert main(["doctor", "--json"]) in (0, 1)
    (node,) = json.loads(capsys.readouterr().out)["nodes"]
    assert {"python", "torch", "open files", "/dev/shm", "run directory"} <= {
        each["check"] for each in node["findings"]
    }
