"""`--rdzv-conf embedded=true`: an etcd of the run's own, on one machine."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from elastic_core.api import ConfigError, ElasticError, RendezvousSettings, WaitBudget
from elastic_core.api.stores import BackendRefusedError, BackendUnavailableError, WaitCancelledError, WaitExpiredError
from elastic_rdzv_etcd import EtcdServer
from elastic_rdzv_etcd.hosting import embedded
from elastic_rdzv_etcd.hosting.embedded import EmbeddedEtcd, local_endpoint
from elastic_rdzv_etcd.hosting.probe import member_names
from elastic_rdzv_etcd.hosting.program import PATH_VARIABLE, Program
from etcd_servers import binary
from patience import patience
from ports import free_port
from support import processes_with, wait_for

INCARNATION = os.urandom(16).hex()  # another in each process of the tests: a guard of one must not hunt in the others


@pytest.fixture(autouse=True)
def etcd(monkeypatch, tmp_path):
    path = binary()
    monkeypatch.delenv(PATH_VARIABLE, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(embedded, "_OTHERS_GRACE_S", 0.0)
    return path


@pytest.fixture
def make():
    made = []

    def make(endpoint="", *, v2=False, **given):
        made.append(EmbeddedEtcd(settings_of(endpoint, **given), v2=v2))
        return made[-1]

    yield make
    for one in reversed(made):
        one.close()


def settings_of(endpoint="", *, nodes=1, run_id="run", **options):
    return RendezvousSettings(
        backend="etcd",
        run_id=run_id,
        endpoint=endpoint,
        min_nodes=1,
        max_nodes=nodes,
        local_world_size=1,
        incarnation=INCARNATION,
        options={"embedded": True} | options,
    )


def budget(seconds=30.0):
    return WaitBudget.lasting(seconds)


def ensure(one):
    return one.ensure(budget())


def server_of(one):
    return next(pid for pid in one.pids() if pid in processes_with("ELASTIC_SIDECAR=1"))


def kill_server_of(one):
    pid = server_of(one)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not one._process.alive, what="its end")


def folders(where):
    return list(where.glob("elastic-etcd-*"))


def ask(where, path, body):
    data = json.dumps(body).encode()
    with urllib.request.urlopen(f"http://{where}{path}", data=data, timeout=10) as answer:
        return json.loads(answer.read())


def put(where, key, value):
    """Write a key, and then another: a server alone may lose, when it is killed, the last write of all."""
    for each in (key, "bGFzdA=="):
        ask(where, "/v3/kv/put", {"key": each, "value": value})


def get(where, key):
    return [pair["value"] for pair in ask(where, "/v3/kv/range", {"key": key}).get("kvs", [])]


# --- one agent


def test_a_lone_node_runs_one_at_any_port(make, tmp_path):
    one = make()
    assert not one.hosting
    assert one.pids() == frozenset()
    where = ensure(one)
    assert one.hosting
    host, _, port = where.partition(":")
    assert host == "127.0.0.1"
    assert port != "2379"
    assert ensure(one) == where
    put(where, "YQ==", "Yg==")
    assert get(where, "YQ==") == ["Yg=="]
    pids = one.pids()
    assert len(pids) == 2  # the server, and what keeps its folder
    assert len(folders(tmp_path)) == 1
    one.close()
    one.close()
    assert one.pids() == frozenset()
    assert not one.hosting
    assert folders(tmp_path) == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_it_is_the_agents_and_out_of_reach_of_signals_for_groups(make):
    one = make()
    ensure(one)
    server = server_of(one)
    assert server in processes_with(f"ELASTIC_INCARNATION={INCARNATION}")
    assert os.getsid(server) == server
    (keeper,) = one.pids() - {server}
    assert keeper not in processes_with(f"ELASTIC_INCARNATION={INCARNATION}")  # the guard must leave it alone
    assert os.getsid(keeper) == keeper


@pytest.mark.parametrize("endpoint", ["localhost:{}", "127.0.0.1:{}", "http://localhost:{}", "[::1]:{}", "{host}:{}"])
def test_at_a_port_of_this_machine(make, endpoint):
    port = free_port()
    assert ensure(make(endpoint.format(port, host=socket.gethostname()))) == f"127.0.0.1:{port}"


def test_port_0_is_any(make):
    assert not ensure(make("localhost:0")).endswith(":0")


def test_the_v2_api_where_it_is_asked_for(make):
    with urllib.request.urlopen(f"http://{ensure(make(v2=True))}/v2/keys/", timeout=10) as answer:
        assert json.loads(answer.read())["node"]["dir"]
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"http://{ensure(make())}/v2/keys/", timeout=10).close()


def test_an_etcd_without_the_v2_api(make, monkeypatch):
    monkeypatch.setattr(embedded, "examine", lambda path, *, wait: Program(path=path, version=(3, 6)))
    with pytest.raises(ConfigError, match=r"etcd 3\.6 .* has no v2 API. Try: --rdzv-backend etcd"):
        ensure(make(v2=True))


def test_no_etcd_here(make, monkeypatch, tmp_path):
    monkeypatch.setenv(PATH_VARIABLE, str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="is not a program that can be run"):
        ensure(make())


def test_says_why_it_can_not_start(make, monkeypatch, tmp_path):
    monkeypatch.setattr(embedded, "_FORGET", ("--nonsense",))
    one = make()
    with pytest.raises(BackendUnavailableError, match="can't be started: flag provided but not defined: -nonsense"):
        ensure(one)
    assert not one.hosting
    assert one.pids() == frozenset()
    assert folders(tmp_path) == []


def test_given_up_while_it_starts(make, monkeypatch, tmp_path):
    slow = tmp_path / "slow"
    slow.write_text('#!/bin/sh\n[ "$1" = --version ] && echo etcd Version: 3.5.1 && exit\nexec sleep 60\n')
    slow.chmod(0o755)
    monkeypatch.setenv(PATH_VARIABLE, str(slow))
    one, wait = make(), WaitBudget()
    timer = threading.Timer(0.2, wait.cancel)
    timer.start()
    with pytest.raises(WaitCancelledError):
        one.ensure(wait)
    timer.join()
    assert one.pids() == frozenset()
    assert folders(tmp_path) == []


@pytest.fixture
def slow(tmp_path, etcd):
    """An etcd that waits for a word, and that word."""
    path, go = tmp_path / "slow", tmp_path / "go"
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec {etcd} --version\n'
        f'until [ -e {go} ]; do sleep 0.02; done\nexec {etcd} "$@"\n'
    )
    path.chmod(0o755)
    return str(path), go


def test_a_start_may_take_longer_than_a_call(make, monkeypatch, slow):
    path, go = slow
    monkeypatch.setenv(PATH_VARIABLE, path)
    one = make()

    def begun():  # the version has been asked for, the folder is kept, the server has begun
        with pytest.raises(WaitExpiredError):
            one.ensure(WaitBudget.lasting(patience(0.3)))
        return one.pids() if len(one.pids()) == 2 else None

    pids = wait_for(begun, what="a server that has begun, and what keeps its folder")
    with pytest.raises(WaitExpiredError):
        one.ensure(WaitBudget.lasting(0.1))
    go.touch()
    where = ensure(one)
    put(where, "YQ==", "Yg==")
    assert one.pids() == pids
    go.unlink()
    kill_server_of(one)
    for _ in range(2):
        with pytest.raises(WaitExpiredError):
            one.ensure(WaitBudget.lasting(0.1))
    go.touch()
    assert ensure(one) == where
    assert get(where, "YQ==") == ["Yg=="]
    assert [notice.partition("; ")[2] for notice in one.notices] == ["it was started again with its data"]


def test_whose_it_is_may_be_settled_while_it_starts(make, monkeypatch, tmp_path, slow):
    path, go = slow
    endpoint = f"localhost:{free_port()}"
    late, early = make(endpoint, nodes=2), make(endpoint, nodes=2)
    monkeypatch.setenv(PATH_VARIABLE, path)
    with pytest.raises(WaitExpiredError):
        late.ensure(WaitBudget.lasting(0.3))
    monkeypatch.delenv(PATH_VARIABLE)
    ensure(early)
    go.touch()
    ensure(late)
    assert (early.hosting, late.hosting) == (True, False)
    assert len(folders(tmp_path)) == 1


# --- several agents on one machine


def test_a_second_agent_finds_it(make):
    endpoint = f"localhost:{free_port()}"
    host, guest = make(endpoint, nodes=2), make(endpoint, nodes=2)
    assert ensure(host) == ensure(guest)
    assert host.hosting
    assert not guest.hosting
    assert guest.pids() == frozenset()


def test_of_many_at_once_one_runs_it(make, tmp_path):
    port = free_port()
    ones = [make(f"localhost:{port}", nodes=4) for _ in range(4)]
    failures = []

    def run(one):
        wait = budget()
        while True:
            try:
                one.ensure(wait)
            except BackendUnavailableError:
                wait.sleep(0.05)
            except ElasticError as error:
                failures.append(error)
                return
            else:
                return

    threads = [threading.Thread(target=run, args=[one]) for one in ones]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [one.hosting for one in ones].count(True) == 1
    assert len(folders(tmp_path)) == 1


def test_a_guest_never_begins_one(make):
    endpoint = f"localhost:{free_port()}"
    host, guest = make(endpoint, nodes=2), make(endpoint, nodes=2)
    ensure(host)
    where = ensure(guest)
    host.close()
    assert ensure(guest) == where
    assert not guest.hosting


def test_who_may_not_run_one_waits_for_it(make):
    endpoint = f"localhost:{free_port()}"
    looking = make(endpoint, nodes=2, is_host=False)
    with pytest.raises(BackendUnavailableError, match="Connection refused"):
        ensure(looking)
    ensure(make(endpoint, nodes=2))
    ensure(looking)
    assert not looking.hosting
    with pytest.raises(BackendUnavailableError, match="the run's own etcd is not there"):
        ensure(make(is_host=False))


def test_another_runs_etcd_is_left_alone(make, monkeypatch):
    port = free_port()
    ensure(make(f"localhost:{port}", nodes=2, run_id="other"))
    with pytest.raises(BackendRefusedError) as caught:
        ensure(make(f"localhost:{port}", nodes=2))
    assert f"port {port} is in use by an etcd that is not this run's own" in str(caught.value)
    assert "Try: another port in --rdzv-endpoint localhost:PORT; or leave embedded=true out" in str(caught.value)
    monkeypatch.setattr(embedded, "_OTHERS_GRACE_S", 5.0)
    with pytest.raises(BackendUnavailableError, match="wait for it to end"):
        ensure(make(f"localhost:{port}", nodes=2))


def test_a_server_of_ones_own_is_left_alone(make, tmp_path):
    with (
        EtcdServer(str(tmp_path)) as server,
        pytest.raises(BackendRefusedError, match="Try: leave --rdzv-endpoint out for any free port"),
    ):
        ensure(make(server.get_endpoint()))


def test_a_stranger_at_the_port(make):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            with listener.accept()[0] as connection:
                connection.sendall(b"SSH-2.0-stranger\r\n")
                connection.recv(4096)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(BackendRefusedError, match="is in use by something that is no etcd"):
            ensure(make(f"localhost:{listener.getsockname()[1]}"))
        thread.join()


# --- its death


def test_it_is_started_again_with_its_data(make, tmp_path):
    one = make()
    where = ensure(one)
    put(where, "YQ==", "Yg==")
    kill_server_of(one)
    assert one.hosting
    assert ensure(one) == where
    assert get(where, "YQ==") == ["Yg=="]
    assert list(one.notices) == [
        f"the run's own etcd at {where} was killed by SIGKILL; it was started again with its data"
    ]
    assert len(folders(tmp_path)) == 1


def test_one_that_was_told_to_end_is_started_again(make):
    one = make()  # by who stops all processes of a unit: etcd handles SIGTERM whatever is blocked as it starts
    where = ensure(one)
    os.kill(server_of(one), signal.SIGTERM)
    wait_for(lambda: not one._process.alive, what="its end")
    assert ensure(one) == where
    assert "was killed by SIGTERM; it was started again with its data" in one.notices[0]


def test_a_guest_finds_it_again(make):
    endpoint = f"localhost:{free_port()}"
    host, guest = make(endpoint, nodes=2), make(endpoint, nodes=2)
    ensure(host)
    where = ensure(guest)
    put(where, "YQ==", "Yg==")
    kill_server_of(host)
    ensure(host)
    assert get(ensure(guest), "YQ==") == ["Yg=="]


def test_it_is_started_again_without_data_that_it_can_not_read(make, tmp_path):
    one = make()
    where = ensure(one)
    put(where, "YQ==", "Yg==")
    kill_server_of(one)
    (db,) = tmp_path.glob("elastic-etcd-*/data/member/snap/db")
    db.write_bytes(b"nonsense" * 4096)
    assert ensure(one) == where
    assert get(where, "YQ==") == []
    assert one.notices[-1].endswith("it was started again empty, for it could not go on with its data")


def test_it_is_not_started_again_for_ever(make):
    one = make()
    for _ in range(3):
        ensure(one)
        kill_server_of(one)
    with pytest.raises(BackendUnavailableError, match="died 3 times within 60 s"):
        ensure(one)
    assert one.hosting


def test_its_port_may_be_gone(make):
    one = make()
    port = int(ensure(one).rpartition(":")[2])
    kill_server_of(one)
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(BackendUnavailableError, match=rf"was killed by SIGKILL, and port {port} is in use on"):
            ensure(one)
        assert one.hosting
    assert ensure(one) == f"127.0.0.1:{port}"


OWNER = """
import signal, sys
from elastic_core.api import RendezvousSettings, WaitBudget
from elastic_rdzv_etcd.hosting.embedded import EmbeddedEtcd
one = EmbeddedEtcd(RendezvousSettings(
    backend="etcd", run_id="run", endpoint="", min_nodes=1, max_nodes=1, local_world_size=1, incarnation=sys.argv[1]))
