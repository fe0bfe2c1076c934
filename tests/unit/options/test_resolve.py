"""What `elastic run` makes of its options: values, origins, notices, and one-line errors."""

import os
import sys

import pytest

from elastic_core.accelerators.nvml import NvidiaGpus
from elastic_core.errors import ConfigError, PluginError
from elastic_core.options.devices import Node
from elastic_core.options.resolve import resolve
from elastic_core.options.table import OPTIONS
from elastic_core.plugins import torch_side


class FakeNode(Node):
    """A node with as many NVIDIA GPUs as the test says."""

    def __init__(self, environ, gpus=0, kinds=frozenset(("cuda",))):
        super().__init__(environ)
        self.gpus = gpus
        self.kinds = kinds

    def nvidia(self, *, with_uuids=False):
        return NvidiaGpus(count=self.gpus)

    def rocm(self):
        return 0

    def has_intel_gpu(self):
        return False

    def torch_kinds(self):
        return self.kinds


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("print('hello')\n")
    return str(path)


@pytest.fixture
def run(script):
    def run(*, gpus=0, environ=None, arguments=(), **given):
        variables = {"PATH": os.environ["PATH"], **(environ or {})}
        return resolve(given, script, arguments, environ=variables, node=FakeNode(variables, gpus))

    return run


def refused(run, **options):
    with pytest.raises(ConfigError) as raised:
        run(**options)
    text = str(raised.value)
    assert "\n" not in text
    assert raised.value.exit_code == 2
    return text


# --- origins and variables ---


def test_defaults_are_torchruns(run, script):
    resolution = run()
    settings = resolution.settings
    assert settings.entrypoint.argv == (sys.executable, "-u", script)
    assert (settings.nodes.min_nodes, settings.nodes.max_nodes, settings.nodes.local_world_size) == (1, 1, 1)
    assert (settings.restarts.max_restarts, settings.nodes.monitor_interval_s, settings.stops.shutdown_timeout_s) == (
        0,
        0.1,
        30.0,
    )
    assert (settings.output.redirects, settings.output.tee, settings.nodes.role, settings.output.log_dir) == (
        "0",
        "0",
        "default",
        None,
    )
    assert settings.stops.signals_to_handle == ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    assert settings.notices == ()
    assert resolution.origins["restarts.max_restarts"] == "default"


def test_command_line_beats_variable_beats_default(run):
    environ = {"PET_MAX_RESTARTS": "3", "PET_ROLE": "", "PET_NNODES": "1"}
    resolution = run(environ=environ, max_restarts="5")
    assert resolution.settings.restarts.max_restarts == 5
    assert resolution.origins["restarts.max_restarts"] == "flag --max-restarts"
    assert resolution.origins["nodes.min_nodes"] == "env PET_NNODES"
    assert (resolution.settings.nodes.role, resolution.origins["nodes.role"]) == (
        "default",
        "default",
    )  # empty counts as unset
    assert run(environ=environ).settings.restarts.max_restarts == 3


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_flag_variables_take_words(run, text):
    assert run(environ={"PET_STANDALONE": text}).origins["nodes.backend"] == "env PET_STANDALONE"


@pytest.mark.parametrize("text", ["0", "false", "No", ""])
def test_flag_variables_take_words_for_no(run, text):
    assert not run(environ={"PET_VIRTUAL_LOCAL_RANK": text}).settings.workers.virtual_local_rank


def test_bad_flag_variable_is_named(run):
    text = refused(run, environ={"PET_STANDALONE": "maybe"})
    assert text == "PET_STANDALONE: 'maybe'; expected yes or no. Try: 1 or 0 (also true or false, yes or no)"


