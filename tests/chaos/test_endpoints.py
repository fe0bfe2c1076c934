"""SCENARIO K10: wrong, shared and missing endpoints; and that every wait ends at once when it is told to."""

import re
import signal
import socket
import socketserver
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from chaos.multi_node import Run
from etcd_servers import EtcdServer
from patience import kept, patience, slowness
from ports import free_port
from redis_servers import PASSWORD, USER, RedisServer
from support import ELASTIC, wait_for
from time_limits import AT_ONCE_S

NOBODY = "192.0.2.1"
"""An address that is reserved for documentation."""


WAITS = ": waiting for "
WAITS_OR_TRIES = f"{WAITS}|; trying again$"
"""What an agent may say besides where its limit goes with the machine: what it waits for, that it tries on."""


def one_line(agent, *parts, code=4, within_s=8, besides=WAITS):
    """Check that an agent ended with this code and one line, but for those that it may say besides, with all parts."""
    assert agent.wait(within_s) == code, agent.err
    (line,) = (line for line in agent.err.splitlines() if not re.search(besides, line))
    for part in parts:
        assert part in line, line
    return line


SERVERS = ["redis", "etcd"]


@pytest.fixture
def start(elastic, script):
    """Start one agent on an endpoint."""

    def start_on(backend, endpoint, *options, **popen):
        args = ("--rdzv-backend", backend, *(("--rdzv-endpoint", endpoint) if endpoint else ()))
        return elastic(*args, *options, script("print('up')"), **popen)

    return start_on


# --- K10 (a), (b): not there


@pytest.mark.parametrize("backend", SERVERS)
def test_host_that_no_dns_knows(start, backend):
    began_s, limit_s = time.monotonic(), patience(1)  # a first try must end in it
    agent = start(backend, "no-such-host.invalid:6379", "--connect-timeout", f"{limit_s:g}")
    line = one_line(agent, "no-such-host.invalid", "--rdzv-endpoint", besides=WAITS_OR_TRIES)
    assert re.search(r"can ?not (be )?resolve", line), line
    kept(time.monotonic() - began_s, limit_s + 1.5)


@pytest.mark.parametrize("backend", SERVERS)
def test_no_server_on_the_port(start, backend):
    endpoint = f"127.0.0.1:{free_port()}"
    limit = f"{patience(2):.0f}"  # a first try must end in it, on a busy machine too
    agent = start(backend, endpoint, "--connect-timeout", limit)
    one_line(agent, endpoint, "--rdzv-endpoint", "refused", f"within {limit} s", besides=WAITS_OR_TRIES)


@pytest.mark.parametrize(
    ("backend", "variable", "url"),
    [("redis", "REDIS_URL", "redis://127.0.0.1:{}"), ("etcd", "ELASTIC_ETCD_ENDPOINTS", "127.0.0.1:{}")],
    ids=SERVERS,
)
def test_no_server_where_nothing_was_said(start, backend, variable, url):
    port = free_port()
    agent = start(backend, "", "--connect-timeout", "1", env={variable: url.format(port)})
    one_line(agent, f"127.0.0.1:{port}", "--rdzv-endpoint")


@pytest.mark.parametrize("backend", [*SERVERS, "c10d"])
def test_no_server_on_an_ipv6_address(start, backend):
    conf = ("--rdzv-conf", "is_host=0") if backend == "c10d" else ()
    endpoint = f"[::1]:{free_port('::1')}"
    one_line(start(backend, endpoint, "--connect-timeout", "1", *conf), endpoint)


@pytest.mark.parametrize(("backend", "kind"), [("redis", RedisServer), ("etcd", EtcdServer)], ids=SERVERS)
def test_a_server_on_an_ipv6_address(start, backend, kind, tmp_path):
    server = kind(tmp_path / "six", host="::1")
    try:
        agent = start(backend, server.start().endpoint)
        assert agent.wait(10) == 0, agent.err
        assert "up" in agent.out
    finally:
        server.stop()


