"""What etcd adds to the scenarios: TLS with users, three members that lose some, compaction, lost and old data."""

import shutil
import socket
import time

import pytest

from chaos.multi_node import FULL_FIRST, LEASE_S, SLACK_S, Run
from etcd_servers import PASSWORD, PREFIX, USER, TlsEtcd
from patience import kept
from proc_kit import is_alive
from support import wait_for

CLUSTER_LEASE_S = LEASE_S + 1.0
"""With the time that an election takes."""
AWAY = "store unreachable"
BACK = "store back"


def untouched(nodes, pids):
    """Check that the workers are the same as they were."""
    assert pids_of(nodes) == pids, "\n".join(f"{node.name}: {node.agent.err}" for node in nodes)


def pids_of(nodes):
    """Return the pids of all workers that the nodes ever had."""
    return [line["pid"] for node in nodes for line in node.says()]


def lines_of(node):
    """Return what an agent said about its store: how often that it was away, and that it was back."""
    said = node.agent.err.splitlines()
    return [sum(word in line for line in said) for word in (AWAY, BACK)]


def leases_pass(run, leases=1.5):
    """Wait for so many leases; by default longer than what all are granted after trouble."""
    began_s, lasts_s = time.monotonic(), leases * run.lease_s
    wait_for(lambda: time.monotonic() - began_s > lasts_s, within_s=lasts_s + 5)


def all_told(run, nodes, what):
    """Wait until all have said that the store is away, or back."""
    for node in nodes:
        node.told(what, within_s=run.lease_s + SLACK_S)


def started(run, names="ab", nnodes="2", *options):
    """Start nodes; return them when they are in one round."""
    conf = FULL_FIRST if nnodes.endswith(str(len(names))) else ""
    nodes = [run.node(name, nnodes, *options, conf=conf) for name in names]
    for node in nodes:
        node.said(world=len(names))
    return nodes


def one_outage(run, nodes, pids, may_be_short=False):
    """Check that the outage that is over cost each agent two lines (a short one: none), and no worker anything.

    After a short one whose store came back without data a node may say that its seat is gone.
    """
    leases_pass(run)
    untouched(nodes, pids)
    run.all_end(*nodes)
    untouched(nodes, pids)
    for node in nodes:
        assert lines_of(node) in ([[1, 1], [0, 0]] if may_be_short else [[1, 1]]), node.agent.err
        others = [
            line for line in node.agent.err.splitlines() if not (may_be_short and ": this node's seat in " in line)
        ]
        assert len(others) == sum(lines_of(node)), node.agent.err


# --- TLS, users


@pytest.fixture
def secret(tmp_path):
    """A file with the password."""
    path = tmp_path / "secret"
    path.write_text(f"{PASSWORD}\n")
    return path


@pytest.fixture
def tls_run(elastic, tmp_path, secret):
    """A run in a server with TLS, client certificates and users; it checks passwords as cheaply as it can."""
    server = TlsEtcd(tmp_path / "tls", config=("--bcrypt-cost", "4"))
    try:
        server.start()
        server.enable_auth()
        files = f"ca_cert={server.ca},cert={server.cert},key={server.key}"
        conf = f"{files},username={USER},password_file={secret}"
        yield Run(elastic, tmp_path, server=server, endpoint=f"https://{server.endpoint}", conf=conf)
    finally:
        server.stop()


def test_nodes_come_fail_and_are_killed_over_tls_with_a_user_of_their_own(tls_run):
    a = tls_run.node("a", "1:2", "--max-restarts", "1")
    a.said(world=1, gen=0)
    b = tls_run.node("b", "1:2", "--max-restarts", "1")
    mine, theirs = a.said(world=2, gen=1), b.said(world=2, gen=1)
    assert mine["master"] == theirs["master"]
    tls_run.exit_rank(1, 1, 9)
    assert {(line["restarts"], line["changes"]) for line in (a.said(gen=2), b.said(gen=2))} == {(1, 1)}
    began_s = time.monotonic()
    b.kill_agent()
    a.said(world=1, gen=3)  # its guard has logged in, and given its seat back
    kept(time.monotonic() - began_s, LEASE_S)
    tls_run.all_end(a)
    assert [line.partition(": ")[2] for line in a.agent.err.splitlines()] == [
        "round 0 is over: 1 node joined; 2 nodes go on",
        f"rank 1 failed on b ({socket.gethostname()}): exit code 9; restart 1 of 1 now",
        "round 2 is over: b lost; 1 node with 1 worker goes on",
    ]
    assert not any(PASSWORD in node.agent.err + node.agent.out for node in (a, b))


def test_a_server_that_forgot_its_tokens_is_logged_in_to_again(tls_run):
    nodes = started(tls_run)
    pids = pids_of(nodes)
    tls_run.server.stop()
    all_told(tls_run, nodes, AWAY)
    tls_run.server.start()
    all_told(tls_run, nodes, BACK)
    one_outage(tls_run, nodes, pids)


@pytest.mark.parametrize("given", ["wrong password", "no user", "no certificate"])
def test_who_may_not_come_in_gets_one_line(elastic, tls_etcd, tmp_path, given):
    user = "" if given == "no user" else f"{USER}:wrong-one@" if given == "wrong password" else f"{USER}:{PASSWORD}@"
    files = f"ca_cert={tls_etcd.ca}"
    if given != "no certificate":
        files += f",cert={tls_etcd.cert},key={tls_etcd.key}"
    run = Run(elastic, tmp_path, server=tls_etcd, endpoint=f"https://{user}{tls_etcd.endpoint}", conf=files)
    a = run.node("a", "1")
    a.ends(4)
    (line,) = a.agent.err.splitlines()
    assert tls_etcd.endpoint in line
    assert {"wrong password": "password", "no user": "user", "no certificate": "certificate"}[given] in line
    assert "wrong-one" not in line
    assert PASSWORD not in line