@pytest.mark.parametrize(
    ("dest", "value", "needed"),
    [
        ("nnodes", "two", "a number of nodes or MIN:MAX"),
        ("nnodes", "1:2:3", "a number of nodes or MIN:MAX"),
        ("nnodes", "0", "0 < MIN <= MAX"),
        ("nnodes", "3:2", "0 < MIN <= MAX"),
        ("nproc_per_node", "0", "a whole number, 1 or more"),
        ("nproc_per_node", "-2", "a whole number, 1 or more"),
        ("nproc_per_node", "many", "a number from 1 up, or auto, gpu, cpu, xpu"),
        ("max_restarts", "-1", "a whole number, 0 or more"),
        ("max_restarts", "1.5", "a whole number, 0 or more"),
        ("monitor_interval", "0", "seconds, more than 0"),
        ("monitor_interval", "nan", "seconds, more than 0"),
        ("shutdown_timeout", "-1", "seconds, 0 or more"),
        ("shutdown_timeout", "inf", "seconds, 0 or more"),
        ("restart_window", "0", "seconds, more than 0"),
        ("restart_backoff", "soon", "seconds, 0 or more"),
        ("spares", "-1", "a whole number, 0 or more"),
        ("rdzv_attempt", "first", "a whole number, 0 or more"),
        ("max_membership_changes", "-1", "a whole number, 0 or more"),
        ("store_outage_grace", "-1", "seconds, 0 or more"),
        ("on_store_loss", "kep", "one of keep, fail"),
        ("join_timeout", "0", "seconds, more than 0"),
        ("connect_timeout", "soon", "seconds, more than 0"),
        ("fatal_exit_codes", "3,x", "codes or ranges from 1 to 255, not 'x'"),
        ("fatal_exit_codes", "9-3", "codes or ranges from 1 to 255, not '9-3'"),
        ("fatal_exit_codes", "256", "codes or ranges from 1 to 255, not '256'"),
        ("omp_threads", "0", "a whole number, 1 or more"),
        ("debug_rank", "1", "a whole number from 0 to 0"),
        ("start_method", "bogus", "one of spawn, fork, forkserver"),
        ("numa_binding", "sockets", "one of node, socket, exclusive, core-complex. Try: socket"),
        ("master_port", "70000", "a whole number from 0 to 65535"),
        ("node_rank", "first", "a whole number, 0 or more"),
    ],
)
def test_bad_values_are_named_the_same_from_flag_and_variable(run, dest, value, needed):
    name = dest.replace("_", "-")
    assert refused(run, **{dest: value}).startswith(f"--{name}: {value!r}; expected {needed}")
    variable = f"PET_{dest.upper()}"
    assert refused(run, environ={variable: value}).startswith(f"{variable}: {value!r}; expected {needed}")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("500ms", 0.5), ("90s", 90.0), ("2m", 120.0), ("1h", 3600.0)]
)
def test_times_may_have_a_unit_in_flag_and_variable(run, text, seconds):
    fields = {
        "monitor_interval": lambda settings: settings.nodes.monitor_interval_s,
        "shutdown_timeout": lambda settings: settings.stops.shutdown_timeout_s,
        "exit_timeout": lambda settings: settings.stops.exit_timeout_s,
        "restart_window": lambda settings: settings.restarts.restart_window_s,
        "restart_backoff": lambda settings: settings.restarts.restart_backoff_s,
        "store_outage_grace": lambda settings: settings.nodes.store_outage_grace_s,
        "join_timeout": lambda settings: settings.join_timeout_s,
        "connect_timeout": lambda settings: float(settings.rdzv_conf["connect_timeout"]),
        "hang_timeout": lambda settings: settings.hook_options["hang_timeout"],
    }
    by_flag = run(**ELASTIC, **dict.fromkeys(fields, text)).settings
    by_variable = run(**ELASTIC, environ={f"PET_{dest.upper()}": text for dest in fields}).settings
    for dest, field in fields.items():
        assert (dest, field(by_flag), field(by_variable)) == (dest, seconds, seconds)


def test_one_time_said_twice_in_two_units_is_one(run):
    settings = run(**ELASTIC, join_timeout="2m", rdzv_conf="join_timeout=120s").settings
    assert settings.rdzv_conf["join_timeout"] == "120"
    assert "disagree" in refused(run, **ELASTIC, join_timeout="2m", rdzv_conf="join_timeout=2s")


@pytest.mark.parametrize("dest", ["redirects", "tee", "local_ranks_filter"])
def test_bad_stream_options_are_named(run, dest):
    assert refused(run, **{dest: "7:9"}).startswith(f"--{dest.replace('_', '-')}: '7:9'")
    assert refused(run, environ={f"PET_{dest.upper()}": "7:9"}).startswith(f"PET_{dest.upper()}: '7:9'")


def test_every_option_names_a_setting_that_there_is(run):
    paths = {path for path, _ in run().values()}
    assert {row.field for row in OPTIONS if row.field} <= paths
    assert not [row.name for row in OPTIONS if row.read is not None and not row.field]


