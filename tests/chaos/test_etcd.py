"""What etcd adds to the scenarios: TLS with users, three members that lose some, compaction, lost and old data."""

import shutil
import time

import pytest

from chaos.multi_node import LEASE_S, SLACK_S, Run, is_alive
from etcd_servers import PASSWORD, PREFIX, USER, TlsEtcd
from support import wait_for

AWAY = "store unreachable"
BACK = "store back"


def pids_of(nodes):
    """Return the pids of all workers that the nodes ever had."""
    return [line["pid"] for node in nodes for line in node.says()]


def lines_of(node):
    """Return what an agent said about its store: how often that it was away, and that it was back."""
    said = node.agent.err.splitlines()
    return [sum(word in line for line in said) for word in (AWAY, BACK)]


def a_lease_passes(leases=1.5):
    """Wait for longer than what all are granted after trouble."""
    began_s = time.monotonic()
    wait_for(lambda: time.monotonic() - began_s > leases * LEASE_S, what="more than a lease")


def started(run, names="ab", nnodes="2", *options):
    """Start nodes; return them when they are in one round."""
    nodes = [run.node(name, nnodes, *options) for name in names]
    for node in nodes:
        node.said(world=len(names))
    return nodes


def one_outage(run, nodes, pids, may_be_short=False):
    """Check that the outage that is over cost each agent two lines (a short one: none), and no worker anything."""
    a_lease_passes()
    assert pids_of(nodes) == pids
    run.all_end(*nodes)
    assert pids_of(nodes) == pids
    for node in nodes:
        assert lines_of(node) in ([[1, 1], [0, 0]] if may_be_short else [[1, 1]]), node.agent.err
        assert len(node.agent.err.splitlines()) == sum(lines_of(node)), node.agent.err


# --- TLS, users


@pytest.fixture
def secret(tmp_path):
    """A file with the password."""
    path = tmp_path / "secret"
    path.write_text(f"{PASSWORD}\n")
    return path


@pytest.fixture
def tls_run(elastic, tmp_path, secret):
    """A run in a server with TLS, client certificates and users, whose tokens last a second."""
    server = TlsEtcd(tmp_path / "tls", config=("--auth-token-ttl", "1"))
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
    assert time.monotonic() - began_s < LEASE_S
    tls_run.all_end(a)
    assert [line.partition(": ")[2].partition(";")[0] for line in a.agent.err.splitlines()] == [
        "round 0 is over: 1 node joined",
        "rank 1 failed: exit code 9 (on b)",
        "round 2 is over: b lost",
    ]
    assert not any(PASSWORD in node.agent.err + node.agent.out for node in (a, b))


def test_a_server_that_forgot_its_tokens_is_logged_in_to_again(tls_run):
    nodes = started(tls_run)
    pids = pids_of(nodes)
    tls_run.server.stop()
    for node in nodes:
        node.told(AWAY, within_s=LEASE_S + SLACK_S)
    tls_run.server.start()
    for node in nodes:
        node.told(BACK, within_s=LEASE_S + SLACK_S)
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
    """A run in three members, which the test may kill, pause and start."""
    return Run(elastic, tmp_path, server=etcd_cluster)


@pytest.mark.parametrize("how", ["killed", "paused"])
def test_the_leader_of_the_cluster_is_gone(cluster_run, how):
    nodes = started(cluster_run, "ab", "2:3")
    pids = pids_of(nodes)
    leader = cluster_run.server.leader()
    leader.kill() if how == "killed" else leader.pause()
    a_lease_passes(2)
    assert pids_of(nodes) == pids
    nodes.append(cluster_run.node("c", "2:3"))
    for node in nodes:
        node.said(world=3)
    cluster_run.all_end(*nodes)
    assert all(lines_of(node) in ([0, 0], [1, 1]) for node in nodes), [node.agent.err for node in nodes]


@pytest.mark.parametrize(
    "away_s", [2 * LEASE_S, pytest.param(20.0, marks=pytest.mark.chaos_full)], ids=["two leases", "20 s"]
)
def test_the_majority_is_gone_and_comes_back(cluster_run, away_s):
    nodes = started(cluster_run)
    pids = pids_of(nodes)
    began_s = time.monotonic()
    gone = cluster_run.server.stop_majority()
    for node in nodes:
        node.told(AWAY, within_s=LEASE_S + SLACK_S)
    wait_for(lambda: time.monotonic() - began_s > away_s, within_s=away_s + 1, what="the time without a majority")
    assert pids_of(nodes) == pids
    assert all(map(is_alive, pids))
    for member in gone:
        member.launch()
    for node in nodes:
        node.told(BACK, within_s=LEASE_S + SLACK_S + 5)
    one_outage(cluster_run, nodes, pids)


def test_leader_then_majority_are_gone_and_a_node_is_lost_afterwards(cluster_run):
    nodes = started(cluster_run, "abc", "2:3")
    pids = pids_of(nodes)
    server = cluster_run.server
    first = server.kill_leader()
    a_lease_passes(1)
    second = server.kill_leader()
    for node in nodes:
        node.told(AWAY, within_s=LEASE_S + SLACK_S)
    a_lease_passes(1.5)
    assert pids_of(nodes) == pids
    for member in (first, second):
        member.launch()
    for node in nodes:
        node.told(BACK, within_s=LEASE_S + SLACK_S + 5)
    a_lease_passes(1.5)
    assert pids_of(nodes) == pids
    lost = nodes.pop(1)
    began_s = time.monotonic()
    lost.power_off()
    for node in nodes:
        assert node.said(world=2, within_s=LEASE_S + SLACK_S)["restarts"] == 0
    print(f"lost node replaced after {time.monotonic() - began_s:.2f} s")
    cluster_run.all_end(*nodes)


def test_members_are_restarted_one_after_another(cluster_run):
    nodes = started(cluster_run)
    pids = pids_of(nodes)
    for member in cluster_run.server.members:
        member.restart()
        cluster_run.server.leader()
    a_lease_passes(1)
    cluster_run.all_end(*nodes)
    assert pids_of(nodes) == pids


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
    for node in nodes:
        node.told(AWAY, within_s=LEASE_S + SLACK_S)
    server.resume()
    server.put("elsewhere", "x")
    server.compact()
    for node in nodes:
        node.told(BACK, within_s=LEASE_S + SLACK_S)
    a_lease_passes(1)
    assert pids_of(nodes) == pids
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
        a_lease_passes(1)
    b = etcd_run.node("b", "1:3")
    before = [node.said(world=2)["pid"] for node in (a, b)]
    server.stop()
    for node in (a, b):
        node.told(AWAY, within_s=LEASE_S + SLACK_S)
    server.forget()
    if data == "older":
        shutil.copytree(tmp_path / "copy", server.folder / "data")
    server.start()
    for node in (a, b):
        node.told(BACK, within_s=LEASE_S + SLACK_S)
    a_lease_passes(1.5)
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
