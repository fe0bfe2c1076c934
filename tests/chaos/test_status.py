"""`elastic status` and `elastic incidents` on a run of several nodes: from its store, and from a run directory."""

import json
import os
import signal

import pytest

from chaos.multi_node import Run
from chaos.test_file_example import ENTRY_POINTS, METADATA, SOURCE
from elastic_core.cli.main import main
from elastic_core.cli.run_choices import chosen_store
from elastic_core.errors import ConfigError
from elastic_ops.status.command import StoreSource
from patience import patience
from support import wait_for


class Onlooker:
    """Asks about a run from outside of it."""

    def __init__(self, run, capsys):
        self.run, self._capsys = run, capsys
        self.store = ["--rdzv-backend", run.backend, "--rdzv-endpoint", run.endpoint, "--rdzv-id", run.id]

    def asks(self, *words):
        self._capsys.readouterr()
        code = main([str(word) for word in words])
        said = self._capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err

    def sees(self, *words):
        code, out, err = self.asks("status", "--json", *(words or self.store))
        assert code == 0, err
        (run,) = json.loads(out)["runs"]
        return run

    def comes(self, condition, *words, within_s=20.0):
        """Wait until what is seen fits."""
        last = {}

        def fits():
            last["seen"] = self.sees(*words)
            return last["seen"] if condition(last["seen"]) else None

        try:
            return wait_for(fits, within_s=within_s)
        except AssertionError:
            raise AssertionError(f"seen at last: {last}") from None