LINE_ALONE = {"dry_run", "verbose", "plugin", "print_completion"}


def test_every_option_with_a_variable_has_a_pet_name():
    for row in OPTIONS:
        assert row.env_name == ("" if row.name in LINE_ALONE else f"PET_{row.name.upper()}")


# --- rendezvous ---


def test_one_node_is_local_with_a_fresh_id(run):
    first, second = run().settings, run().settings
    assert (first.nodes.backend, first.nodes.master_addr, first.nodes.master_port) == ("local", None, None)
    assert first.nodes.run_id != second.nodes.run_id


def test_local_honours_the_master_address(run):
    settings = run(master_addr="[::1]", environ={"PET_MASTER_PORT": "29511"}).settings
    assert (settings.nodes.backend, settings.nodes.master_addr, settings.nodes.master_port) == ("local", "::1", 29511)
    assert run(rdzv_endpoint="h:1234").settings.nodes.master_port == 1234
    assert run(rdzv_endpoint="[fe80::1]:1234").settings.nodes.master_addr == "fe80::1"
    assert run(rdzv_endpoint="localhost:0").settings.nodes.master_port is None


@pytest.mark.parametrize("nnodes", ["1", "2"])
def test_a_url_without_its_backend_is_refused_and_not_shown(run, nnodes):
    text = refused(run, nnodes=nnodes, rdzv_endpoint="rediss://me:hunter2@host:6379")
    assert text == ("--rdzv-endpoint is a URL, and no backend that takes one was named. Try: --rdzv-backend redis")
    assert refused(run, nnodes=nnodes, rdzv_endpoint="tcp://host:1").endswith("Try: HOST:PORT")


def test_one_node_says_what_has_no_effect(run):
    settings = run(node_rank="1", rdzv_conf="timeout=9").settings
    assert settings.nodes.backend == "local"
    assert settings.notices == (
        "--node-rank without effect: there is one node",
        "--rdzv-conf without effect: one node needs no rendezvous",
    )


def test_static_by_name_with_an_endpoint_stays_static(run):
    settings = run(rdzv_backend="static", rdzv_endpoint="h:29500").settings
    assert (settings.nodes.backend, settings.nodes.master_addr, settings.nodes.master_port) == ("static", "h", 29500)
    assert run(rdzv_backend="static").settings.nodes.backend == "local"


def test_static_says_that_a_node_restarts_alone(run):
    several = {"nnodes": "2", "rdzv_endpoint": "10.0.0.1:29500"}
    (line,) = run(**several, max_restarts="3").settings.notices
    assert "a node restarts alone" in line
    assert run(**several, max_restarts="0").settings.notices == ()
    assert run(max_restarts="3").settings.notices == ()


def test_static_over_several_nodes_is_torchs(run):
    settings = run(nnodes="2", node_rank="1", master_addr="10.0.0.1").settings
    assert (settings.nodes.backend, settings.nodes.endpoint, settings.nodes.run_id) == (
        "static",
        "10.0.0.1:29500",
        "none",
    )
    assert (settings.nodes.node_rank, settings.nodes.master_addr, settings.nodes.master_port) == (1, "10.0.0.1", 29500)
    assert "a rank below the number of nodes, 2" in refused(run, nnodes="2", node_rank="2")
    assert "a port with static" in refused(run, nnodes="2", rdzv_endpoint="h")


def test_standalone_overrides_the_rendezvous_options(run):
    settings = run(standalone=True, rdzv_backend="redis", rdzv_id="x", master_port="1", nnodes="1:4").settings
    assert (settings.nodes.backend, settings.nodes.max_nodes, settings.nodes.master_port) == ("local", 1, None)
    assert settings.nodes.run_id != "x"
    assert settings.notices == (
        "--standalone is for one node: no other joins, though nnodes is 1:4",
        "--rdzv-backend, --rdzv-id overridden by --standalone",
        "--master-port without effect with 'standalone': only 'static' and a single node use it",
    )
    assert refused(run, standalone=True, nnodes="2").startswith("nnodes: 2:2; expected 1 with --standalone")