@pytest.mark.parametrize("backend", SERVERS)
def test_address_that_nobody_answers_at(start, backend):
    agent = start(backend, f"{NOBODY}:6379", "--connect-timeout", "1")
    line = one_line(agent, f"{NOBODY}:6379", "--rdzv-endpoint")
    assert "within 1 s" in line


@pytest.mark.parametrize("backend", SERVERS)
def test_an_address_that_is_silent_is_given_up_in_time(start, backend):
    with full_queue() as port:
        began_s = time.monotonic()
        agent = start(backend, f"127.0.0.1:{port}", "--connect-timeout", "1")
        one_line(agent, f"127.0.0.1:{port}", "within 1 s")
        kept(time.monotonic() - began_s, 2.5)


@contextmanager
def full_queue():
    """Give a port whose queue of one is full: the kernel drops what comes then, as a firewall would."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        with socket.create_connection(full.getsockname()):
            yield full.getsockname()[1]


# --- every phase ends within 1 s


def ends_at_once(agent, signum=signal.SIGINT):
    """Interrupt an agent, and check that it ends as told, without a word of Python."""
    began_s = time.monotonic()
    agent.signal(signum)
    assert agent.wait(5) == 128 + signum, agent.err
    kept(time.monotonic() - began_s, AT_ONCE_S)
    assert "Traceback" not in agent.err


@pytest.mark.parametrize("backend", SERVERS)
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_a_server_refuses(start, backend, signum):
    agent = start(backend, f"127.0.0.1:{free_port()}")
    wait_for(lambda: "store unreachable" in agent.err, what="the first line about it")
    ends_at_once(agent, signum)


@pytest.mark.parametrize("backend", SERVERS)
def test_interrupted_while_a_server_says_nothing(start, backend):
    asked = threading.Event()

    def listen(connection):
        while connection.recv(4096):
            asked.set()

    with served(listen) as port:
        agent = start(backend, f"127.0.0.1:{port}")
        assert asked.wait(patience(10))
        ends_at_once(agent)


@contextmanager
def served(handle):
    """Give the port of a server that does this with each connection, on threads."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            with suppress(OSError):
                handle(self.request)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("backend", SERVERS)
def test_interrupted_while_an_address_is_silent(start, backend):
    with full_queue() as port:
        agent = start(backend, f"127.0.0.1:{port}")
        wait_for(lambda: syn_sent(port), what="an attempt to connect")
        ends_at_once(agent)


