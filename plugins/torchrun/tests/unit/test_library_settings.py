"""What a library call was given becomes the settings that a command line would have made."""

import os
import re
import sys
from functools import partial

import pytest

from elastic_core.compat.elastic.agent.server import WorkerSpec
from elastic_core.compat.elastic.multiprocessing import DefaultLogsSpecs, Std
from elastic_core.errors import ConfigError
from elastic_core.launcher import LaunchConfig
from elastic_torchrun.launcher.entrypoints import entry_of, friendly_entry
from elastic_torchrun.launcher.run_settings import (
    brings_logs,
    settings_of_config,
    settings_of_options,
    settings_of_spec,
)


def train(*args):
    return args


ENTRY = entry_of(train, ())


def settings(**config):
    return settings_of_config(LaunchConfig(**({"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 2} | config)), ENTRY)


class TestConfig:
    def test_defaults_are_torchs_and_one_node_meets_nobody(self):
        made = settings()
        assert (made.restarts.max_restarts, made.nodes.role, made.nodes.monitor_interval_s) == (3, "default_role", 0.1)
        assert (made.nodes.backend, made.nodes.local_world_size, made.stops.shutdown_timeout_s) == ("local", 2, 30.0)
        assert made.nodes.run_id
        assert made.workers.omp_threads is None  # torch's library leaves it alone, too
        assert made.notices == ()

    def test_everything_is_taken(self):
        made = settings(
            min_nodes=2,
            max_nodes=4,
            run_id="job",
            role="trainer",
            rdzv_backend="redis",
            rdzv_endpoint="redis://h:1",
            rdzv_configs={"join_timeout": 7, "tls_ca": "a,b"},
            max_restarts=5,
            monitor_interval=0.5,
            log_line_prefix_template="[${rank}]",
            local_addr="10.0.0.1",
            signals_to_handle="SIGTERM",
            duplicate_stdout_filters=["a,b", "c"],
            shutdown_timeout=3,
        )
        assert (made.nodes.min_nodes, made.nodes.max_nodes, made.nodes.run_id, made.nodes.role) == (
            2,
            4,
            "job",
            "trainer",
        )
        assert (made.nodes.backend, made.nodes.endpoint) == ("redis", "redis://h:1")
        assert made.rdzv_conf == {"join_timeout": "7", "tls_ca": "a,b"}
        assert (made.restarts.max_restarts, made.nodes.monitor_interval_s, made.stops.shutdown_timeout_s) == (
            5,
            0.5,
            3.0,
        )
        assert (made.output.log_line_prefix_template, made.nodes.local_addr) == ("[${rank}]", "10.0.0.1")
        assert made.stops.signals_to_handle == ("SIGTERM",)
        assert made.output.duplicate_stdout_filters == ("a,b", "c")

    def test_static_takes_its_rank_and_its_address_where_torch_has_them(self):
        made = settings(max_nodes=2, rdzv_backend="static", rdzv_endpoint="node0:29501", rdzv_configs={"rank": 1})
        assert (made.nodes.node_rank, made.nodes.master_addr, made.nodes.master_port) == (1, "node0", 29501)
        assert "rank" not in made.rdzv_conf

    def test_the_caller_keeps_what_is_its_own(self, monkeypatch):
        monkeypatch.setenv("PET_NNODES", "7")
        before, configs = dict(os.environ), {"join_timeout": 7}
        config = LaunchConfig(1, 1, 2, rdzv_configs=configs, rdzv_timeout=9)
        assert config.rdzv_configs == {"join_timeout": 7, "timeout": 9}
        settings_of_config(config, ENTRY)
        assert configs == {"join_timeout": 7}
        assert config.run_id == ""
        assert config.logs_specs is None
        assert dict(os.environ) == before

    def test_variables_of_the_command_line_do_not_count(self, monkeypatch):
        monkeypatch.setenv("PET_NNODES", "7")
        monkeypatch.setenv("PET_MAX_RESTARTS", "9")
        made = settings()
        assert (made.nodes.max_nodes, made.restarts.max_restarts) == (1, 3)

    def test_the_grace_period_may_come_from_the_environment(self, monkeypatch):
        monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "4")
        assert settings().stops.shutdown_timeout_s == 4.0
        monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon")
        with pytest.raises(ConfigError, match="expected whole seconds"):
            settings()

    def test_what_cannot_be_is_refused(self):
        with pytest.raises(ValueError, match="shutdown_timeout is -1 s"):
            LaunchConfig(1, 1, 1, shutdown_timeout=-1)
        with pytest.raises(ConfigError, match="min_nodes is 3, max_nodes is 2"):
            settings(min_nodes=3, max_nodes=2)

    def test_several_nodes_may_have_no_run_id(self, caplog):
        first, second = (settings(max_nodes=2, rdzv_backend="redis").nodes.run_id for _ in range(2))
        assert first != second
        assert [first in text or second in text for text in caplog.messages] == [True, True]
        assert settings(max_nodes=2, rdzv_backend="static", rdzv_endpoint="h:1").nodes.run_id == "none"

    @pytest.mark.parametrize(
        ("endpoint", "taken"),
        [("", "localhost"), ("h", "h"), ("h:7", "h:7"), ("h:0", r"h:\d+"), ("[::1]:0", r"\[::1\]:\d+"), ("::0", "::0")],
    )
    def test_several_nodes_may_have_no_port(self, endpoint, taken):
        made = settings(max_nodes=2, rdzv_backend="c10d", rdzv_endpoint=endpoint, run_id="r")
        assert re.fullmatch(taken, made.nodes.endpoint)
        assert not made.nodes.endpoint.endswith(":0") or endpoint == "::0"

    @pytest.mark.parametrize(
        ("specs", "log_dir", "redirects", "tee"),
        [
            (None, None, "0", "0"),
            (DefaultLogsSpecs(), None, "0", "0"),
            (DefaultLogsSpecs(log_dir="/tmp", redirects=Std.ALL), "/tmp", "3", "0"),
            (DefaultLogsSpecs(log_dir="/tmp", tee={0: Std.OUT, 1: Std.ERR}), "/tmp", "0", "0:1,1:2"),
        ],
    )
    def test_torchs_default_logs_are_options(self, specs, log_dir, redirects, tee):
        assert not brings_logs(specs)
        made = settings(logs_specs=specs)
        assert (made.output.log_dir, made.output.redirects, made.output.tee) == (log_dir, redirects, tee)

    def test_logs_whose_place_only_the_object_knows_are_its_own(self):
        assert brings_logs(DefaultLogsSpecs(redirects=Std.ALL))
        assert brings_logs(object())


def test_a_spec():
    spec = WorkerSpec(role="r", local_world_size=3, entrypoint=train, master_addr="h", master_port=5, max_restarts=1)
    made = settings_of_spec(spec, ENTRY, logs_specs=None)
    assert (made.nodes.role, made.nodes.local_world_size, made.restarts.max_restarts) == ("r", 3, 1)
    assert (made.nodes.master_addr, made.nodes.master_port) == ("h", 5)


class TestOptions:
    def test_options_are_those_of_the_command_line(self, tmp_path):
        made = settings_of_options(
            {
                "nproc_per_node": 4,
                "nnodes": (1, 3),
                "rdzv_backend": "redis",
                "run_id": "job",
                "rdzv_conf": {"join_timeout": 7},
                "policy_conf": {"a": 1},
                "redirects": {0: Std.OUT},
                "max_restarts": None,
                "agent_store": False,
            },
            ENTRY,
        )
        assert (made.nodes.local_world_size, made.nodes.min_nodes, made.nodes.max_nodes, made.nodes.run_id) == (
            4,
            1,
            3,
            "job",
        )
        assert made.rdzv_conf == {"join_timeout": "7"}
        assert made.output.redirects == "0:1"
        assert not made.hook_options

    def test_a_log_directory_alone_has_output_in_it(self, tmp_path):
        assert settings_of_options({"log_dir": tmp_path}, ENTRY).output.tee == "3"
        assert settings_of_options({"log_dir": tmp_path, "redirects": 1}, ENTRY).output.tee == "0"

    @pytest.mark.parametrize("name", ["nproc", "debug_rank", "module"])
    def test_an_unknown_option_is_refused(self, name):
        with pytest.raises(ConfigError, match=rf"launch\(\) has no option '{name}'. Try: "):
            settings_of_options({name: "1"}, ENTRY)


class TestEntry:
    def test_a_function_and_its_arguments(self):
        entry = entry_of(partial(train, 1), ("a",), start_method="fork")
        assert entry.function is not None
        assert (entry.function.args, entry.function.start_method) == (("a",), "fork")
        assert entry.name == "train"

    def test_the_local_rank_in_a_functions_arguments(self):
        made = settings_of_options({"nproc_per_node": 2}, entry_of(train, ("gpu${local_rank}", 5)))
        assert made.entrypoint.function is not None
        assert [made.entrypoint.function.args_of(rank) for rank in (0, 1)] == [("gpu0", 5), ("gpu1", 5)]

    def test_a_program_and_its_arguments(self):
        entry = entry_of("sh", ("-c", "true", 5))
        assert (entry.argv, entry.python, entry.name) == (("sh", "-c", "true", "5"), False, "sh")

    def test_python_is_known_by_its_name(self):
        entry = entry_of(sys.executable, ("-u", "train.py", "--lr", 1))
        assert (entry.python, entry.name) == (True, "train.py")

    def test_a_script_and_a_list(self, tmp_path):
        script = tmp_path / "train.py"
        script.touch()
        entry = friendly_entry(script, ("--lr", 1), start_method="spawn", environ={})
        assert entry.argv == (sys.executable, "-u", str(script), "--lr", "1")
        entry = friendly_entry(["sh", "-c"], ("true",), start_method="spawn")
        assert entry.argv == ("sh", "-c", "true")

    @pytest.mark.parametrize("nothing", [None, "", 5])
    def test_nothing_is_no_entrypoint(self, nothing):
        with pytest.raises(ConfigError, match="expected a function or a program"):
            entry_of(nothing, ())

    @pytest.mark.parametrize("nothing", [[], 5])
    def test_nothing_can_be_launched(self, nothing):
        with pytest.raises(ConfigError, match="expected"):
            friendly_entry(nothing, (), start_method="spawn")