@pytest.mark.parametrize(("backend", "endpoint"), [("redis", ""), ("c10d", ""), ("c10d", "localhost:0")])
def test_a_backend_that_was_named_is_used_on_one_node_too(run, backend, endpoint):
    first, second = (run(rdzv_backend=backend, rdzv_endpoint=endpoint).settings for _ in range(2))
    assert (first.nodes.backend, first.nodes.endpoint, first.rdzv_conf, first.notices) == (backend, endpoint, {}, ())
    assert first.nodes.run_id != second.nodes.run_id
    assert run(rdzv_backend=backend, rdzv_id="job").settings.nodes.run_id == "job"


def test_other_backends_need_an_id_over_several_nodes(run):
    for backend in ("redis", "c10d"):
        assert refused(run, nnodes="2", rdzv_backend=backend) == (
            f"no run id is given; expected one, by which up to 2 nodes meet with rdzv-backend {backend!r}. "
            "Try: --rdzv-id NAME, the same on every node"
        )
    settings = run(
        nnodes="2:4", rdzv_backend="redis", rdzv_id="bert", rdzv_conf="a='b', c=d=e", master_addr="m", node_rank="1"
    ).settings
    assert (settings.nodes.backend, settings.nodes.run_id, settings.nodes.node_rank) == ("redis", "bert", 1)
    assert settings.rdzv_conf == {"a": "b", "c": "d=e"}
    assert settings.notices == ("--master-addr without effect with 'redis': only 'static' and a single node use it",)
    assert refused(run, nnodes="2", rdzv_backend="local").startswith(
        "nnodes: 2:2; expected 1 with --rdzv-backend 'local'"
    )


@pytest.mark.parametrize(
    ("conf", "text"), [("a=", "'a=' has no value"), ("=b", "'=…' has no key"), ("a", "'a' has no value")]
)
def test_bad_rdzv_conf_is_refused_without_showing_values(run, conf, text):
    assert refused(run, rdzv_conf=conf) == f"--rdzv-conf: {text}; expected KEY=VALUE. Try: KEY=VALUE,KEY=VALUE"
    assert refused(run, environ={"PET_RDZV_CONF": conf}).startswith("PET_RDZV_CONF: ")


# --- nodes that meet in a store ---

ELASTIC = {"nnodes": "2:4", "rdzv_backend": "redis", "rdzv_id": "bert"}


def test_defaults_of_a_run_with_a_store(run):
    resolution = run(**ELASTIC)
    settings = resolution.settings
    assert (settings.nodes.spares, settings.nodes.attempt, settings.nodes.allow_mismatch) == (None, 0, ())
    assert (settings.nodes.max_membership_changes, settings.nodes.store_outage_grace_s) == (None, 120.0)
    assert (settings.nodes.on_store_loss, settings.nodes.node_rank, settings.rdzv_conf) == ("keep", None, {})
    assert resolution.origins["nodes.attempt"] == "default"


def test_options_of_a_run_with_a_store_reach_the_settings(run):
    resolution = run(
        **ELASTIC,
        spares="0",
        rdzv_attempt="3",
        allow_mismatch=("role,nproc", "torch"),
        max_membership_changes="7",
        store_outage_grace="0.5",
        environ={"PET_ON_STORE_LOSS": "fail", "SLURM_RESTART_COUNT": "9"},
    )
    settings = resolution.settings
    assert (settings.nodes.spares, settings.nodes.attempt, settings.nodes.allow_mismatch) == (
        0,
        3,
        ("nproc", "role", "torch"),
    )
    assert (settings.nodes.max_membership_changes, settings.nodes.store_outage_grace_s) == (7, 0.5)
    assert (settings.nodes.on_store_loss, resolution.origins["nodes.on_store_loss"]) == (
        "fail",
        "env PET_ON_STORE_LOSS",
    )
    assert resolution.origins["nodes.attempt"] == "flag --rdzv-attempt"
    assert settings.notices == ()


def test_the_attempt_is_the_schedulers(run):
    resolution = run(**ELASTIC, environ={"SLURM_RESTART_COUNT": "2"})
    assert resolution.settings.nodes.attempt == 2
    assert resolution.origins["nodes.attempt"] == "derived: the scheduler's count"


def test_unknown_mismatch_names_the_nearest(run):
    assert refused(run, **ELASTIC, allow_mismatch=("nprocs",)).endswith("Try: --allow-mismatch nproc")


