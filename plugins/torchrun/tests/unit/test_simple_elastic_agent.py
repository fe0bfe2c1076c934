"""The loop around a subclass's hooks: order of the calls, restarts, ranks, the end."""

import json
import signal
from types import SimpleNamespace

import pytest

from elastic_core.compat.elastic.agent.server import RunResult, SimpleElasticAgent, WorkerSpec, WorkerState
from elastic_core.compat.elastic.multiprocessing import SignalException
from elastic_core.errors import ElasticError, RendezvousGracefulExitError, RendezvousStateError
from elastic_torchrun import events
from elastic_torchrun.agent import events as telling
from elastic_torchrun.agent.exit_barrier import KEY, exit_barrier
from elastic_torchrun.agent.ranks import Node, Place, assign_ranks, meet, place_of
from elastic_torchrun.processes.process_failure import ProcessFailure

HEALTHY = RunResult(state=WorkerState.HEALTHY)
SUCCEEDED = RunResult(state=WorkerState.SUCCEEDED, return_values={0: "a", 1: "b"})
FAILED = RunResult(state=WorkerState.FAILED)
UNHEALTHY = RunResult(state=WorkerState.UNHEALTHY)


class DictStore(dict):
    """The store of torch's, in one process."""

    def set(self, key, value):
        self[key] = value

    def add(self, key, amount):
        self[key] = self.get(key, 0) + amount
        return self[key]

    def check(self, keys):
        return all(key in self for key in keys)


class Handler:
    """One that was written for torch: its names, its RendezvousInfo."""

    def __init__(self, *, waiting=(), fails=None):
        self.waiting = list(waiting)
        self.fails = fails
        self.rounds = 0

    def next_rendezvous(self):
        if self.fails is not None:
            raise self.fails
        self.rounds += 1
        where = SimpleNamespace(master_addr="node0", master_port=29500)
        return SimpleNamespace(store=DictStore(), rank=0, world_size=1, bootstrap_store_info=where)

    def num_nodes_waiting(self):
        return self.waiting.pop(0) if self.waiting else 0

    def get_backend(self):
        return "mine"

    def get_run_id(self):
        return "job"


class Agent(SimpleElasticAgent):
    def __init__(self, handler, results, *, max_restarts=1, **options):
        spec = WorkerSpec(
            role="trainer",
            local_world_size=2,
            entrypoint="train",
            rdzv_handler=handler,
            max_restarts=max_restarts,
            monitor_interval=1e-6,
        )
        super().__init__(spec, **options)
        self.results = list(results)
        self.calls = []

    def _start_workers(self, worker_group):
        self.calls.append("start")
        return {worker.local_rank: 100 + worker.local_rank for worker in worker_group.workers}

    def _stop_workers(self, worker_group):
        self.calls.append("stop")

    def _monitor_workers(self, worker_group):
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def _shutdown(self, death_sig=signal.SIGTERM, timeout=30):
        self.calls.append(f"shutdown {death_sig.name} {timeout}")


class TestLoop:
    def test_success(self):
        agent = Agent(Handler(), [HEALTHY, SUCCEEDED])
        assert agent.run() is SUCCEEDED
        assert agent.calls == ["start", "shutdown SIGTERM 30"]
        group = agent.get_worker_group()
        assert [(each.id, each.global_rank, each.world_size) for each in group.workers] == [(100, 0, 2), (101, 1, 2)]
        assert (group.master_addr, group.master_port, group.state) == ("node0", 29500, WorkerState.SUCCEEDED)

    @pytest.mark.parametrize("bad", [FAILED, UNHEALTHY])
    def test_a_failure_costs_a_restart_until_there_is_none(self, bad):
        handler = Handler()
        agent = Agent(handler, [bad, HEALTHY, bad], max_restarts=1)
        assert agent.run() is bad
        assert bad.is_failed()
        assert agent.calls == ["start", "stop", "start", "stop", "shutdown SIGTERM 30"]
        assert handler.rounds == 2
        assert agent.get_worker_group().state is WorkerState.FAILED

    def test_a_node_that_waits_costs_no_restart(self):
        handler = Handler(waiting=[0, 1])
        agent = Agent(handler, [HEALTHY, HEALTHY, FAILED, SUCCEEDED], max_restarts=1)
        assert agent.run() is SUCCEEDED
        assert handler.rounds == 3

    def test_a_signal_reaches_the_workers_as_it_is(self):
        agent = Agent(Handler(), [SignalException("told", signal.SIGINT)], shutdown_timeout=7)
        with pytest.raises(SignalException):
            agent.run()
        assert agent.calls == ["start", "shutdown SIGINT 7"]

    def test_a_node_that_is_not_needed_has_succeeded(self):
        agent = Agent(Handler(fails=RendezvousGracefulExitError("spare")), [])
        assert agent.run() == RunResult(state=WorkerState.SUCCEEDED)
        assert agent.calls == ["shutdown SIGTERM 30"]

    def test_a_shutdown_that_fails_hides_nothing(self, monkeypatch):
        agent = Agent(Handler(), [ElasticError("the cause")])
        monkeypatch.setattr(agent, "_shutdown", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ElasticError, match="the cause"):
            agent.run()

    def test_a_state_that_cannot_be_is_an_error(self):
        with pytest.raises(ElasticError, match="UNKNOWN"):
            Agent(Handler(), [RunResult(state=WorkerState.UNKNOWN)]).run()

    def test_without_a_handler_there_is_one_node_with_a_port_of_its_own(self):
        agent = Agent(None, [SUCCEEDED])
        agent.run()
        group = agent.get_worker_group()
        assert group.master_addr == "127.0.0.1"
        assert group.master_port > 0
        assert (group.group_rank, group.group_world_size) == (0, 1)


