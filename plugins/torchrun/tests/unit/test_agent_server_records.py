"""What torch's users hand to an agent, and what it hands back."""

import pytest

from elastic_core.compat.elastic.agent.server import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState


def train():
    return None


def spec(**changes):
    return WorkerSpec(**({"role": "trainer", "local_world_size": 2, "entrypoint": train} | changes))


class TestSpec:
    def test_defaults_are_torchs(self):
        made = spec()
        assert (made.max_restarts, made.monitor_interval, made.args, made.event_log_handler) == (3, 0.1, (), "null")
        assert made.rdzv_handler is None
        assert not made.virtual_local_rank

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"local_world_size": 0}, "local_world_size is 0"),
            ({"monitor_interval": 0}, "monitor_interval is 0 s"),
            ({"entrypoint": None}, "there is no entrypoint"),
            ({"entrypoint": ""}, "there is no entrypoint"),
        ],
    )
    def test_what_cannot_be_is_refused_with_torchs_class_and_a_reason(self, changes, said):
        with pytest.raises(AssertionError, match=said):
            spec(**changes)

    def test_fn_is_deprecated_and_works(self):
        with pytest.warns(DeprecationWarning, match="entrypoint"):
            made = spec(entrypoint=None, fn=train)
        assert made.entrypoint is train

    @pytest.mark.parametrize(
        ("entrypoint", "name"),
        [(train, "train"), ("/usr/bin/python", "python"), (dict, "dict")],
    )
    def test_the_name_of_an_entrypoint(self, entrypoint, name):
        assert spec(entrypoint=entrypoint).get_entrypoint_name() == name

    def test_a_callable_without_a_name_has_that_of_its_class(self):
        class Trainer:
            def __call__(self):
                return None

        assert spec(entrypoint=Trainer()).get_entrypoint_name().endswith("Trainer")


def test_a_group_starts_with_workers_that_have_no_ranks():
    group = WorkerGroup(spec())
    assert group.state is WorkerState.INIT
    assert [worker.local_rank for worker in group.workers] == [0, 1]
    assert str(group.workers[1]) == "local_rank=1,global_rank=-1,role_rank=-1,world_size=-1,role_world_size=-1"
    assert (group.store, group.group_rank, group.master_addr) == (None, None, None)
    with pytest.raises(AttributeError):
        group.unknown = 1


@pytest.mark.parametrize("state", list(WorkerState))
def test_what_runs_and_what_has_failed(state):
    running = {WorkerState.HEALTHY, WorkerState.UNHEALTHY}
    assert WorkerState.is_running(state) is (state in running)
    assert RunResult(state=state).is_failed() is (state in {WorkerState.FAILED, WorkerState.UNHEALTHY})
    assert state == state.value


def test_a_result_shares_nothing_with_another():
    assert RunResult(state=WorkerState.SUCCEEDED).return_values is not RunResult(state=WorkerState.FAILED).return_values
    assert Worker(0).id is None
