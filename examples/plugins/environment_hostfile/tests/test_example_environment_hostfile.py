"""The kit, tests of this environment's own rules, and a run of two agents."""

import os
import random
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import elastic_example_environment_hostfile as example
from elastic_core.api import ConfigError
from elastic_example_environment_hostfile import Hostfile
from elastic_plugin_kit import EnvironmentConformance

HOSTS = """\
# two of the blue rack
blue1.example slots=4
blue2.example slots=4   # the new one
"""
SCRIPT = """\
import os, socket
rank, place = os.environ["RANK"], (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == "0":
    with socket.create_server(place, reuse_port=True) as server:
        peer, _ = server.accept()
else:
    while (peer := socket.socket()).connect_ex(place):
        peer.close()
peer.sendall(rank.encode())
print("rank", rank, "of", os.environ["WORLD_SIZE"], "met", peer.recv(1).decode())
"""


@pytest.fixture
def hostfile(tmp_path):
    path = tmp_path / "hosts"
    path.write_text(HOSTS)
    return path


class TestHostfile(EnvironmentConformance):
    shown_by = "HOSTFILE"
    reads_files = True

    @pytest.fixture
    def make_environment(self):
        return Hostfile

    @pytest.fixture
    def variables(self, hostfile):
        return {"HOSTFILE": str(hostfile), "HOSTFILE_HOST": "blue2"}


def proposed(path, host="blue1", *, given=None, **more):
    found = Hostfile({"HOSTFILE": str(path), "HOSTFILE_HOST": host, **more}).propose(given or {})
    return {each.option: each.value for each in found}


def test_a_host_has_its_place_in_the_file(hostfile):
    common = {"nnodes": "2", "rdzv_backend": "static", "rdzv_endpoint": "blue1.example:29500", "nproc_per_node": "4"}
    assert proposed(hostfile) == common | {"node_id": "blue1.example", "node_rank": "0"}
    assert proposed(hostfile, "blue2.example") == common | {"node_id": "blue2.example", "node_rank": "1"}
    assert proposed(hostfile, HOSTFILE_PORT="7000")["rdzv_endpoint"] == "blue1.example:7000"


def test_another_backend_has_an_endpoint_of_its_own(hostfile):
    found = proposed(hostfile, given={"rdzv_backend": "redis"})
    assert found == {"nnodes": "2", "node_id": "blue1.example", "node_rank": "0", "nproc_per_node": "4"}


def test_one_host_needs_no_peer(tmp_path):
    (tmp_path / "hosts").write_text("fe80::1\n")
    assert proposed(tmp_path / "hosts", "fe80::1") == {"nnodes": "1", "node_id": "fe80::1"}


def test_without_a_variable_it_is_this_host(tmp_path):
    name = os.uname().nodename
    (tmp_path / "hosts").write_text(f"other\n{name}\n")
    assert proposed(tmp_path / "hosts", "")["node_id"] == name


@pytest.mark.parametrize(
    ("text", "host", "words"),
    [
        ("", "blue1", "has no hosts"),
        (HOSTS, "green", "has no host 'green', which this is. Try: HOSTFILE_HOST=NAME"),
        ("blue1\nblue1\n", "blue1", "has 'blue1' twice"),
        ("blue1 slots=two\n", "blue1", "slots='two', which is no number"),
        ("blue1 slots=2\nblue2\n", "blue1", "different slots. Try: --nproc-per-node N, for all"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path, text, host, words):
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(ConfigError) as caught:
        proposed(tmp_path / "hosts", host)
    assert words in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"HOSTFILE='.*gone' can't be read: No such file"):
        proposed(tmp_path / "gone")


# --- with the command


@pytest.fixture
def site(tmp_path):
    """The example as it is where it is installed: its metadata, and a place for Python's path."""
    info = tmp_path / "site" / "elastic_example_environment_hostfile-1.0.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: elastic-example-environment-hostfile\nVersion: 1.0.0\n")
    point = "HOSTFILE = elastic_example_environment_hostfile:Hostfile"
    (info / "entry_points.txt").write_text(f"[elastic_core.environments]\n{point}\n")
    return os.pathsep.join([str(info.parent), str(Path(example.__file__).parents[1])])


def start(site, folder, hosts, host, port, *words):
    path = folder / "hosts"
    path.write_text(hosts)
    own = {name: text for name, text in os.environ.items() if not name.startswith(("PET_", "ELASTIC_", "TORCHEL"))}
    return subprocess.Popen(
        [sys.executable, "-m", "elastic_core", "run", *words],
        cwd=folder,
        env=own | {"HOSTFILE": str(path), "HOSTFILE_HOST": host, "HOSTFILE_PORT": str(port), "PYTHONPATH": site,
                   "XDG_RUNTIME_DIR": str(folder), "PYTHONWARNINGS": "ignore"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def free_port():
    """Return a port that is free, and that Linux gives to no connection meanwhile."""
    while True:
        port = random.SystemRandom().randrange(30_000, 32_000)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def test_two_hosts_are_two_nodes_of_a_run(site, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    port = free_port()
    hosts = "127.0.0.1\n127.0.0.2\n"
    agents = [start(site, tmp_path, hosts, host, port, "train.py") for host in ("127.0.0.1", "127.0.0.2")]
    try:
        ended = [agent.communicate(timeout=60) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [0, 0], ended
    assert [out for out, _ in ended] == ["rank 0 of 2 met 1\n", "rank 1 of 2 met 0\n"]


def test_a_rank_of_ones_own_is_refused_before_anything_waits(site, tmp_path):
    agent = start(site, tmp_path, HOSTS, "blue2", 29500, "--node-rank", "0", "-m", "platform")
    _, err = agent.communicate(timeout=60)
    assert agent.returncode == 2
    assert err.startswith("elastic: error: this host is line 1 of ")
    assert err.endswith("counted from 0. Try: no --node-rank\n")