def test_timeouts_are_options_of_the_backend(run):
    settings = run(**ELASTIC, join_timeout="90", connect_timeout="1.5", rdzv_conf="lease_ttl=2").settings
    assert settings.rdzv_conf == {"lease_ttl": "2", "join_timeout": "90", "connect_timeout": "1.5"}
    same = run(**ELASTIC, join_timeout="90", rdzv_conf="join_timeout=90.0").settings
    assert float(same.rdzv_conf["join_timeout"]) == 90


def test_a_timeout_given_twice_must_be_the_same(run):
    assert refused(run, **ELASTIC, join_timeout="90", rdzv_conf="join_timeout=60") == (
        "--join-timeout 90 and join_timeout=60 in --rdzv-conf disagree. Try: one of them"
    )
    variables = {"PET_JOIN_TIMEOUT": "90", "PET_RDZV_CONF": "join_timeout=60"}
    assert refused(run, **ELASTIC, environ=variables).startswith("PET_JOIN_TIMEOUT 90 and join_timeout=60 in PET_RDZV")
    # The command line beats a variable, whichever of the two it is.
    by_flag = run(**ELASTIC, join_timeout="5", environ=variables).settings
    by_conf = run(**ELASTIC, rdzv_conf="join_timeout=6", environ=variables).settings
    assert (by_flag.rdzv_conf, by_conf.rdzv_conf) == ({"join_timeout": "5"}, {"join_timeout": "6"})


@pytest.mark.parametrize(
    ("options", "backend"),
    [
        ({}, "local"),
        ({"rdzv_backend": "local"}, "local"),
        ({"nnodes": "2", "rdzv_endpoint": "h:1"}, "static"),
        ({"standalone": True}, "standalone"),
    ],
)
def test_without_a_store_its_options_have_no_effect(run, options, backend):
    settings = run(**options, connect_timeout="5", environ={"PET_SPARES": "1"}).settings
    assert f"PET_SPARES, --connect-timeout without effect with {backend!r}: there is no store in which nodes meet" in (
        settings.notices
    )
    assert settings.rdzv_conf == {}


# --- workers ---


def test_omp_threads_follow_torchs_default(run, monkeypatch):
    assert run().settings.workers.omp_threads is None
    settings = run(nproc_per_node="2").settings
    assert settings.workers.omp_threads == 1
    assert settings.notices == (
        "OMP_NUM_THREADS is unset: each of the 2 workers gets 1 thread. Try: --omp-threads auto",
    )
    kept = run(nproc_per_node="2", environ={"OMP_NUM_THREADS": "7"}).settings
    assert (kept.workers.omp_threads, kept.notices) == (None, ())
    assert run(nproc_per_node="2", omp_threads="5", environ={"OMP_NUM_THREADS": "7"}).settings.workers.omp_threads == 5
    monkeypatch.setattr("elastic_core.options.worker_options.usable_cores", lambda: 9)
    assert run(nproc_per_node="4", omp_threads="auto").settings.workers.omp_threads == 2
    assert run(nproc_per_node="16", omp_threads="auto").settings.workers.omp_threads == 1


def test_workers_follow_the_devices(run):
    assert run(nproc_per_node="gpu", gpus=4).settings.nodes.local_world_size == 4
    assert run(nproc_per_node="auto", gpus=4).settings.nodes.local_world_size == 4
    sources = [run(nproc_per_node=text, gpus=4).settings.workers.nproc_source for text in ("auto", "cpu", "4")]
    assert sources == ["auto", "cpu", ""]
    assert run(devices="1,3", gpus=4).settings.workers.nproc_source == "--devices"
    assert run().settings.workers.nproc_source == ""
    assert run(nproc_per_node="auto").settings.nodes.local_world_size == len(os.sched_getaffinity(0))
    assert run(nproc_per_node="cpu").settings.nodes.local_world_size == len(os.sched_getaffinity(0))
    text = refused(run, nproc_per_node="gpu")
    assert text.startswith("--nproc-per-node 'gpu': no CUDA on this node. Try: ")
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    assert "CUDA_VISIBLE_DEVICES=''" in refused(run, nproc_per_node="gpu", gpus=4, environ=hidden)