# --- three members


@pytest.fixture
def cluster_run(elastic, tmp_path, etcd_cluster):
    """A run in three members, which the test may kill, pause and start; an election takes a part of its lease."""
    run = Run(elastic, tmp_path, server=etcd_cluster)
    run.lease_s = CLUSTER_LEASE_S
    return run


@pytest.mark.parametrize("how", ["killed", "paused"])
def test_the_leader_of_the_cluster_is_gone(cluster_run, how):
    nodes = started(cluster_run, "ab", "2:3")
    pids = pids_of(nodes)
    leader = cluster_run.server.leader()
    leader.kill() if how == "killed" else leader.pause()
    leases_pass(cluster_run, 2)
    untouched(nodes, pids)
    nodes.append(cluster_run.node("c", "2:3"))
    for node in nodes:
        node.said(world=3)
    cluster_run.all_end(*nodes)
    assert all(lines_of(node) in ([0, 0], [1, 1]) for node in nodes), [node.agent.err for node in nodes]


@pytest.mark.chaos_full
def test_the_majority_is_gone_for_20_s(cluster_run):
    nodes = started(cluster_run)
    pids = pids_of(nodes)
    began_s = time.monotonic()
    gone = cluster_run.server.stop_majority()
    wait_for(lambda: time.monotonic() - began_s > 20, within_s=21, what="20 s without a majority")
    untouched(nodes, pids)
    assert all(map(is_alive, pids))
    for member in gone:
        member.launch()
    all_told(cluster_run, nodes, BACK)
    one_outage(cluster_run, nodes, pids)


def test_leader_then_majority_are_gone_and_a_node_is_lost_afterwards(cluster_run):
    nodes = started(cluster_run, "abc", "2:3")
    pids = pids_of(nodes)
    server = cluster_run.server
    first = server.kill_leader()
    second = server.kill_leader()  # the one that was elected
    all_told(cluster_run, nodes, AWAY)
    leases_pass(cluster_run)
    untouched(nodes, pids)
    for member in (first, second):
        member.launch()
    all_told(cluster_run, nodes, BACK)
    leases_pass(cluster_run, 1.1)
    untouched(nodes, pids)
    nodes.pop(1).power_off()
    for node in nodes:
        assert node.said(world=2, within_s=cluster_run.lease_s + SLACK_S)["restarts"] == 0
    cluster_run.all_end(*nodes)


def test_members_are_restarted_one_after_another(cluster_run):
    nodes = started(cluster_run)
    pids = pids_of(nodes)
    for member in cluster_run.server.members:
        member.restart()
        cluster_run.server.leader()
    leases_pass(cluster_run, 1)
    cluster_run.all_end(*nodes)
    untouched(nodes, pids)


# --- history, lost data, old data


@pytest.fixture
def etcd_run(elastic, tmp_path, etcd_private):
    """A run in a server that the test may pause, stop and start."""
    return Run(elastic, tmp_path, server=etcd_private)


def test_history_is_forgotten_while_nobody_can_listen(etcd_run):
    nodes = started(etcd_run, "ab", "2:3")
    pids = pids_of(nodes)
    server = etcd_run.server
    for number in range(20):
        server.put(f"{PREFIX}{etcd_run.id}/other/{number % 3}", str(number))
    server.compact()
    server.pause()
    all_told(etcd_run, nodes, AWAY)
    server.resume()
    server.put("elsewhere", "x")
    server.compact()
    all_told(etcd_run, nodes, BACK)
    leases_pass(etcd_run, 1)
    untouched(nodes, pids)
    nodes.append(etcd_run.node("c", "2:3"))
    for node in nodes:
        assert node.said(world=3)["gen"] == 1
    etcd_run.all_end(*nodes)


@pytest.mark.parametrize("data", ["gone", "older"])
def test_the_server_comes_back_with_other_data(etcd_run, tmp_path, data):
    server = etcd_run.server
    a = etcd_run.node("a", "1:3")
    a.said(world=1)
    if data == "older":
        keep_copy(server, tmp_path / "copy")
        leases_pass(etcd_run, 1)
    b = etcd_run.node("b", "1:3")
    before = [node.said(world=2)["pid"] for node in (a, b)]
    server.stop()
    all_told(etcd_run, (a, b), AWAY)
    server.forget()
    if data == "older":
        shutil.copytree(tmp_path / "copy", server.folder / "data")
    server.start()
    all_told(etcd_run, (a, b), BACK)
    leases_pass(etcd_run)
    assert [node.says()[-1]["pid"] for node in (a, b)] == before
    c = etcd_run.node("c", "1:3")
    gens = {node.said(world=3)["gen"] for node in (a, b, c)}
    assert gens == {2}
    etcd_run.all_end(a, b, c)


def keep_copy(server, folder):
    """Stop the server for as long as a copy of its data takes."""
    server.stop()
    shutil.copytree(server.folder / "data", folder)
    server.start()


def test_all_members_come_back_without_data(cluster_run):
    nodes = started(cluster_run)
    pids = pids_of(nodes)
    cluster_run.server.empty()
    one_outage(cluster_run, nodes, pids, may_be_short=True)