def syn_sent(port):
    """Return whether somebody waits for an answer of a port to its first word."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(line[2].endswith(f":{port:04X}") and line[3] == "02" for line in lines)


def test_interrupted_while_nodes_are_missing(run):
    a = run.node("a", "2")
    if run.server is not None:
        run.has_seats(1)
    ends_at_once(a.agent)


def test_interrupted_in_the_last_call(served_run):
    a = served_run.node("a", "1:2", conf="last_call_timeout=60")
    served_run.has_seats(1)
    ends_at_once(a.agent)


def test_interrupted_while_workers_run(run):
    a = run.node("a", "1:2")
    a.said()
    ends_at_once(a.agent)


def test_interrupted_while_the_server_is_away(troubled_run):
    a = troubled_run.node("a", "1:2")
    a.said()
    troubled_run.server.pause()
    a.told("store unreachable")
    began_s = time.monotonic()
    a.agent.signal(signal.SIGINT)
    a.ends(130, within_s=5)
    kept(time.monotonic() - began_s, 2 * AT_ONCE_S)  # its seat is given back, if the server lets it


# --- K10 (c): too few


def test_too_few_nodes_says_who_came(served_run):
    limit, longer = (f"{round(least_s * slowness(now=True), 1):g}" for least_s in (2, 3))  # in which b's process starts
    a = served_run.node("a", "3", conf=f"join_timeout={limit}")
    served_run.has_seats(1)
    b = served_run.node("b", "3", conf=f"join_timeout={longer}")  # so that it sees a go
    for node in (a, b):
        node.ends(4)
        one_line(node.agent, "--join-timeout")
    assert f"2 of at least 3 nodes joined (a, b) within {limit} s, 1 missing" in a.agent.err
    assert f"1 of at least 3 nodes joined (b) within {longer} s, 2 missing; at one time there were 2" in b.agent.err


# --- K10 (d), (e): shared


def test_two_runs_in_one_server_have_nothing_to_do_with_each_other(elastic, served_run, tmp_path):
    other = Run(elastic, tmp_path, server=served_run.server)
    first = [served_run.node(name, "2") for name in "ab"]
    second = [other.node(name, "2") for name in "ab"]
    for node in (*first, *second):
        node.said(world=2)
    served_run.all_end(*first)
    other.has_seats(2)
    other.all_end(*second)
    assert all(len(node.says()) == 1 for node in (*first, *second))


@pytest.mark.parametrize(
    ("options", "named"),
    [(("--nproc-per-node", "2"), "nproc"), ((), "nnodes")],
    ids=["nproc", "nnodes"],
)
def test_other_settings_are_refused(served_run, options, named):
    a = served_run.node("a", "1:2")
    a.said()
    other = served_run.node("b", "1:3" if named == "nnodes" else "1:2", *options)
    other.ends(4)
    assert named in other.agent.err
    assert "--allow-mismatch" in other.agent.err
    served_run.all_end(a)
    assert len(a.says()) == 1


def test_another_script_is_refused_and_other_arguments_are_told(served_run):
    a = served_run.node("a", "1:2")
    a.said()
    script = served_run.script
    served_run.script = script.with_name("other.py")
    served_run.script.write_text(script.read_text())
    other = served_run.node("b", "1:2")
    other.ends(4)
    assert "train.py" in other.agent.err
    assert "other.py" in other.agent.err
    served_run.all_end(a)


# --- verdicts for those who come late


def test_a_late_joiner_gets_the_verdict(served_run):
    nodes = [served_run.node(name, "2") for name in "ab"]
    for node in nodes:
        node.said(world=2)
    served_run.exit_rank(0, 0, 6)
    for node in nodes:
        node.ends(6)
    late = served_run.node("c", "2")
    late.ends(6)
    assert late.says() == []
    assert "has failed" in late.agent.err


def test_a_late_joiner_after_success_ends_well(served_run):
    nodes = [served_run.node(name, "2") for name in "ab"]
    for node in nodes:
        node.said(world=2)
    served_run.all_end(*nodes)
    late = served_run.node("c", "2")
    late.ends(0)
    assert late.says() == []
    assert "nothing was started on this node" in late.agent.err
    job = served_run.node("d", "1", env={"ELASTIC_JOB_ID": "another", "JOBSET_RESTART_ATTEMPT": "1"})
    job.said(world=1)  # another attempt is no latecomer
    served_run.all_end(job)


def test_a_run_whose_nodes_lost_their_power_is_begun_anew(served_run):
    """With all its restarts, and by whoever comes: nobody is there to compare with."""
    nodes = [served_run.node(name, "2", "--max-restarts", "1", "--restart-backoff", "0") for name in "ab"]
    for node in nodes:
        node.said(world=2)
    served_run.exit_rank(0, 0, 6)
    for node in nodes:
        assert node.said(world=2, gen=1)["restarts"] == 1
    for node in nodes:
        node.power_off()
    (served_run.shared / "exit-0-0").unlink()
    while True:  # as a scheduler does: as long as a lease of the dead has not ended, the run is theirs
        again = served_run.node("c", "1", "--max-restarts", "1")
        wait_for(lambda again=again: again.agent.process.poll() is not None or again.says(), what="c to be told")
        if again.says():
            break
        assert "was begun with --nnodes 2, this node has 1" in again.agent.err
    assert again.said(world=1)["restarts"] == 0
    assert "has no live node" in again.agent.err
    served_run.all_end(again)


def test_the_same_nodes_begin_a_new_run(served_run):
    nodes = [served_run.node(name, "2") for name in "ab"]
    for node in nodes:
        node.said(world=2)
    served_run.exit_rank(0, 0, 6)
    for node in nodes:
        node.ends(6)
    (served_run.shared / "exit-0-0").unlink()
    again = [served_run.node(name, "2") for name in "ab"]
    for node in again:
        assert node.said(world=2)["gen"] == 0
    served_run.all_end(*again)


def test_another_attempt_begins_a_new_run(served_run):
    a = served_run.node("a", "1")
    a.said()
    served_run.exit_rank(0, 0, 6)
    a.ends(6)
    (served_run.shared / "exit-0-0").unlink()
    b = served_run.node("b", "1", "--rdzv-attempt", "1")
    b.said()
    served_run.all_end(b)


# --- passwords


@pytest.fixture
def locked(tmp_path):
    """A server with a password."""
    server = RedisServer(tmp_path / "locked", config=("--requirepass", "right-one"))
    yield server.start()
    server.stop()


def test_wrong_password(start, locked):
    agent = start("redis", f"redis://:wrong-one@{locked.endpoint}")
    line = one_line(agent, locked.endpoint, "password")
    assert "wrong-one" not in line


def test_no_password(start, locked):
    one_line(start("redis", locked.endpoint), locked.endpoint, "password")


@pytest.mark.parametrize("how", ["url", "environment", "file"])
def test_right_password(start, locked, how, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("right-one\n")
    endpoint = f"redis://:right-one@{locked.endpoint}" if how == "url" else locked.endpoint
    env = {"ELASTIC_REDIS_PASSWORD": "right-one"} if how == "environment" else {}
    conf = ("--rdzv-conf", f"password_file={secret}") if how == "file" else ()
    agent = start("redis", endpoint, *conf, env=env)
    assert agent.wait(10) == 0, agent.err
    assert "right-one" not in agent.err + agent.out


@pytest.mark.parametrize(("backend", "named"), [("redis", "Redis"), ("etcd", "etcd")], ids=SERVERS)
def test_not_such_a_server(start, backend, named):
    def refuse(connection):
        while connection.recv(4096):
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with served(refuse) as port:
        one_line(start(backend, f"127.0.0.1:{port}", "--connect-timeout", "5"), named)


def test_two_nodes_over_tls_with_a_user_of_their_own(elastic, tls_redis, tmp_path):
    run = Run(elastic, tmp_path, server=tls_redis, endpoint=f"rediss://{tls_redis.endpoint}")
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD)
    files = f"ca_cert={tls_redis.ca},cert={tls_redis.cert},key={tls_redis.key}"
    conf = f"{files},username={USER},password_file={secret}"
    nodes = [run.node(name, "2", conf=conf) for name in "ab"]
    assert {node.said(world=2)["master"] for node in nodes} == {nodes[0].said()["master"]}
    run.all_end(*nodes)
    assert all(node.agent.err == "" for node in nodes)


# --- addresses


def test_the_master_is_where_node_0_says_that_it_is(redis_run):
    names = {"a": "127.0.0.2", "b": "127.0.0.3"}
    nodes = [redis_run.node(name, "2", "--local-addr", address) for name, address in names.items()]
    says = [node.said(world=2) for node in nodes]
    first = next(line["node"] for line in says if line["rank"] == 0)
    assert {line["master"].rpartition(":")[0] for line in says} == {names[first]}
    redis_run.all_end(*nodes)


# --- usage


def test_count_of_nodes_that_is_none(start):
    agent = start("redis", "", "--nnodes", "two")
    one_line(agent, "two", code=2)


def test_several_nodes_need_a_name(script):
    args = [*ELASTIC, "--rdzv-backend", "redis", "--nnodes", "2", str(script(""))]
    done = subprocess.run(args, capture_output=True, text=True, timeout=patience(20), check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "--rdzv-id" in line