@pytest.fixture
def file_run(elastic, tmp_path, monkeypatch):
    """A run whose agents, and this process, find the example backend as if it was installed."""
    info = tmp_path / "site/elastic_example_rendezvous_file-1.0.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.setenv("PYTHONPATH", f"{info.parent}{os.pathsep}{SOURCE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(str(info.parent))
    (tmp_path / "directory").mkdir()
    run = Run(elastic, tmp_path, endpoint=str(tmp_path / "directory"))
    run.backend = "file"
    return run


def states(seen):
    return {node["node_id"].partition("@")[0]: node["state"] for node in seen["nodes"]}


def test_a_run_from_its_store(run, capsys):
    """Two nodes and a spare; a failure; one node is killed; the end."""
    look = Onlooker(run, capsys)
    options = ("--max-restarts", "2", "--allow-mismatch", "nproc", "--nproc-per-node")
    a, b = run.node("a", "2", *options, "2"), run.node("b", "2", *options, "1")
    b.said(world=3)
    run.node("c", "2", *options, "1")
    seen = look.comes(lambda seen: len(seen["nodes"]) == 3 and seen["state"] == "running")
    assert (seen["source"], seen["backend"], seen["run_dir"]) == ("store", run.backend, "")
    assert states(seen) == {"a": "running", "b": "running", "c": "ready"}
    assert seen["waiting"] == ["c"]
    ranks = {node["node_id"]: (node["first_rank"], node["worker_count"]) for node in seen["nodes"]}
    assert sorted(count for first, count in ranks.values() if first is not None) == [1, 2]
    assert ranks["c"] == (None, 1)
    assert seen["store"]["reachable"] is True
    assert 0 < seen["store"]["latency_s"] < patience(5)
    assert (seen["round"]["index"], seen["round"]["world_size"], seen["restart_count"]) == (0, 3, 0)

    run.exit_rank(0, 0, 9)
    seen = look.comes(lambda seen: seen["state"] == "running" and seen["restart_count"] == 1)
    assert (seen["last_incident"]["rank"], seen["last_incident"]["summary"]) == (0, "exit code 9")
    _, listed, _ = look.asks("incidents", *look.store)
    assert "exit code 9" in listed
    _, block, _ = look.asks("incidents", "--last", *look.store)
    assert "non-zero exit: exit code 9" in block

    b.kill_agent()
    seen = look.comes(lambda seen: seen["state"] == "running" and seen["membership_changes"] == 1)
    assert states(seen) == {"a": "running", "c": "running"}

    run.finish()
    a.ends(0)


def test_who_is_gone_without_a_word_is_seen_to_be(served_run, capsys):
    look = Onlooker(served_run, capsys)
    a = served_run.node("a", "1")
    a.said(world=1)
    a.power_off()
    seen = look.comes(lambda seen: states(seen)["a"] in ("silent", "lost"))
    assert seen["state"] == "all nodes lost"


def test_the_verdict_is_there_afterwards_and_looking_leaves_no_trace(redis_run, capsys):
    look = Onlooker(redis_run, capsys)
    a = redis_run.node("a", "1", "--max-restarts", "0")
    a.said(world=1)
    redis_run.exit_rank(0, 0, 7)
    a.ends(7)
    before = _kept_by_redis(redis_run)
    seen = look.sees()
    assert (seen["state"], seen["verdict"]["outcome"], seen["verdict"]["exit_code"]) == ("failed", "failed", 7)
    assert look.asks("status", "--watch", "60", *look.store)[0] == 0
    assert look.asks("incidents", *look.store)[0] == 0
    assert before == _kept_by_redis(redis_run)


def _kept_by_redis(run):
    """Return the fields of the run, when it ends, and how many changes the server counts: of any key, also to the same.

    A hash has no order, and reading it may change which field is first.
    """
    key, call = f"elastic:{{{run.id}}}:state", run.server.call
    (changes,) = (line for line in call("INFO persistence").splitlines() if line.startswith("rdb_changes_since"))
    return sorted(call(f"HGETALL {key}").splitlines()), call(f"PEXPIRETIME {key}"), changes


def test_looking_after_an_outage_puts_nobody_out(redis_run, capsys):
    """All seats look dead to who comes first: an onlooker must not act on it."""
    look = Onlooker(redis_run, capsys)
    nodes = [redis_run.node(name, "2") for name in "ab"]
    for node in nodes:
        node.said(world=2)
    for node in nodes:
        os.kill(node.agent.pid, signal.SIGSTOP)
    try:
        look.comes(lambda seen: set(states(seen).values()) == {"silent"})
        assert redis_run._seats() == 2
    finally:
        for node in nodes:
            os.kill(node.agent.pid, signal.SIGCONT)


def test_a_store_that_is_down_or_has_no_such_run(redis_run, capsys):
    look = Onlooker(redis_run, capsys)
    look.store[-1] += "-nope"
    code, out, err = look.asks("status", *look.store)
    assert (code, out) == (2, "")
    assert "no run " in err
    redis_run.server.pause()
    try:
        code, out, err = look.asks("status", "--connect-timeout", "0.5", *look.store)
    finally:
        redis_run.server.resume()
    assert (code, out) == (4, "")
    assert err.count("\n") == 1
    assert redis_run.server.endpoint in err
    redis_run.server.stop()
    code, out, err = look.asks("incidents", *look.store)
    assert (code, out) == (4, "")
    assert "refused" in err


def test_a_node_tells_of_its_trouble_with_the_store(redis_run, capsys, tmp_path):
    look = Onlooker(redis_run, capsys)
    a = redis_run.node("a", "1")
    a.said(world=1)
    folder = wait_for(lambda: next(tmp_path.glob("agent0/runtime/elastic-*/*/status.json"), None)).parent
    seen = look.comes(lambda seen: seen["state"] == "running", folder)
    assert seen["store"]["where"] == f"redis at {redis_run.endpoint}"
    assert seen["store"]["reachable"] is None
    redis_run.server.stop()
    seen = look.comes(lambda seen: seen["store"]["reachable"] is False, folder)
    assert seen["store"]["trouble"].startswith("store unreachable: ")
    assert seen["store"]["unreachable_since"]
    redis_run.server.start()
    look.comes(lambda seen: seen["store"]["reachable"] is None, folder)
    redis_run.all_end(a)


def test_a_stranger_s_store_can_be_looked_into(file_run, capsys):
    look = Onlooker(file_run, capsys)
    a = file_run.node("a", "1")
    a.said(world=1)
    assert look.comes(lambda seen: seen["state"] == "running")["store"]["reachable"] is True
    file_run.all_end(a)


def test_a_store_that_goes_away_while_it_is_watched_is_a_part_of_the_picture(redis_run):
    a = redis_run.node("a", "1")
    a.said(world=1)
    source = StoreSource(
        chosen_store({"rdzv_backend": "redis", "rdzv_endpoint": redis_run.endpoint, "rdzv_id": redis_run.id}, {})
    )
    try:
        wait_for(lambda: (seen := _read(source)) and seen.state == "running", what="a to publish that its worker runs")
        (seen,) = source.look()
        assert (seen.state, seen.nodes[0].since) == ("running", "")
        redis_run.server.stop()
        for _ in range(2):
            (gone,) = source.look()
        assert (gone.nodes, gone.store.reachable) == (seen.nodes, False)
        assert "refused" in gone.store.trouble
        assert gone.store.unreachable_since
        redis_run.server.start()
        back = wait_for(lambda: _read(source))
        assert back.store.unreachable_since == ""
    finally:
        source.close()
    redis_run.all_end(a)


def _read(source):
    """Return the run once it is in the store again."""
    try:
        (seen,) = source.look()
    except ConfigError:  # the server forgot it, and its node has not come back yet
        return None
    return seen if seen.store.reachable else None
