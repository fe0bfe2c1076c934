"""`elastic_core.run` and `elastic_core.launch`: torch's functions around its parser, and the twin of old."""

import os
import subprocess
import sys

import pytest

from elastic_core import launch as twin
from elastic_core.compat import launch as compat_launch
from elastic_core.compat import run as compat_run
from elastic_core.compat.elastic.multiprocessing import Std
from elastic_core.errors import ConfigError
from elastic_core.launcher import elastic_launch
from elastic_torchrun.launcher.torchs_parser import settings_of_args
from elastic_torchrun.processes.child_failed import ChildFailedError
from ports import free_port

SCRIPT = """
import os, sys
os.write(1, f"{' '.join(sys.argv[1:])} rank {os.environ['LOCAL_RANK']}\\n".encode())  # whole lines: two share a pipe
sys.exit(int(os.environ.get("CODE", "0")))
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PET_")]:
        monkeypatch.delenv(name)
    return tmp_path


def as_process(module, *words, env=None):
    command = [sys.executable, "-m", module, *words]
    return subprocess.run(command, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=60)


class TestParser:
    def test_variables_give_defaults_and_the_line_beats_them(self, monkeypatch):
        monkeypatch.setenv("PET_MAX_RESTARTS", "3")
        monkeypatch.setenv("PET_STANDALONE", "yes")
        args = compat_run.parse_args(["--nnodes", "2", "train.py", "--nnodes", "9"])
        assert (args.max_restarts, args.standalone, args.nnodes) == (3, True, "2")
        assert (args.training_script, args.training_script_args) == ("train.py", ["--nnodes", "9"])
        assert compat_run.parse_args(["--max-restarts", "0", "train.py"]).max_restarts == 0

    def test_what_may_be_repeated_is_gathered_in_place_of_the_variable(self, monkeypatch):
        monkeypatch.setenv("PET_METRICS_HANDLER", "console")
        assert compat_run.parse_args(["t.py"]).metrics_handler == ["console"]
        given = compat_run.parse_args(["--metrics-handler", "null", "--metrics-handler", "jsonl:m", "t.py"])
        assert given.metrics_handler == ["null", "jsonl:m"]

    def test_a_program_may_add_options_of_its_own(self, here):
        parser = compat_run.get_args_parser()
        parser.add_argument("--queue")
        args = parser.parse_args(["--queue", "long", "train.py"])
        assert args.queue == "long"
        compat_run.run(args)

    @pytest.mark.parametrize(("text", "nodes"), [("3", (3, 3)), ("2:8", (2, 8))])
    def test_node_counts(self, text, nodes):
        assert compat_run.parse_min_max_nnodes(text) == nodes

    def test_node_counts_that_cannot_be(self):
        with pytest.raises(RuntimeError, match="MIN:MAX"):
            compat_run.parse_min_max_nnodes("1:2:3")

    def test_worker_counts(self):
        assert compat_run.determine_local_world_size("4") == 4
        assert compat_run.determine_local_world_size("cpu") == len(os.sched_getaffinity(0))
        with pytest.raises(ValueError, match="'many'"):
            compat_run.determine_local_world_size("many")

    def test_the_endpoint_of_static_is_the_masters(self):
        args = compat_run.parse_args(["--master-addr", "n0", "train.py"])
        assert compat_run.get_rdzv_endpoint(args) == "n0:29500"


class TestConfig:
    def test_has_what_the_line_says(self):
        line = "--nnodes 2:4 --nproc-per-node 3 --rdzv-backend c10d --rdzv-endpoint n0:1 --rdzv-id j --rdzv-conf a=b=c"
        args = compat_run.parse_args([*line.split(), "-r", "3", "--numa-binding", "node", "-m", "pkg.mod", "x"])
        config, command, arguments = compat_run.config_from_args(args)
        assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (2, 4, 3)
        assert (config.rdzv_endpoint, config.run_id, config.rdzv_configs) == ("n0:1", "j", {"a": "b=c"})
        assert config.logs_specs.chosen[1] == Std.ALL
        assert config.numa_options.affinity_mode.value == "node"
        assert (command, arguments) == (sys.executable, ["-u", "-m", "pkg.mod", "x"])

    def test_leaves_the_environment_alone(self, monkeypatch):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        compat_run.config_from_args(compat_run.parse_args(["--nproc-per-node", "2", "train.py"]))
        assert "OMP_NUM_THREADS" not in os.environ

    def test_static_has_the_nodes_rank(self):
        args = compat_run.parse_args(["--nnodes", "2", "--node-rank", "1", "train.py"])
        assert compat_run.config_from_args(args)[0].rdzv_configs == {"rank": 1}

    def test_is_what_elastic_launch_takes(self, here):
        port = free_port()
        args = compat_run.parse_args(["--nproc-per-node", "2", "--master-port", str(port), "train.py", "x"])
        config, command, arguments = compat_run.config_from_args(args)
        assert elastic_launch(config=config, entrypoint=command)(*arguments) == {0: None, 1: None}

    def test_a_function_for_run_path_and_a_program_for_no_python(self):
        assert compat_run.config_from_args(compat_run.parse_args(["--run-path", "/t.py", "x"]))[1:] == (
            compat_run.run_script_path,
            ["/t.py", "x"],
        )
        assert compat_run.config_from_args(compat_run.parse_args(["--no-python", "prog", "x"]))[1:] == ("prog", ["x"])


class TestRun:
    def test_a_failure_is_an_exception_with_the_exit_code(self, here, monkeypatch):
        monkeypatch.setenv("CODE", "7")
        with pytest.raises(ChildFailedError) as caught:
            compat_run.main(["--nproc-per-node", "1", "train.py"])
        assert caught.value.get_first_failure()[1].exitcode == 7

    def test_our_own_options_count(self, here):
        settings = settings_of_args(compat_run.parse_args(["--hang-timeout", "60", "--debug-rank", "0", "train.py"]))
        assert settings.workers.debug_rank == 0
        settings = settings_of_args(compat_run.parse_args(["--hang-timeout", "60", "train.py"]))
        assert settings.hook_options == {"hang_timeout": 60.0}


class TestTwin:
    @pytest.mark.filterwarnings("default::FutureWarning")
    def test_scripts_get_their_local_rank_first(self, here):
        done = as_process("elastic_core.launch", "--nproc_per_node", "2", "train.py", "--lr", "1")
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == ["--local-rank=0 --lr 1 rank 0", "--local-rank=1 --lr 1 rank 1"]
        assert "FutureWarning" in done.stderr

    def test_not_with_use_env_and_what_is_the_scripts_stays_the_scripts(self, here):
        done = as_process("elastic_core.compat.launch", "--use_env", "train.py", "--use-env")
        assert (done.returncode, done.stdout) == (0, "--use-env rank 0\n"), done.stderr

    def test_a_program_needs_use_env(self):
        done = as_process("elastic_core.launch", "echo", env={"PET_NO_PYTHON": "1"})
        assert done.returncode == 2
        assert "elastic: error: --no-python: a program is not given --local-rank. Try: --use-env" in done.stderr
        with pytest.raises(ConfigError, match="--use-env"):
            twin.launch(twin.parse_args(["--no-python", "echo"]))

    def test_as_a_function_it_warns(self, here, capfd):
        with pytest.warns(FutureWarning, match="deprecated"):
            compat_launch.main(["train.py", "a"])
        assert capfd.readouterr().out == "--local-rank=0 a rank 0\n"

    def test_mistakes_are_told_as_by_the_command(self):
        done = as_process("elastic_core.launch", "--bogus", "train.py")
        assert done.returncode == 2
        assert "no such option: --bogus" in done.stderr


def test_both_commands_of_the_module_run(here):
    for module in ("elastic_core.run", "elastic_core.compat.run"):
        done = as_process(module, "train.py", "x")
        assert (done.returncode, done.stdout) == (0, "x rank 0\n"), done.stderr