print(one.ensure(WaitBudget()), *one.pids(), flush=True)
signal.pause()
"""


def test_it_goes_with_a_killed_owner_even_without_a_guard(tmp_path):
    argv = [sys.executable, "-c", OWNER, os.urandom(16).hex()]
    environ = dict(os.environ) | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environ) as owner:
        where, *pids = owner.stdout.readline().split()
        assert folders(tmp_path)
        owner.kill()
    wait_for(lambda: not folders(tmp_path), what="the folder's end")
    wait_for(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids), what="the processes' end")
    port = int(where.rpartition(":")[2])
    wait_for(lambda: refuses(port), what="the port's end")  # the kernel closes a process's files after its memory


def refuses(port):
    try:
        member_names(port, timeout_s=5, wait=WaitBudget())
    except BackendUnavailableError as error:
        return "Connection refused" in str(error)
    return False


# --- endpoints


@pytest.mark.parametrize(
    ("endpoint", "nodes", "place"),
    [
        ("", 1, "localhost:0"),
        ("", 2, "localhost:2379"),
        ("localhost", 1, "localhost:2379"),
        ("http://127.0.0.7:5/", 2, "127.0.0.7:5"),
        ("LOCALHOST:7", 2, "LOCALHOST:7"),
    ],
)
def test_endpoints(endpoint, nodes, place):
    assert str(local_endpoint(settings_of(endpoint, nodes=nodes))) == place


@pytest.mark.parametrize(
    ("endpoint", "nodes", "words"),
    [
        ("node7.example:2379", 2, "'node7.example' is not this one. Try: --rdzv-endpoint localhost:2379, or an etcd"),
        ("10.1.2.3", 1, "'10.1.2.3' is not this one. Try: leave --rdzv-endpoint out, or an etcd"),
        ("0.0.0.0:7", 1, "'0.0.0.0' is not this one"),
        ("localhost:0", 2, "has port 0, which other agents could not know; expected a fixed port"),
        ("localhost:1,localhost:2", 1, "has one endpoint, not several"),
        ("https://localhost", 1, "has neither users nor TLS"),
        ("http://user:secret@localhost", 1, "has neither users nor TLS"),
        ("local host", 1, "has characters that no host name has; expected HOST or HOST:PORT"),
    ],
)
def test_endpoints_that_will_not_do(endpoint, nodes, words):
    with pytest.raises(ConfigError) as caught:
        EmbeddedEtcd(settings_of(endpoint, nodes=nodes))
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_torchs_protocol_https():
    with pytest.raises(ConfigError, match="has neither users nor TLS"):
        EmbeddedEtcd(settings_of("localhost", protocol="https"))


def test_a_port_that_may_not_be_bound(make, monkeypatch):
    def refuse(self, address):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(embedded.socket.socket, "bind", refuse)
    with pytest.raises(BackendRefusedError, match=r"port 79 of the run's own etcd can't be bound .*Permission denied"):
        ensure(make("localhost:79"))
