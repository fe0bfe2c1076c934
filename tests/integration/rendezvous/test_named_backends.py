"""The lines of the README that name a backend with a server, as people type them on one node."""

import os
import socket
import subprocess
import time

import pytest

from elastic_core.errors import RendezvousConnectionError
from elastic_core.plugins.registry import PluginRegistry
from elastic_plugin_kit import rendezvous_settings
from member_kit import Member
from patience import kept, patience
from ports import free_port
from redis_servers import redis_server  # noqa: F401  # a fixture
from support import ELASTIC, places_of_runs

SCRIPT = """
import os
os.write(1, " ".join(os.environ[name] for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")).encode() + b"\\n")
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "runtime").mkdir(mode=0o700)

    def run(*args, **variables):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ELASTIC_", "REDIS_"))}
        done = subprocess.run(
            [*ELASTIC, *args], capture_output=True, text=True, timeout=patience(30), check=False,
            stdin=subprocess.DEVNULL, cwd=tmp_path, env=kept | places_of_runs(tmp_path / "runtime") | variables,
        )  # fmt: skip
        assert list((tmp_path / "runtime").glob("elastic-*/*-*")) == []
        return done.returncode, done.stdout.splitlines(), done.stderr

    return run


def test_redis_takes_its_endpoint_from_the_environment(run, redis_server):  # noqa: F811  # the fixture
    code, first, err = run("--rdzv-backend", "redis", "train.py", REDIS_URL=redis_server.url)
    assert (code, err) == (0, "")
    code, second, err = run("--rdzv-backend", "redis", "--rdzv-endpoint", redis_server.endpoint, "train.py")
    assert (code, err) == (0, "")
    (first_id,), (second_id,) = ([line.split()[2] for line in lines] for lines in (first, second))
    assert first == [f"0 1 {first_id}"]
    assert first_id != second_id


def test_no_server_is_one_line_that_names_endpoint_and_option(run):
    port = free_port()
    url = f"redis://ada:s3cret@127.0.0.1:{port}"
    limit = f"{patience(3):g}"  # time for the import of the client and one try at least
    code, out, err = run("--rdzv-backend", "redis", "--connect-timeout", limit, "train.py", REDIS_URL=url)
    assert (code, out) == (4, [])
    (line,) = [line for line in err.splitlines() if "elastic: error: " in line]
    assert f"redis at 127.0.0.1:{port} could not be reached within {limit} s" in line
    assert "refused" in line
    assert "Try: " in line
    assert "--rdzv-endpoint" in line
    assert "s3cret" not in err


def test_a_server_that_takes_no_writes_is_named_with_its_reason_and_what_to_do(run, redis_server):  # noqa: F811
    assert redis_server.call("CONFIG SET maxmemory 1").startswith("+OK")
    limit = f"{patience(3):g}"
    line = ["--rdzv-backend", "redis", "--rdzv-endpoint", redis_server.endpoint, "--connect-timeout", limit, "train.py"]
    code, out, err = run(*line)
    assert (code, out) == (4, [])
    assert err.splitlines() == [
        f"elastic: store unreachable: {redis_server.endpoint} is out of memory; trying again",
        err.splitlines()[-1],
    ]
    assert f"has not let this node in within {limit} s: {redis_server.endpoint} is out of memory. Try: raise max" in err
    assert "joined" not in err


@pytest.mark.parametrize("endpoint", [[], ["--rdzv-endpoint", "localhost:0"]])
def test_c10d_hosts_its_store_beside_the_agent(run, endpoint):
    line = ["--rdzv-backend", "c10d", *endpoint, "--rdzv-id", "job", "--nproc-per-node", "2", "train.py"]
    code, out, err = run(*line, OMP_NUM_THREADS="1")
    assert (code, err) == (0, "")
    assert sorted(out) == ["0 2 job", "1 2 job"]


@pytest.fixture
def black_hole():
    """An address that drops packets: of a listener whose queue is full, which the kernel tells nobody."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        try:
            for sock in waiting:
                sock.setblocking(False)
                sock.connect_ex(listener.getsockname())
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            for sock in waiting:
                sock.close()


BUSY_S = 0.8
"""What a busy machine may add to the 0.2 s of the promise. A second try beyond the limit took 2.5 s."""


@pytest.mark.parametrize("backend", ["redis", "etcd", "etcd-v2", "c10d"])
def test_an_address_that_drops_packets_costs_the_connect_timeout_and_no_more(black_hole, backend):
    settings = rendezvous_settings(run_id="hole", backend=backend, endpoint=black_hole, max_nodes=2)
    conf = {"connect_timeout": "4"} | ({"is_host": "false"} if backend == "c10d" else {})
    made = PluginRegistry().make_rendezvous(backend, settings, conf)
    member = Member(made.store, made.settings)
    began_s = time.monotonic()
    try:
        with pytest.raises(RendezvousConnectionError, match="could not be reached within 4 s: "):
            member.join()
        took_s = time.monotonic() - began_s
        assert took_s >= 4
        kept(took_s, 4 + 0.2 + BUSY_S)
    finally:
        member.shutdown()
