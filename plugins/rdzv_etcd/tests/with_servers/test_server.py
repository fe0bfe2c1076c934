"""`EtcdServer`, which starts a private etcd for tests and tools, and the program that it runs."""

import os
import pickle
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from elastic_core.api import ConfigError, ElasticError, WaitBudget
from elastic_core.api.stores import BackendUnavailableError
from elastic_rdzv_etcd import EtcdServer
from elastic_rdzv_etcd.errors import EtcdServerError
from elastic_rdzv_etcd.hosting import process, server
from elastic_rdzv_etcd.hosting.probe import member_names
from elastic_rdzv_etcd.hosting.program import PATH_VARIABLE, examine
from etcd_program_kit import pretend
from etcd_servers import binary
from support import processes_with, wait_for


@pytest.fixture(autouse=True)
def etcd(monkeypatch, tmp_path):
    path = binary()
    monkeypatch.delenv(PATH_VARIABLE, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return path


@pytest.fixture
def start():
    started = []

    def start(*args, **given):
        started.append(EtcdServer(*args))
        started[-1].start(**given)
        return started[-1]

    yield start
    for made in started:
        made.stop()


def folders(where):
    return list(where.glob("elastic-etcd-*"))


# --- torch's surface


def test_serves_both_apis_until_it_is_stopped(start, tmp_path):
    made = start()
    host, port = made.get_host(), made.get_port()
    assert made.get_endpoint() == f"{host}:{port}"
    assert host == "127.0.0.1"
    assert made.alive
    assert len(member_names(port, timeout_s=5, wait=WaitBudget())) == 1
    (folder,) = folders(tmp_path)
    assert folder.stat().st_mode & 0o777 == 0o700
    made.stop()
    made.stop()
    assert not made.alive
    assert folders(tmp_path) == []
    assert made.get_endpoint() == f"{host}:{port}"  # as with torch's: for log lines, say
    with pytest.raises(ElasticError, match=r"this EtcdServer is not running. Try: start\(\)"):
        made.get_client()
    with pytest.raises(BackendUnavailableError, match="Connection refused"):
        member_names(port, timeout_s=5, wait=WaitBudget())


def test_gives_a_client_of_the_v2_api(start):
    pytest.importorskip("etcd", reason="python-etcd is an extra")
    client = start().get_client()
    client.write("/test/key", "value", ttl=30)
    assert client.read("/test/key").value == "value"


def test_says_what_a_client_of_the_v2_api_needs(start, monkeypatch):
    made = start()
    monkeypatch.setitem(sys.modules, "etcd", None)
    with pytest.raises(ConfigError, match=r"python-etcd.*Try: pip install 'python-etcd>="):
        made.get_client()


def test_an_etcd_without_the_v2_api_is_told(start, monkeypatch):
    made = start()
    monkeypatch.setattr(made, "_program", made._program._replace(version=(3, 6)))
    with pytest.raises(ConfigError, match=r"etcd 3\.6 .* has no v2 API"):
        made.get_client()


def test_is_a_context(tmp_path):
    with EtcdServer() as made:
        assert made.alive
    assert not made.alive
    assert folders(tmp_path) == []


def test_a_given_directory_stays(start, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "mine").write_text("")
    made = start(str(own))
    assert len(folders(own)) == 1
    made.stop()
    assert [path.name for path in own.iterdir()] == ["mine"]


def test_knows_its_place_as_torchs_before_it_runs():
    made = EtcdServer()
    assert (made.get_host(), made.get_port(), made.get_endpoint()) == ("127.0.0.1", -1, "127.0.0.1:-1")


def test_starts_once_and_again(start, tmp_path):
    made = start()
    before = made.get_endpoint()
    made.start()
    assert made.get_endpoint() == before
    made.stop()
    made.start()
    assert made.alive
    assert len(folders(tmp_path)) == 1


def test_two_at_once(start):
    assert start().get_endpoint() != start().get_endpoint()


def test_listens_on_loopback_alone_and_on_no_usual_port(start):
    made = start()
    (pid,) = made._process.pids()
    listening = {(address, port) for address, port in sockets_of(pid)}
    assert ("127.0.0.1", made.get_port()) in listening
    assert {address for address, _ in listening} == {"127.0.0.1"}
    assert not {2379, 2380} & {port for _, port in listening}


def sockets_of(pid):
    """Give the IPv4 and IPv6 addresses and ports that a process listens on."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            target = os.readlink(entry)
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    for kind in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, _, port = fields[1].partition(":")
                ip = socket.inet_ntop(socket.AF_INET, bytes.fromhex(address)[::-1]) if kind == "tcp" else address
                yield ip, int(port, 16)


def test_its_words_go_where_they_are_wanted(start, tmp_path):
    with (tmp_path / "words").open("w") as words:
        made = start(stderr=words)
        (pid,) = made._process.pids()
        assert os.readlink(f"/proc/{pid}/fd/2") == str(tmp_path / "words")
    quiet = start(stderr=subprocess.DEVNULL)
    (pid,) = quiet._process.pids()
    assert os.readlink(f"/proc/{pid}/fd/2").endswith("/etcd.log")
    unread = start(stderr=subprocess.PIPE)  # torch takes it, too
    (pid,) = unread._process.pids()
    assert os.readlink(f"/proc/{pid}/fd/2").endswith("/etcd.log")
    with pytest.raises(ConfigError, match="stderr=-2 is no file"):
        start(stderr=subprocess.STDOUT)


# --- what goes wrong


def test_ports_that_somebody_takes_are_left_to_them(start, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = [taken.getsockname()[1], taken.getsockname()[1], process.free_port()]
        monkeypatch.setattr(server, "free_port", lambda: ports.pop(0))
        made = start(num_retries=1)
    assert ports == []
    assert made.alive


def test_another_etcd_at_the_port_is_not_taken_for_ours(start, monkeypatch):
    first = start()
    ports = [first.get_port(), process.free_port()]
    monkeypatch.setattr(server, "free_port", lambda: ports.pop(0))
    second = start(num_retries=1)
    assert second.get_port() != first.get_port()


def test_its_death_is_noticed(start):
    made = start()
    port = made.get_port()
    os.kill(*made._process.pids(), signal.SIGKILL)
    wait_for(lambda: not made.alive, what="its end")
    with pytest.raises(BackendUnavailableError, match=rf"etcd at 127\.0\.0\.1:{port} was killed by SIGKILL"):
        made.get_client()
    made.start()
    assert made.alive


def test_says_why_it_can_not_start(start, monkeypatch, tmp_path):
    monkeypatch.setattr(process.EtcdProcess, "_options", lambda self, folder: ["--nonsense=1"])
    with pytest.raises(EtcdServerError) as caught:
        start()
    assert isinstance(caught.value, RuntimeError)
    assert not isinstance(caught.value, OSError)
    assert str(caught.value).endswith("can't be started: flag provided but not defined: -nonsense")
    assert folders(tmp_path) == []


def test_says_what_killed_it(start, monkeypatch, tmp_path):
    monkeypatch.setenv(PATH_VARIABLE, pretend(tmp_path, "echo hello; kill -9 $$"))
    with pytest.raises(BackendUnavailableError, match=r"can't be started: it was killed by SIGKILL$"):
        start()


def test_waits_as_long_as_told(start, monkeypatch, tmp_path):
    monkeypatch.setenv(PATH_VARIABLE, pretend(tmp_path, "exec sleep 60"))
    with pytest.raises(TimeoutError, match=r"can't be started: it does not answer within 0\.1 s") as caught:
        start(timeout=0.1, num_retries=2)
    assert isinstance(caught.value, BackendUnavailableError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert folders(tmp_path) == []


def test_a_folder_that_can_not_be_made(start, tmp_path):
    with pytest.raises(OSError, match=r"for etcd's data can't be made \(No such file or directory\)"):
        start(str(tmp_path / "missing"))


# --- its end with its owner


OWNER = """
import os, signal, sys
from elastic_rdzv_etcd import EtcdServer
server = EtcdServer(sys.argv[1])
server.start()
print(*server._process.pids(), flush=True)
how = sys.argv[2]
if how == "fork":
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        print(server.alive, flush=True)
elif how == "raise":
    raise SystemExit(3)
elif how == "wait":
    signal.pause()
"""


@pytest.mark.parametrize("how", ["end", "raise", "fork", "kill", "interrupt"])
def test_nothing_is_left_of_it(tmp_path, how):
    argv = [sys.executable, "-c", OWNER, str(tmp_path), "wait" if how in ("kill", "interrupt") else how]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as owner:
        pid = int(owner.stdout.readline())
        if how == "kill":
            owner.kill()
        elif how == "interrupt":
            owner.send_signal(signal.SIGINT)
        rest = owner.stdout.read()
    assert rest == ("True\n" if how == "fork" else "")
    wait_for(lambda: not folders(tmp_path) and not Path(f"/proc/{pid}/exe").exists(), what="its end")
    assert not processes_with(f"ELASTIC_KEPT_FOLDER={tmp_path}")


def test_a_worker_of_an_agent_marks_it_as_its_own(start, monkeypatch):
    monkeypatch.setenv("ELASTIC_INCARNATION", f"test-{os.getpid()}")
    made = start()
    assert processes_with(f"ELASTIC_INCARNATION=test-{os.getpid()}") == list(made._process.pids())
    assert (
        not processes_with("ELASTIC_SIDECAR=1") or not set(processes_with("ELASTIC_SIDECAR=1")) & made._process.pids()
    )


# --- the program


def test_the_version_is_asked_for(etcd):
    found = examine(etcd, wait=WaitBudget())
    assert found.version >= (3, 4)


# --- who answers
