"""The modules of docs/reference/migration.md: a Python program for each row that no other file's test shows.

Each program calls the room as a user does; none imports torch, and each says at its end that nothing has.
"""

import json
import os

import pytest

from elastic_numa import AffinityMode
from elastic_numa.binding import bound_cpus

NO_TORCH = '\n    print(json.dumps({"torch": "torch" in sys.modules}))\n'


@pytest.fixture
def results_of(run_program):
    """Return a function that runs a program and returns the JSON lines that it has printed; torch is not imported."""

    def results_of(text, **variables):
        ended = run_program(text + NO_TORCH, **variables)
        assert ended.returncode == 0, ended.stderr
        *results, last = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith(("{", "["))]
        assert last == {"torch": False}
        return results

    return results_of


LAUNCHES = """
import json, os, sys
from elastic_core.launcher import LaunchConfig, elastic_launch, launch
from elastic_core.run import get_args_parser, run

def train(lr):
    if lr < 0:
        raise ValueError("lr is negative")
    return lr * (int(os.environ["RANK"]) + 1)

if __name__ == "__main__":
    print(json.dumps(launch(train, (0.5,), nproc_per_node=2, max_restarts=3)), flush=True)
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1, max_restarts=0)
    try:
        elastic_launch(config, train)(-1)
    except Exception as error:
        print(json.dumps([type(error).__name__, error.get_first_failure()[1].message["message"]]), flush=True)
    parser = get_args_parser()
    parser.add_argument("--team")
    args = parser.parse_args(["--team", "vision", "--no-python", "--nproc-per-node", "2", "echo", '["worker"]'])
    run(args)
    print(json.dumps([args.team]), flush=True)
"""


def test_functions_and_programs_are_launched_and_what_they_return_comes_back(results_of):
    assert results_of(LAUNCHES) == [
        {"0": 0.5, "1": 1.0},
        ["ChildFailedError", "ValueError: lr is negative"],
        *[["worker"]] * 2,
        ["vision"],
    ]


AGENTS = """
import json, sys, threading
from elastic_core.compat.elastic.agent.server import RunResult, SimpleElasticAgent, WorkerSpec, WorkerState
from elastic_core.compat.elastic.agent.server.local_elastic_agent import LocalElasticAgent

def train():
    return "trained"

class InThisProcess(SimpleElasticAgent):
    called = []

    def _start_workers(self, worker_group):
        self.called.append("start")
        return {worker.local_rank: worker.local_rank for worker in worker_group.workers}

    def _stop_workers(self, worker_group):
        self.called.append("stop")

    def _monitor_workers(self, worker_group):
        healthy = "monitor" not in self.called
        self.called.append("monitor")
        return RunResult(state=WorkerState.HEALTHY if healthy else WorkerState.SUCCEEDED, return_values={0: "mine"})

    def _shutdown(self, *_, **__):
        self.called.append("shutdown")

if __name__ == "__main__":
    result = LocalElasticAgent(WorkerSpec(role="trainer", local_world_size=2, entrypoint=train)).run()
    print(json.dumps([result.state.name, result.return_values]))
    own = InThisProcess(WorkerSpec(role="trainer", local_world_size=1, entrypoint=train, monitor_interval=0.01))
    print(json.dumps([own.run().state.name, own.called]))
"""


def test_an_agent_runs_workers_and_a_subclass_has_its_hooks_called(results_of):
    local, own = results_of(AGENTS)
    assert local == ["SUCCEEDED", {"0": "trained", "1": "trained"}]
    assert own[0] == "SUCCEEDED"
    assert own[1][:3] == ["start", "monitor", "monitor"]


PROCESSES = """
import json, os, sys
from elastic_core.compat.elastic.multiprocessing import DefaultLogsSpecs, start_processes
from elastic_core.compat.elastic.multiprocessing.errors import ChildFailedError, record

@record
def square(number):
    if number < 0:
        raise ValueError("no root")
    return number * number

def run(*numbers):
    args = {rank: (number,) for rank, number in enumerate(numbers)}
    specs = DefaultLogsSpecs(log_dir=os.environ["LOGS"])
    return start_processes("trainer", square, args, {rank: {} for rank in args}, specs).wait()

if __name__ == "__main__":
    print(json.dumps(run(3, 4).return_values))
    failed = ChildFailedError("trainer", run(-1).failures)
    print(json.dumps(failed.get_first_failure()[1].message["message"].splitlines()[:1]))
"""


def test_worker_processes_run_without_an_agent_and_record_their_errors(results_of, tmp_path):
    (tmp_path / "logs").mkdir()
    returned, failed = results_of(PROCESSES, LOGS=str(tmp_path / "logs"))
    assert returned == {"0": 9, "1": 16}
    assert failed == ["ValueError: no root"]


