"""Runs that Python code asks for, with real workers: what comes back, and what is left as it was."""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request

import pytest

import function_samples as functions
from elastic_core.compat.elastic.agent.server import WorkerSpec, WorkerState
from elastic_core.compat.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from elastic_core.compat.elastic.multiprocessing import DefaultLogsSpecs, Std
from elastic_core.errors import ConfigError, ElasticError, RendezvousConnectionError
from elastic_core.hooks.handler import AgentHook
from elastic_core.hooks.members import NamedHook
from elastic_core.launcher import LaunchConfig, elastic_launch, launch, launch_agent
from elastic_core.moments import Power, Refuse
from elastic_core.plugins.registry import PluginRegistry
from elastic_core.rendezvous import registry
from elastic_core.rendezvous.local import LocalRendezvous
from elastic_core.types import HookSettings, RendezvousSettings
from elastic_torchrun.agent import health_check_server
from elastic_torchrun.functions.server_client import ForkServer
from elastic_torchrun.processes.child_failed import ChildFailedError
from elastic_watch import sleep_hook
from group_kit import open_fds
from patience import patience
from ports import free_port
from redis_servers import RedisServer
from support import processes_with, wait_for

TELL = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "ROLE_NAME", "MASTER_ADDR", "TORCHELASTIC_RUN_ID")
os.write(1, (json.dumps({name: os.environ[name] for name in names}) + os.linesep).encode())
"""
FAIL_ONCE = "import os, sys; sys.exit(3 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)"

FAIL_ONCE_SH = "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 3; exit 0"


@pytest.fixture(autouse=True)
def _own_runtime(tmp_path, monkeypatch):
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "runtime"))
    for name in [name for name in os.environ if name.startswith(("PET_", "ELASTIC_", "TORCHELASTIC_"))]:
        monkeypatch.delenv(name)


def config(**changes):
    return LaunchConfig(**({"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 2, "max_restarts": 0} | changes))


def told(capfd):
    out = capfd.readouterr().out
    return sorted((json.loads(line) for line in out.splitlines()), key=lambda each: int(each["RANK"]))


class TestPrograms:
    def test_a_command_runs_on_every_rank(self, capfd):
        assert elastic_launch(config(run_id="job", role="r"), sys.executable)("-c", TELL) == {0: None, 1: None}
        seen = told(capfd)
        assert [(each["RANK"], each["LOCAL_RANK"], each["WORLD_SIZE"]) for each in seen] == [
            ("0", "0", "2"),
            ("1", "1", "2"),
        ]
        assert {(each["ROLE_NAME"], each["TORCHELASTIC_RUN_ID"]) for each in seen} == {("r", "job")}

    def test_one_node_has_an_id_of_its_own_and_an_address(self, capfd):
        for _ in range(2):
            launch(["/bin/sh", "-c", "echo $TORCHELASTIC_RUN_ID $MASTER_ADDR"], nproc_per_node=1)
        (one, address), (other, _) = (line.split() for line in capfd.readouterr().out.splitlines())
        assert one != other
        assert address == "127.0.0.1"

    def test_two_dollar_signs_stay_two(self, capfd):
        elastic_launch(config(nproc_per_node=1), "/bin/echo")("$$PATH", "${local_rank}")
        assert capfd.readouterr().out == "$$PATH 0\n"

    def test_a_failure_names_the_first_rank_and_its_error(self):
        code = "import os; raise ValueError('lost') if os.environ['RANK'] == '1' else __import__('time').sleep(60)"
        with pytest.raises(ChildFailedError) as caught:
            launch_agent(config(), sys.executable, ["-c", code])
        rank, failure = caught.value.get_first_failure()
        assert (rank, failure.local_rank, failure.exitcode) == (1, 1, 1)
        assert set(caught.value.failures) == {1}
        assert "ValueError: lost" in str(caught.value)
        assert processes_with(f"RANK={os.getpid()}") == []

    def test_a_failed_run_is_started_again(self, capfd):
        assert launch([sys.executable, "-c", FAIL_ONCE], nproc_per_node=2, max_restarts=1) == {0: None, 1: None}

    def test_a_script_with_its_log_files(self, script, tmp_path):
        path = script("import sys; print('out of', sys.argv[1:])")
        launch(path, ("--lr", 1), nproc_per_node=1, log_dir=tmp_path / "logs", run_id="job")
        (log,) = (tmp_path / "logs").glob("**/stdout.log")
        assert log.read_text() == "out of ['--lr', '1']\n"

    def test_logs_specs_say_where_output_goes(self, tmp_path):
        specs = DefaultLogsSpecs(log_dir=str(tmp_path / "logs"), redirects=Std.OUT)
        elastic_launch(config(logs_specs=specs, nproc_per_node=1), "echo")("hello")
        (log,) = (tmp_path / "logs").glob("**/stdout.log")
        assert log.read_text() == "hello\n"

    def test_specs_of_ones_own_are_asked(self, tmp_path):
        class Mine(DefaultLogsSpecs):
            def reify(self, envs):
                dest = super().reify(envs)
                dest.stdouts = {rank: str(tmp_path / f"mine{rank}") for rank in envs}
                return dest

        elastic_launch(config(logs_specs=Mine()), "sh")("-c", "echo $RANK")
        assert [(tmp_path / f"mine{rank}").read_text() for rank in (0, 1)] == ["0\n", "1\n"]

    def test_the_older_spelling(self, capfd):
        assert Std(entrypoint=["echo", "hi"], nproc_per_node=1, monitor_interval=1, max_restarts=0).run() == {0: None}
        assert capfd.readouterr().out == "hi\n"
        assert Std(3) is Std.ALL
        assert Std.from_str("0:1") == {0: Std.OUT}


class TestFunctions:
    @pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
    def test_results_come_by_global_rank(self, method):
        results = elastic_launch(config(start_method=method), functions.describe)("gpu${local_rank}", 0.1)
        assert {rank: (each["rank"], each["args"]) for rank, each in results.items()} == {
            0: ("0", ("gpu0", 0.1)),
            1: ("1", ("gpu1", 0.1)),
        }

    def test_an_exception_is_the_failures(self):
        with pytest.raises(ChildFailedError, match="fail FAILED") as caught:
            launch(functions.fail, ("loss is nan",), nproc_per_node=1)
        _, failure = caught.value.get_first_failure()
        assert failure.message["message"] == "ValueError: loss is nan"
        assert caught.value.exit_code == 1

    @pytest.mark.parametrize("call", [lambda: launch(lambda: None), lambda: launch(functions.lock)])
    def test_what_cannot_be_pickled_is_one_line(self, call):
        with pytest.raises(ElasticError, match="pickle"):
            call()

    def test_closures_need_fork(self):
        seen = 41
        assert launch(lambda: seen + 1, nproc_per_node=1, start_method="fork") == {0: 42}

    def test_forks_are_made_ahead_of_the_round(self, monkeypatch):
        counts, prepare = [], ForkServer.prepare

        def ahead(server, loop, count, done):
            counts.append(count)
            prepare(server, loop, count, done)

        monkeypatch.setattr(ForkServer, "prepare", ahead)
        assert launch(lambda: 1, nproc_per_node=2, start_method="fork") == {0: 1, 1: 1}
        assert counts == [2]

    def test_an_agent_as_it_stands_in_guides(self):
        spec = WorkerSpec(role="trainer", local_world_size=2, entrypoint=functions.add, args=(1,))
        assert LocalElasticAgent(spec).run().return_values == {0: 2, 1: 2}


class TestTheCaller:
    def test_keeps_its_environment_its_handlers_and_its_objects(self):
        watched = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1)
        before = dict(os.environ), [signal.getsignal(each) for each in watched]
        threads = {*threading.enumerate()}
        fds = len(open_fds())
        given = config(rdzv_configs={"timeout": 5})
        fields = dict(vars(given))
        elastic_launch(given, "true")()
        with pytest.raises(ChildFailedError):
            elastic_launch(given, "false")()
        assert (dict(os.environ), [signal.getsignal(each) for each in watched]) == before
        assert vars(given) == fields
        wait_for(lambda: {*threading.enumerate()} <= threads, what="no thread is left")
        assert len(open_fds()) <= fds

    def test_may_be_any_thread(self):
        results = []
        thread = threading.Thread(target=lambda: results.append(launch(["true"], nproc_per_node=2)))
        thread.start()
        thread.join(30)
        assert results == [{0: None, 1: None}]

    def test_that_is_told_to_stop_hears_it_when_its_workers_are_gone(self, script, tmp_path):
        path = script(
            "from elastic_core.launcher import launch\n"
            "from elastic_core.compat.elastic.multiprocessing import SignalException\n"
            "try:\n"
            "    launch(['sh', '-c', 'echo up; sleep 60'], run_id='told-to-stop', nproc_per_node=1)\n"
            "except SignalException as told:\n"
            "    print('caught', told.sigval.name, told)\n"
        )
        with subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True) as caller:
            assert caller.stdout.readline() == "up\n"
            caller.send_signal(signal.SIGTERM)
            assert caller.stdout.read() == "caught SIGTERM the run was stopped by SIGTERM\n"
        assert caller.returncode == 0
        assert processes_with("TORCHELASTIC_RUN_ID=told-to-stop") == []

    def test_from_a_main_module_without_its_guard_ends_with_the_whole_advice(self, script):
        path = script(
            "from elastic_core.launcher import launch\n"
            "def work():\n"
            "    return 1\n"
            "launch(work, nproc_per_node=1, max_restarts=3)\n"
        )
        ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 1
        report = " ".join(ran.stderr.partition("\n── run ")[2].partition("\nIncident: ")[0].split())
        assert "import or usage error: ConfigError: 'work': a worker imports" in report
        assert 'Try: put what starts them below `if __name__ == "__main__":` Decision: stop (another try' in report

    @pytest.mark.parametrize(
        ("call", "said"),
        [
            (lambda: launch("train.py"), "script 'train.py' not found"),
            (lambda: launch(["true"], nproc=2), "launch() has no option 'nproc'. Try: nproc_per_node"),
            (lambda: launch(["true"], nproc_per_node=0), "--nproc-per-node: '0'; expected"),
            (lambda: elastic_launch(config(), "no-such-program")(), "program 'no-such-program' not found"),
            (lambda: elastic_launch(config(rdzv_backend="nope"), "true")(), "nope"),
        ],
    )
    def test_is_told_at_once_what_cannot_be(self, call, said):
        with pytest.raises(Exception, match=r"Try|nope") as caught:
            call()
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)


class TestRendezvous:
    @pytest.fixture
    def registered(self):
        class Mine(LocalRendezvous):
            api_version = 1

            def set_closed(self):
                raise OSError("the server is gone")

            def shutdown(self):
                raise OSError("the server is gone")

        registry.register("mine", Mine)
        yield "mine"
        registry.unregister("mine")

    def test_a_handler_that_cannot_be_shut_down_hides_no_failure(self, registered):
        with pytest.raises(ChildFailedError):
            elastic_launch(config(rdzv_backend=registered), "false")()
        assert elastic_launch(config(rdzv_backend=registered), "true")() == {0: None, 1: None}

    def test_one_of_ones_own_drives_the_agent(self):
        settings = RendezvousSettings(
            backend="mine", run_id="job", endpoint="", min_nodes=1, max_nodes=1, local_world_size=1
        )
        spec = WorkerSpec("r", 2, LocalRendezvous(settings), entrypoint="sh", args=("-c", "exit $RANK"), max_restarts=0)
        agent = LocalElasticAgent(spec)
        assert set(agent.run().failures) == {1}
        assert agent.get_event_succeeded().metadata["run_id"] == "job"


class TestAgent:
    def test_runs_as_it_stands(self):
        agent = LocalElasticAgent(WorkerSpec(role="trainer", local_world_size=3, entrypoint="true"))
        result = agent.run()
        assert (result.state, result.return_values) == (WorkerState.SUCCEEDED, {0: None, 1: None, 2: None})
        group = agent.get_worker_group()
        assert [worker.global_rank for worker in group.workers] == [0, 1, 2]
        assert (group.state, group.group_rank, group.group_world_size) == (WorkerState.SUCCEEDED, 0, 1)

    def test_a_failure_is_a_result(self):
        spec = WorkerSpec(role="t", local_world_size=2, entrypoint="sh", args=("-c", "exit $RANK"), max_restarts=0)
        result = LocalElasticAgent(spec).run()
        assert result.is_failed()
        assert {rank: each.exitcode for rank, each in result.failures.items()} == {1: 1}

    def test_a_subclass_with_hooks_of_its_own_has_them_called(self, capfd):
        calls = []

        class Mine(LocalElasticAgent):
            def _start_workers(self, worker_group):
                calls.append("start")
                return super()._start_workers(worker_group)

            def _stop_workers(self, worker_group):
                calls.append("stop")
                super()._stop_workers(worker_group)

        command = f"echo ${{local_rank}} $RANK $WORLD_SIZE $MASTER_ADDR $ROLE_NAME; {FAIL_ONCE_SH}"
        spec = WorkerSpec("t", 2, entrypoint="sh", args=("-c", command), max_restarts=1, monitor_interval=0.05)
        result = Mine(spec, shutdown_timeout=2).run()
        assert (result.state, result.return_values) == (WorkerState.SUCCEEDED, {0: None, 1: None})
        assert calls == ["start", "stop", "start"]
        assert set(capfd.readouterr().out.split("\n")) == {"0 0 2 127.0.0.1 t", "1 1 2 127.0.0.1 t", ""}
        results = Mine(WorkerSpec("t", 2, entrypoint=functions.add, args=(1,), monitor_interval=0.05)).run()
        assert results.return_values == {0: 2, 1: 2}

    def test_a_worker_stuck_in_the_kernel_ends_the_run_without_a_restart(self, monkeypatch, tmp_path):
        monkeypatch.setattr(sleep_hook, "sleep_serial", lambda pid, proc="/proc": 7)
        monkeypatch.setattr(sleep_hook, "sleep_place", lambda pid, proc="/proc": "nfs_wait")
        spec = WorkerSpec(role="t", local_world_size=1, entrypoint="sleep", args=("60",), max_restarts=3)
        result = LocalElasticAgent(spec, uninterruptible_state_timeout=0.3, shutdown_timeout=1).run()
        assert result.is_failed()
        assert "rank 0: in uninterruptible sleep for" in result.failures[0].message
        assert "(nfs_wait)" in result.failures[0].message
        assert result.failures[0].exitcode != 0


class TestHealth:
    def test_the_variable_has_probes_answered_while_the_run_goes_on(self, monkeypatch, tmp_path):
        port = free_port()
        monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", str(port))
        probe = (
            "import sys, urllib.request\n"
            f"with urllib.request.urlopen('http://127.0.0.1:{port}/health', timeout={patience(10)}) as answer:\n"
            "    open(sys.argv[1], 'wb').write(answer.read())\n"
        )
        launch([sys.executable, "-c", probe, str(tmp_path / "answer")], nproc_per_node=1)
        answer = json.loads((tmp_path / "answer").read_text())
        assert (answer["alive"], answer["timeout_s"]) == (True, 60)
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)

    def test_a_port_that_is_taken_is_a_line_and_the_run_goes_on(self, monkeypatch, capfd):
        taken = health_check_server.HealthCheckServer(lambda: 0, 0, 60)
        taken.start()
        taken_port = taken.port
        try:
            monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", str(taken.port))
            launch(["true"], nproc_per_node=1)
        finally:
            taken.stop()
        assert f"PORT={taken_port}: can't listen there (Address already in use); this agent" in capfd.readouterr().err

    @pytest.mark.parametrize("variable", ["HEALTH_CHECK_PORT", "UNINTERRUPTIBLE_STATE_TIMEOUT"])
    def test_a_variable_that_cannot_be_is_told(self, monkeypatch, variable):
        monkeypatch.setenv(f"TORCHELASTIC_{variable}", "soon")
        with pytest.raises(ConfigError, match=f"TORCHELASTIC_{variable}: 'soon'; expected"):
            launch(["true"], nproc_per_node=1)

    def test_another_server_can_take_its_place(self, monkeypatch):
        calls = []

        class Mine(health_check_server.HealthCheckServer):
            def start(self):
                calls.append("start")

            def stop(self):
                calls.append("stop")

        monkeypatch.setattr(health_check_server, "create_healthcheck_server", Mine)
        monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", "0")
        launch(["true"], nproc_per_node=1)
        monkeypatch.delenv("TORCHELASTIC_HEALTH_CHECK_PORT")
        elastic_launch(config(), "true", health_check_server=Mine(lambda: 0, 0, 60))()
        assert calls == ["start", "stop", "stop"]

    def test_an_agent_that_stands_still_is_dead(self):
        server = health_check_server.create_healthcheck_server(lambda: 0, 0, 60)
        server.start()
        try:
            code, answer = probed(f"http://127.0.0.1:{server.port}/")
            assert (code, json.loads(answer)["alive"]) == (503, False)
            assert probed(f"http://127.0.0.1:{server.port}/other")[0] == 404
        finally:
            server.stop()


def probed(url):
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(url, timeout=5)
    with caught.value as answer:
        return answer.code, answer.read()


NODE = """
import json, sys
from elastic_core.launcher import LaunchConfig, elastic_launch
from elastic_torchrun.processes.child_failed import ChildFailedError
config = LaunchConfig(**json.loads(sys.argv[1]))
try:
    print("results", elastic_launch(config, "sh")("-c", sys.argv[2]))