def test_devices_set_the_number_of_workers(run):
    resolution = run(devices="1,3,5", gpus=8)
    assert resolution.settings.workers.devices == ("1", "3", "5")
    assert resolution.settings.nodes.local_world_size == 3
    assert resolution.origins["nodes.local_world_size"] == "derived: one per device of --devices"
    assert run(devices="1,3,5", gpus=8, nproc_per_node="2").settings.nodes.local_world_size == 2
    assert run(devices="1,3", gpus=8, nproc_per_node="gpu").settings.nodes.local_world_size == 2
    assert any(
        "2 in --devices for 3 workers" in line
        for line in run(devices="1,3", gpus=8, nproc_per_node="3").settings.notices
    )
    assert run(devices="GPU-aa,GPU-bb", gpus=8).settings.workers.devices == ("GPU-aa", "GPU-bb")


def test_devices_count_within_an_inherited_list(run):
    environ = {"CUDA_VISIBLE_DEVICES": "4,5,6"}
    assert run(devices="0,2", gpus=8, environ=environ).settings.workers.devices == ("4", "6")
    assert refused(run, devices="3", gpus=8, environ=environ) == (
        "--devices: '3'; expected numbers within CUDA_VISIBLE_DEVICES='4,5,6'. "
        "Try: numbers from 0 to 2, or unset CUDA_VISIBLE_DEVICES"
    )


@pytest.mark.parametrize("devices", ["", "1,1", "a", "1,,2", "1,GPU-aa", "-1"])
def test_malformed_devices_are_refused(run, devices):
    assert "expected different device numbers" in refused(run, devices=devices, gpus=8)


def test_absent_devices_are_refused(run):
    assert "this node, which has 2 (cuda, says the driver)" in refused(run, devices="1,2", gpus=2)
    assert "which has none" in refused(run, devices="0")
    text = refused(run, devices="0,1", gpus=2, nproc_per_node="3", virtual_local_rank=True)
    assert text.startswith("--virtual-local-rank gives each worker one device: 2 in --devices for 3 workers")