MEETS = """
import json, sys, threading
from elastic_core.compat.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry
from elastic_core.compat.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend, create_handler
from elastic_core.compat.elastic.rendezvous.registry import get_rendezvous_handler
from elastic_core.compat.elastic.utils.store import barrier, synchronize

class Memory(RendezvousBackend):
    name = "memory"

    def __init__(self):
        self.state, self.count = None, 0

    def get_state(self):
        return None if self.state is None else (self.state, self.count)

    def set_state(self, state, token=None):
        if token != (self.count or None):
            return self.state, self.count, False
        self.state, self.count = state, self.count + 1
        return state, self.count, True

class Store(dict):  # has the methods of torch's stores that the helpers call
    timeout, changed = None, threading.Condition()

    def set_timeout(self, timeout):
        self.timeout = timeout

    def set(self, key, value):
        with self.changed:
            self[key] = value
            self.changed.notify_all()

    def add(self, key, amount):
        with self.changed:
            self[key] = self.get(key, 0) + amount
            return self[key]

    def wait(self, keys, *_):
        with self.changed:
            assert self.changed.wait_for(lambda: set(keys) <= set(self), 20)

    def multi_get(self, keys):
        self.wait(keys)
        return [self[key] for key in keys]

def meet(rank):
    said[rank] = [each.decode() for each in synchronize(store, str(rank).encode(), rank, 2, "said", timeout=20)]
    barrier(store, 2, "wall", barrier_timeout=20)

rendezvous_handler_registry.register("memory", lambda params: create_handler(None, Memory(), params))

if __name__ == "__main__":
    handler = get_rendezvous_handler(RendezvousParameters("memory", "", "job", 1, 1))
    print(json.dumps([handler.get_backend(), handler.get_run_id()]))
    store, said = Store(), {}
    threads = [threading.Thread(target=meet, args=[rank]) for rank in (0, 1)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(json.dumps(said))
    from elastic_core.run import main
    words = ["--rdzv-backend", "memory", "--nnodes", "1:2", "--rdzv-id", "job", "--rdzv-conf", "last_call_timeout=0.1"]
    code = main([*words, "--no-python", "sh", "-c", 'echo "[$RANK, $WORLD_SIZE]"'])
    print(json.dumps([code]))
"""


def test_a_backend_of_ones_own_serves_handlers_and_runs_and_stores_have_barriers(results_of):
    assert results_of(MEETS) == [["memory", "job"], {"0": ["0", "1"], "1": ["0", "1"]}, [0, 1], [0]]


MEASURES = """
import json, sys
from elastic_core.launcher import launch
from elastic_torchrun import events, metrics

class Kept(metrics.MetricHandler):
    values = {}

    def emit(self, metric_data):
        self.values[f"{metric_data.group_name}/{metric_data.name}"] = metric_data.value

class Ends(events.EventHandler):
    states = []

    def record(self, event):
        self.states.append(event.metadata["state"])

@metrics.prof(group="mine")
def step():
    metrics.put_metric("loss", 0.5, "mine")

if __name__ == "__main__":
    metrics.configure(Kept())
    events.configure(Ends())
    step()
    launch(["true"], nproc_per_node=1)
    of_run = [name for name in Kept.values if name.startswith("elastic/elastic_exit_code")]
    print(json.dumps([Kept.values["mine/loss"], Kept.values["mine/__main__.step.success"], of_run, Ends.states[-1]]))
    metrics.configure(metrics.ConsoleMetricHandler(), group="shown")
    metrics.put_metric("loss", 7, "shown")
    events.configure(events.NullEventHandler())
    events.record(events.Event("saved", events.EventSource.WORKER, metadata={"step": 3}), "jsonl:events.jsonl")
    with open("events.jsonl") as file:
        print(json.dumps([json.loads(line)["metadata"] for line in file]))
"""


def test_metrics_and_events_reach_the_handlers_of_the_program(run_program):
    ended = run_program(MEASURES + NO_TORCH)
    assert ended.returncode == 0, ended.stderr
    kept, shown, events, torch = ended.stdout.splitlines()
    assert json.loads(kept) == [0.5, 1, ["elastic/elastic_exit_code"], "SUCCEEDED"]
    assert shown.endswith("[shown]: loss=7")
    assert json.loads(events) == [{"step": 3}]
    assert json.loads(torch) == {"torch": False}


BINDS = """
import json, os, sys
from elastic_core.compat.elastic.utils.data import CyclingIterator
from elastic_core.compat.numa.binding import AffinityMode, NumaOptions
from elastic_core.launcher import LaunchConfig, elastic_launch

def processors():
    return sorted(os.sched_getaffinity(0))

if __name__ == "__main__":
    options = NumaOptions(AffinityMode(os.environ["MODE"]))
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, numa_options=options)
    print(json.dumps(elastic_launch(config, processors)()))
    print(json.dumps([*CyclingIterator(3, lambda epoch: iter([f"{epoch}a", f"{epoch}b"]), start_epoch=1)]))
"""


def test_workers_are_bound_to_processors_and_epochs_go_on_where_they_were(results_of):
    mode = "exclusive" if len(os.sched_getaffinity(0)) > 1 else "node"
    bound, epochs = results_of(BINDS, MODE=mode)
    expected = bound_cpus(AffinityMode(mode), 2, environ=os.environ)
    assert {int(rank): {*cpus} for rank, cpus in bound.items()} == dict(enumerate(expected))
    assert epochs == ["1a", "1b", "2a", "2b"]