except ChildFailedError as error:
    rank, failure = error.get_first_failure()
    print("failed", rank, failure.exitcode, sorted(error.failures))
"""


class TestNodes:
    @pytest.fixture
    def nodes(self, tmp_path):
        """Start one caller of the library for each config; return what they print."""
        started = []

        def run(command, *configs):
            for number, own in enumerate(configs):
                (tmp_path / f"node{number}").mkdir(mode=0o700)
                started.append(
                    subprocess.Popen(
                        [sys.executable, "-c", NODE, json.dumps(own), command],
                        stdout=subprocess.PIPE,
                        text=True,
                        env=os.environ
                        | {
                            "XDG_RUNTIME_DIR": str(tmp_path / f"node{number}"),
                            "TMPDIR": str(tmp_path / f"node{number}"),
                        },
                    )
                )
            return sorted(each.communicate(timeout=60)[0] for each in started)

        yield run
        for each in started:
            each.kill()
            each.communicate()

    @pytest.fixture
    def redis(self, tmp_path):
        server = RedisServer(tmp_path / "redis")
        server.start()
        yield server.url
        server.stop()

    def shared(self, url, **changes):
        values = {"min_nodes": 2, "max_nodes": 2, "nproc_per_node": 1, "run_id": "two", "max_restarts": 0}
        return values | {"rdzv_backend": "redis", "rdzv_endpoint": url} | changes

    def test_each_has_the_results_of_its_own_ranks(self, nodes, redis):
        one = self.shared(redis)
        assert nodes("exit 0", one, one) == ["results {0: None}\n", "results {1: None}\n"]

    def test_all_name_the_failure_of_the_one(self, nodes, redis):
        one = self.shared(redis)
        out = nodes("[ $RANK = 0 ] && exit 7; sleep 60", one, one)
        assert out == ["failed 0 7 [0]\n", "failed 0 7 [0]\n"]

    def test_ranks_by_hand(self, nodes):
        endpoint = f"127.0.0.1:{free_port()}"
        both = [
            self.shared(endpoint, rdzv_backend="static", rdzv_configs={"rank": rank, "timeout": 60}, nproc_per_node=2)
            for rank in (0, 1)
        ]
        assert nodes("exit 0", *both) == ["results {0: None, 1: None}\n", "results {2: None, 3: None}\n"]

    def test_nobody_to_meet(self):
        lone = self.shared(f"redis://127.0.0.1:{free_port()}", rdzv_configs={"connect_timeout": 1})
        with pytest.raises(RendezvousConnectionError, match="could not be reached"):
            elastic_launch(LaunchConfig(**lone), "true")()


def test_a_run_that_a_hook_refuses_is_an_error(monkeypatch):
    class Refuses(AgentHook):
        api_version = 1
        powers = frozenset({Power.REFUSAL})

        def on_joining(self, event):
            return Refuse(reason="not today")

    hook = NamedHook(name="refuses", distribution="in code", hook=Refuses(HookSettings(name="refuses")))
    monkeypatch.setattr(PluginRegistry, "make_hooks", lambda self, settings, options: ([hook], []))
    with pytest.raises(ElasticError, match="not today") as caught:
        launch(["true"], nproc_per_node=1, join_timeout=0.1)
    assert caught.value.exit_code != 0


def test_what_is_not_used_is_not_imported():
    code = (
        "import sys, elastic_core.launcher, elastic_core.compat.elastic.agent.server\n"
        "early = {'elastic_torchrun.launcher.api', 'elastic_core.options.resolve', 'dataclasses'}\n"
        "assert not early & set(sys.modules)\n"
        "from elastic_core.launcher import launch\n"
        "from elastic_core.compat.elastic.agent.server import WorkerSpec\n"
        "from elastic_core.compat.elastic.agent.server.local_elastic_agent import LocalElasticAgent\n"
        "WorkerSpec('r', 1, entrypoint='true')\n"
        "assert not {'torch', 'numpy', 'http.server', 'elastic_core.launcher.job'} & set(sys.modules)\n"
        "launch(['true'])\n"
        "assert not {'torch', 'numpy', 'http.server'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=patience(30))