def spec(size, role="trainer", **changes):
    return WorkerSpec(role=role, local_world_size=size, entrypoint="train", **changes)


class Recorder(events.EventHandler):
    def __init__(self):
        self.seen = []

    def record(self, event):
        self.seen.append(event)


@pytest.fixture
def recorded():
    recorder = Recorder()
    events.configure(recorder)
    yield recorder.seen
    events.configure(events.NullEventHandler())


class TestEvents:
    def test_the_steps_and_the_workers_are_told(self, recorded):
        failure = ProcessFailure(local_rank=1, pid=101, exitcode=3, error_file="")
        Agent(Handler(), [RunResult(state=WorkerState.FAILED, failures={1: failure})], max_restarts=0).run()
        names = [each.name.removeprefix("torchelastic.worker.status.") for each in recorded]
        assert names == ["RENDEZVOUS", "ASSIGN_WORKER_RANKS", "START", "START", "TERMINATED", "FAILED"]
        assert recorded[0].metadata["duration_ms"] >= 0
        last = recorded[-1].metadata
        assert (last["run_id"], last["rdzv_backend"], last["global_rank"], last["role"]) == (
            "job",
            "mine",
            1,
            "trainer",
        )
        assert json.loads(last["metadata"])["exit_code"] == 3  # a number, not a list of one

    def test_the_agents_own_end(self):
        agent = Agent(Handler(), [])
        assert agent.get_event_succeeded().metadata["state"] == "SUCCEEDED"
        try:
            raise ValueError("lost")
        except ValueError:
            assert "ValueError: lost" in agent.get_event_failed().metadata["raw_error"]

    def test_how_a_run_ended_is_counted(self, monkeypatch):
        counted = {}
        monkeypatch.setattr(telling, "put_metric", counted.__setitem__)
        Agent(Handler(), [FAILED, SUCCEEDED], max_restarts=1).run()
        assert counted["workers.trainer.run_success_with_retries"] == 1
        assert counted["workers.trainer.run_failed_no_retries"] == 0
        assert counted["workers.trainer.remaining_restarts"] == 0
        assert counted["workers.trainer.flakiness"] == 50


class TestRanks:
    def test_nodes_of_several_sizes_and_roles_agree_through_the_store(self):
        store, found = DictStore(), {}
        specs = {0: spec(2), 1: spec(1, "reader"), 2: spec(3)}
        for rank in (1, 2):  # their words first: a dict does not wait
            told = {"role": specs[rank].role, "rank": rank, "local_world_size": specs[rank].local_world_size}
            store.set(f"torchelastic/role_info/{rank}", json.dumps(told))
        for rank, own in specs.items():
            found[rank] = assign_ranks(Place(store=store, rank=rank, world_size=3), own, {})
        assert [worker.global_rank for rank in found for worker in found[rank]] == [0, 1, 2, 3, 4, 5]
        assert [worker.role_rank for worker in found[2]] == [2, 3, 4]
        assert {worker.role_world_size for worker in found[0]} == {5}
        assert {worker.world_size for rank in found for worker in found[rank]} == {6}

    def test_a_handler_that_names_the_nodes_needs_no_store(self):
        nodes = (Node(role="trainer", local_world_size=4), Node(role="trainer", local_world_size=1))
        (worker,) = assign_ranks(Place(store=None, rank=1, world_size=2, nodes=nodes), spec(1), {})
        assert (worker.global_rank, worker.world_size) == (4, 5)

    def test_nodes_that_are_known_to_be_alike_do_not_talk(self):
        place = Place(store=None, rank=1, world_size=2)
        workers = assign_ranks(place, spec(2), {"TORCH_ELASTIC_WORKER_IDENTICAL": "1"})
        assert [worker.global_rank for worker in workers] == [2, 3]

    def test_where_the_user_says_is_where_they_meet(self):
        place = Place(store=None, rank=0, world_size=1, master_addr="theirs", master_port=1)
        assert meet(place, spec(1, master_addr="mine", master_port=2), lambda: 3) == ("mine", 2)

    def test_node_0_tells_the_others_where(self):
        store = DictStore()
        first = meet(Place(store=store, rank=0, world_size=2), spec(1, local_addr="10.0.0.1"), lambda: 4711)
        assert first == ("10.0.0.1", 4711)
        assert meet(Place(store=store, rank=1, world_size=2), spec(1), lambda: 1) == first

    def test_a_tuple_is_a_round_and_anything_else_is_not(self):
        assert place_of(("store", 1, 2), "mine") == Place(store="store", rank=1, world_size=2)
        with pytest.raises(RendezvousStateError, match="'mine' returned str"):
            place_of("round", "mine")


class TestBarrier:
    def test_the_last_one_waits_for_nobody(self):
        store = DictStore()
        store.add(f"{KEY}/num_members", 1)  # the other one
        exit_barrier(store, 2, timeout_s=0)
        assert store.check([f"{KEY}/last_member"])

    def test_who_waits_too_long_is_told(self):
        with pytest.raises(TimeoutError, match="not all of 2 nodes had finished within 0 s"):
            exit_barrier(DictStore(), 2, timeout_s=0)

    def test_one_node_waits_for_nobody(self):
        exit_barrier(None, 1, timeout_s=0)