def test_too_few_inherited_devices_are_refused_where_each_worker_has_its_own(run):
    options = {"nproc_per_node": "2", "virtual_local_rank": True}
    text = refused(run, environ={"CUDA_VISIBLE_DEVICES": "3"}, gpus=4, **options)
    assert text.startswith("--virtual-local-rank gives each worker one device: 1 in CUDA_VISIBLE_DEVICES='3' for 2")
    assert run(environ={"CUDA_VISIBLE_DEVICES": "3,1"}, gpus=4, **options).settings.nodes.local_world_size == 2
    assert run(environ={}, **options).settings.nodes.local_world_size == 2
    text = refused(run, environ={"HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "0,1"}, gpus=4, **options)
    assert "1 in HIP_VISIBLE_DEVICES='3' for 2" in text
    settings = run(environ={"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "0,1"}, gpus=4, **options).settings
    assert settings.workers.device_variable == "CUDA_VISIBLE_DEVICES"  # an empty one counts as absent


# --- signals, restarts, plugins ---


def test_unknown_signals_are_left_out_with_a_line(run):
    settings = run(signals_to_handle="SIGTERM, usr1,SIGUSR3,SIGKILL").settings
    assert settings.stops.signals_to_handle == ("SIGTERM", "SIGUSR1")
    assert settings.notices == (
        "--signals-to-handle: no signal is called 'SIGUSR3'; left out. Try: SIGUSR2",
        "--signals-to-handle: SIGKILL can't be handled by any process; left out",
    )


def test_schedulers_notice_ends_the_run_and_is_not_passed_on(run):
    stops = run(preemption_signal="usr1").settings.stops
    assert (stops.preemption_signal, 10 in stops.ending, 10 in stops.forwarded) == ("SIGUSR1", True, False)
    stops = run().settings.stops
    assert (stops.preemption_signal, 10 in stops.ending, 10 in stops.forwarded) == ("", False, True)
    for name in ("KILL", "SIGSTOP", "CHLD", "USR3"):
        assert "expected the name of a signal that a process can handle" in refused(run, preemption_signal=name)


def test_shutdown_timeout_falls_back_to_torchs_variable(run):
    environ = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}
    resolution = run(environ=environ)
    assert resolution.settings.stops.shutdown_timeout_s == 7
    assert resolution.origins["stops.shutdown_timeout_s"] == "env TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    assert run(environ=environ, shutdown_timeout="2").settings.stops.shutdown_timeout_s == 2
    assert refused(run, environ={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "x"}).startswith(
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT: 'x'; expected seconds"
    )


def test_own_options_reach_the_settings(run, tmp_path):
    settings = run(
        fatal_exit_codes="3, 64-66",
        restart_window="60",
        restart_backoff="0",
        policy="rules",
        policy_conf=("a=b", "c=d,e=f"),
        plugin=("no:chatty",),
        node_id="n0",
        no_worker_hooks=True,
        debug_rank="0",
        run_dir=str(tmp_path / "new"),
    ).settings
    assert settings.restarts.fatal_exit_codes == (3, 64, 65, 66)
    assert (settings.restarts.restart_window_s, settings.restarts.restart_backoff_s) == (60.0, 0.0)
    assert (settings.restarts.name, settings.policy_conf) == ("rules", {"a": "b", "c": "d", "e": "f"})
    assert (settings.disabled_plugins, settings.nodes.node_id) == (("chatty",), "n0")
    assert (settings.workers.worker_hooks, settings.workers.debug_rank) == (False, 0)
    assert not (tmp_path / "new").exists()  # resolving makes nothing
    assert refused(run, plugin=("chatty",)) == (
        "-p: 'chatty'; expected no:NAME, to leave the hook NAME out, NAME:KEY=VALUE for its options, or module:Class "
        "for another. Try: -p no:chatty"
    )


def test_hooks_are_named_with_their_options(run):
    words = ("no:chatty", "diary:path=a:b=c,every=3s", "mine.gate:Gate", "diary:path=/x", "mine:Log:url=http://h:1/")
    settings = run(plugin=words).settings
    assert settings.disabled_plugins == ("chatty",)
    assert settings.hooks == {
        "diary": {"path": "/x", "every": "3s"},
        "mine.gate:Gate": {},
        "mine:Log": {"url": "http://h:1/"},
    }


@pytest.mark.parametrize("text", ["chatty", "no:", ":x=1", "x=1", "a:", ":a"])
def test_other_words_about_hooks_are_refused(run, text):
    assert refused(run, plugin=(text,)).startswith(f"-p: {text!r}; expected no:NAME")


def test_an_option_of_a_hook_needs_key_and_value(run):
    assert "'path=' has no value" in refused(run, plugin=("diary:path=",))


def test_a_prefix_is_the_options_then_its_variables_then_that_of_torchs_agent(run):
    field = "output.log_line_prefix_template"
    environ = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "agent"}
    resolution = run(environ=environ)
    assert resolution.settings.output.log_line_prefix_template == "agent"
    assert resolution.origins[field] == "env TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
    environ["PET_LOG_LINE_PREFIX_TEMPLATE"] = "pet"
    assert run(environ=environ).settings.output.log_line_prefix_template == "pet"
    resolution = run(environ=environ, log_line_prefix_template="[${role_name}]")
    assert resolution.settings.output.log_line_prefix_template == "[${role_name}]"
    assert resolution.origins[field] == "flag --log-line-prefix-template"
    assert run(environ={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": ""}).settings.output.log_line_prefix_template is None
    assert run(environ=environ, log_line_prefix_template="").settings.output.log_line_prefix_template == "agent"


@pytest.mark.parametrize("dest", ["log_dir", "run_dir"])
def test_directories_that_are_files_are_refused(run, dest, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    name = dest.replace("_", "-")
    assert refused(run, **{dest: str(file)}).startswith(f"--{name}: {str(file)!r}; expected a directory, this is")
    assert "above it is a file" in refused(run, **{dest: str(file / "below" / "deep")})


def test_read_only_log_directory_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    assert "is read-only for us" in refused(run, log_dir=str(tmp_path / "logs"))


def test_null_device_is_a_log_directory(run):
    assert run(log_dir=os.devnull).settings.output.log_dir == os.devnull


@pytest.mark.parametrize(
    ("typed", "texts"),
    [
        ("apple,,pear", ("apple,pear",)),
        ("loss,lr", ("loss", "lr")),
        (",", ()),  # torch takes it for empty texts, which every line contains
        ("", ()),
        (",,", (",",)),
        ("a,,,b", ("a,", "b")),
    ],
)
def test_filters_are_a_list_with_commas(run, typed, texts):
    settings = run(duplicate_stdout_filters=typed, tee="1").settings
    assert (settings.output.duplicate_stdout_filters, settings.notices) == (texts, ())
    settings = run(environ={"PET_DUPLICATE_STDERR_FILTERS": typed}, tee="2").settings
    assert (settings.output.duplicate_stderr_filters, settings.notices) == (texts, ())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"duplicate_stdout_filters": "a", "tee": "2"}, "--duplicate-stdout-filters 'a' has no effect: that stream"),
        (
            {"duplicate_stderr_filters": "a", "tee": "0:2", "nproc_per_node": "2", "local_ranks_filter": "1"},
            "--duplicate-stderr-filters 'a' has no effect: that stream",
        ),
        (
            {"duplicate_stdout_filters": "a", "tee": "1", "log_dir": "/dev/null"},
            "--duplicate-stdout-filters 'a' has no effect: with --log-dir /dev/null",
        ),
        ({"log_max_size": "1M"}, "--log-max-size '1M' has no effect: no stream goes to a file"),
        (
            {"log_max_size": "1M", "redirects": "3", "log_dir": "/dev/null"},
            "--log-max-size '1M' has no effect: no stream goes to a file",
        ),
        ({"log_backups": "2", "redirects": "3"}, "--log-backups '2' has no effect without --log-max-size"),
    ],
)
def test_log_options_that_do_nothing_say_so(run, options, told):
    (line,) = (line for line in run(**options).settings.notices if "OMP" not in line)
    assert line.startswith(told)


@pytest.mark.parametrize(
    ("typed", "size"), [("4096", 4096), ("1K", 1024), ("1.5 MiB", 3 << 19), ("2g", 2 << 30), ("10MB", 10 << 20)]
)
def test_sizes(run, typed, size):
    settings = run(log_max_size=typed, redirects="3").settings
    assert (settings.output.log_max_bytes, settings.output.log_backups, settings.notices) == (size, 5, ())


@pytest.mark.parametrize("typed", ["1000", "0", "-1M", "M", "1T", "much", "1e6"])
def test_sizes_that_are_none_are_refused(run, typed):
    assert refused(run, log_max_size=typed) == (
        f"--log-max-size: {typed!r}; expected a size of at least 1024 bytes, a number with K, M, G or nothing behind it"
        ". Try: --log-max-size 100M"
    )


def test_logs_specs_is_a_name(run):
    resolution = run(environ={"PET_LOGS_SPECS": "mine"})
    assert (resolution.settings.output.logs_specs, resolution.origins["output.logs_specs"]) == (
        "mine",
        "env PET_LOGS_SPECS",
    )


# --- scripts as functions ---


def test_run_path_has_workers_call_a_function(run):
    entrypoint = run(run_path=True).settings.entrypoint
    call = entrypoint.function
    assert (call.fn.__name__, call.start_method, call.with_main) == ("run_script_path", "spawn", False)
    assert call.args == entrypoint.argv[1:]
    assert entrypoint.python
    resolution = run(environ={"PET_RUN_PATH": "1", "PET_START_METHOD": "forkserver"})
    assert resolution.settings.entrypoint.function.start_method == "forkserver"
    assert resolution.settings.notices == ()


def test_run_path_stands_against_other_ways_to_run(run):
    assert refused(run, run_path=True, module=True).startswith("--run-path runs a script, not a module (-m)")
    assert refused(run, run_path=True, debug_rank="0", start_method="fork").endswith("Try: --start-method spawn")
    assert run(run_path=True, debug_rank="0").settings.entrypoint.function is not None
    (line,) = run(run_path=True, no_python=True).settings.notices
    assert line == "--no-python has no effect: --run-path runs a Python script"


def test_run_path_comes_with_elastic_torchrun(run, monkeypatch):
    monkeypatch.setattr(torch_side, "find_entries", tuple)
    with pytest.raises(
        PluginError, match=r"^--run-path comes with elastic-torchrun, .*sets/torchrun\.txt, in a checkout of .*$"
    ):
        run(run_path=True)


@pytest.mark.parametrize("environ", [{}, {"PET_START_METHOD": "fork"}])
def test_a_start_method_without_functions_has_no_effect(run, environ):
    given = {} if environ else {"start_method": "fork"}
    (line,) = run(**given, environ=environ).settings.notices
    assert line.endswith("'fork' has no effect without --run-path: each worker is a program")
