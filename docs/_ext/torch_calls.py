"""Calls of torch's library with ordinary and with wrong arguments, and where ours ends otherwise: a page and a test."""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Different(NamedTuple):
    """The exception of a call here, if it is not an instance of torch's: its class, or `nothing`."""

    torch: str
    here: str
    why: str


_CALLS: Final = """
elastic.multiprocessing: Std.from_str("0")
elastic.multiprocessing: Std.from_str("9")
elastic.multiprocessing: Std.from_str("0:9")
elastic.multiprocessing: Std.from_str("0:1,1:2")
elastic.multiprocessing: Std.from_str("")
elastic.multiprocessing: Std.from_str("x")
elastic.multiprocessing: Std.from_str("0:1:2")
elastic.multiprocessing: Std.from_str(b"1")
elastic.multiprocessing: Std.from_str(1)
elastic.multiprocessing: to_map(Std.OUT, 2)
elastic.multiprocessing: to_map({5: Std.OUT}, 2)
elastic.multiprocessing: to_map("x", 2)
elastic.multiprocessing: DefaultLogsSpecs(log_dir="/dev/null")
elastic.multiprocessing: DefaultLogsSpecs(log_dir="/proc/nope/x")
elastic.multiprocessing: DefaultLogsSpecs(log_dir="/etc/passwd")
elastic.multiprocessing: DefaultLogsSpecs(log_dir=TMP).reify({})
elastic.multiprocessing: DefaultLogsSpecs(log_dir=TMP).reify({0: {}})
elastic.multiprocessing: start_processes("x", "/bin/true", {0: ()}, {}, DefaultLogsSpecs())
elastic.multiprocessing: start_processes("x", "/bin/true", {}, {}, DefaultLogsSpecs())
elastic.multiprocessing: start_processes("x", "/bin/true", {1: ()}, {1: {}}, DefaultLogsSpecs())
elastic.multiprocessing: start_processes("x", "/no/such", {0: ()}, {0: {}}, DefaultLogsSpecs(log_dir=TMP))
elastic.multiprocessing: start_processes("x", print, {0: ()}, {0: {}}, DefaultLogsSpecs(), start_method="nope")
elastic.multiprocessing: SignalException("m", signal.SIGTERM).sigval
elastic.multiprocessing.errors: record(5)
elastic.multiprocessing.errors: record(lambda: 3)()
elastic.multiprocessing.errors: record(lambda: [][1])()
elastic.multiprocessing.errors: ProcessFailure(0, 1, 1, "")
elastic.multiprocessing.errors: ChildFailedError("x", {}).get_first_failure()
elastic.multiprocessing.errors: str(ChildFailedError("x", {}))
elastic.multiprocessing.errors: ErrorHandler().override_error_code_in_rootcause_data("f", {"message": "text"}, 3)
elastic.multiprocessing.errors: ErrorHandler().override_error_code_in_rootcause_data("f", {}, 3)
elastic.multiprocessing.errors: ErrorHandler().dump_error_file("/no/such")
elastic.multiprocessing.redirects: redirect("nope", "/tmp/x").__enter__()
elastic.multiprocessing.subprocess_handler: get_subprocess_handler("/no/such", (), {}, None, None, 0)
elastic.rendezvous: P("", "h:1", "r", 1, 1)
elastic.rendezvous: P(None, "h:1", "r", 1, 1)
elastic.rendezvous: P("c10d", "h:1", "r", 0, 1)
elastic.rendezvous: P("c10d", "h:1", "r", 2, 1)
elastic.rendezvous: P("c10d", "h:1", "r", 1, 1, a="x").get_as_bool("a")
elastic.rendezvous: P("c10d", "h:1", "r", 1, 1, a=3).get_as_bool("a")
elastic.rendezvous: P("c10d", "h:1", "r", 1, 1, a="x").get_as_int("a")
elastic.rendezvous: P("c10d", "h:1", "r", 1, 1).get("b", 3)
elastic.rendezvous: P("c10d", "h:1", None, 1, 1).run_id
elastic.rendezvous: rendezvous_handler_registry.create_handler(P("nope", "h:1", "r", 1, 1))
elastic.rendezvous: Registry().register("", print)
elastic.rendezvous: Registry().register("a", None)
elastic.rendezvous: [registry.register("a", print) for registry in [Registry()]]
elastic.rendezvous: [[registry.register("a", print), registry.register("a", len)] for registry in [Registry()]]
elastic.rendezvous: [[x.register("a", lambda p: 3), x.create_handler(P("a", "", "r", 1, 1))] for x in [Registry()]]
elastic.rendezvous: RendezvousStoreInfo("h", 1).master_port
elastic.rendezvous.registry: get_rendezvous_handler(P("nope", "h:1", "r", 1, 1))
elastic.rendezvous.registry: get_rendezvous_handler(P("static", "h:1", "r", 1, 2))
elastic.rendezvous.registry: get_rendezvous_handler(P("static", "h:1", "r", 2, 2))
elastic.rendezvous.registry: get_rendezvous_handler(P("static", "h:1", "r", 2, 2, rank=0, timeout="x"))
elastic.rendezvous.registry: get_rendezvous_handler(P("static", "", "r", 2, 2, rank=0))
elastic.rendezvous.registry: get_rendezvous_handler(P("static", "h", "r", 2, 2, rank=0))
elastic.rendezvous.registry: get_rendezvous_handler(P("static", "h:x", "r", 2, 2, rank=0))
elastic.rendezvous.registry: get_rendezvous_handler(P("static", "h:1", "r", 2, 2, rank=0)).get_run_id()
elastic.rendezvous.registry: get_rendezvous_handler(P("static", "h:1", "", 2, 2, rank=0))
elastic.rendezvous.registry: get_rendezvous_handler(P("c10d", "127.0.0.1:1", "r", 1, 1, store_type="paper"))
elastic.rendezvous.registry: get_rendezvous_handler(P("c10d", "127.0.0.1:1", "r", 1, 1, read_timeout=0))
elastic.rendezvous.registry: get_rendezvous_handler(P("c10d", "127.0.0.1:1", "r", 1, 1, is_host="perhaps"))
elastic.rendezvous.registry: get_rendezvous_handler(P("c10d", "127.0.0.1:1", "", 1, 1, is_host=0, read_timeout=1))
elastic.rendezvous.registry: get_rendezvous_handler(P("c10d", "127.0.0.1:99999", "r", 1, 1))
elastic.rendezvous.utils: parse_rendezvous_endpoint("h:1", 5)
elastic.rendezvous.utils: parse_rendezvous_endpoint("h", 5)
elastic.rendezvous.utils: parse_rendezvous_endpoint("", 5)
elastic.rendezvous.utils: parse_rendezvous_endpoint(None, 5)
elastic.rendezvous.utils: parse_rendezvous_endpoint("h:x", 5)
elastic.rendezvous.utils: parse_rendezvous_endpoint("h:", 5)
elastic.rendezvous.utils: parse_rendezvous_endpoint("[::1]:3", 5)
elastic.rendezvous.utils: parse_rendezvous_endpoint("h:99999", 5)
elastic.rendezvous.utils: parse_rendezvous_endpoint("a b:1", 5)
elastic.rendezvous.dynamic_rendezvous: RendezvousTimeout(join=datetime.timedelta(0))
elastic.rendezvous.dynamic_rendezvous: RendezvousTimeout(join=3)
elastic.rendezvous.dynamic_rendezvous: create_handler(None, BACKEND, P("x", "", "r", 1, 1, join_timeout="x"))
elastic.rendezvous.dynamic_rendezvous: create_handler(None, BACKEND, P("x", "", "r", 1, 1, join_timeout=0))
elastic.rendezvous.dynamic_rendezvous: create_handler(None, BACKEND, P("x", "", "r", 1, 1, keep_alive_interval=""))
elastic.rendezvous.dynamic_rendezvous: create_handler(None, BACKEND, P("x", "", "", 1, 1))
elastic.rendezvous.dynamic_rendezvous: DynamicRendezvousHandler.from_backend("", None, BACKEND, 1, 1)
elastic.rendezvous.dynamic_rendezvous: DynamicRendezvousHandler.from_backend("r", None, BACKEND, 0, 1)
elastic.rendezvous.dynamic_rendezvous: DynamicRendezvousHandler.from_backend("r", None, BACKEND, 2, 1)
elastic.rendezvous.dynamic_rendezvous: DynamicRendezvousHandler.from_backend("r", None, BACKEND, 1, 2).get_run_id()
elastic.rendezvous.c10d_rendezvous_backend: C10dRendezvousBackend(STORE, "")
elastic.rendezvous.c10d_rendezvous_backend: C10dRendezvousBackend(STORE, "r").get_state()
elastic.rendezvous.c10d_rendezvous_backend: C10dRendezvousBackend(STORE, "r").set_state(b"x")[2]
elastic.rendezvous.c10d_rendezvous_backend: C10dRendezvousBackend(STORE, "r").set_state(b"x", token=3)
elastic.timer: expires(after=1).__enter__()
elastic.timer: LocalTimerClient(None).acquire("s", 1)
elastic.timer: FileTimerClient("/no/such").acquire("s", 1)
elastic.metrics: put_metric("a", 1)
elastic.metrics: publish_metric("g", "a", 1)
elastic.metrics: getStream("g").add_value("a", 1)
elastic.metrics: prof(lambda: [][1])()
elastic.events: get_logging_handler("nope")
elastic.events: get_logging_handler("console")
elastic.events: record(None)
elastic.events: Event.deserialize("x")
elastic.events: Event.deserialize("{}")
elastic.events: Event("n", EventSource.AGENT).serialize()
elastic.events: RdzvEvent.deserialize("x")
elastic.utils: macros.substitute(["a${local_rank}"], 3)
elastic.utils: macros.substitute([3], 3)
elastic.utils.data: CyclingIterator(2, lambda epoch: iter([epoch]), 0).__next__()
elastic.utils.data: CyclingIterator(2, None, 0).__next__()
elastic.utils.data: ElasticDistributedSampler([1, 2, 3], num_replicas=2, rank=5)
elastic.utils.data: ElasticDistributedSampler([1, 2, 3], num_replicas=2, rank=0, start_index=9)
elastic.utils.data: len(ElasticDistributedSampler([1, 2, 3], num_replicas=2, rank=0, start_index=1))
elastic.utils.distributed: create_c10d_store(True, "127.0.0.1", TAKEN, retries=1)
elastic.utils.distributed: create_c10d_store(False, "127.0.0.1", 1, timeout=1, retries=1)
elastic.utils.distributed: create_c10d_store(True, "127.0.0.1", 0, world_size=2, timeout=1)
elastic.utils.logging: get_logger("x").name
elastic.utils.store: synchronize(STORE, b"x", 0, 1, "p2")
elastic.utils.store: barrier(STORE, 1, "p3", barrier_timeout=1)
elastic.utils.store: barrier(STORE, 2, "p4", barrier_timeout=1)
elastic.utils.store: barrier(STORE, 2, "p5", barrier_timeout=1, rank=0, rank_tracing_decoder=str)
elastic.agent.server: WorkerSpec("x", 0, None, 0)
elastic.agent.server: WorkerSpec("x", 1, None, 0)
elastic.agent.server: WorkerSpec("x", 1, None, 0, monitor_interval=0)
elastic.agent.server: WorkerSpec("x", 1, None, 0, entrypoint="e").get_entrypoint_name()
elastic.agent.server: WorkerSpec("x", 1, None, 0, fn=print).get_entrypoint_name()
elastic.agent.server: WorkerGroup(WorkerSpec("x", 2, None, 0, entrypoint="e")).state
elastic.agent.server: WorkerState.is_running(WorkerState.HEALTHY)
elastic.agent.server: WorkerState("x")
elastic.agent.server: RunResult(WorkerState.FAILED).is_failed()
elastic.utils.store: synchronize(STORE, "text", 0, 1, "p6")
elastic.utils.store: synchronize(STORE, 5, 0, 1, "p7")
elastic.multiprocessing.tail_log: TailLog("n", {0: TMP.encode()}, sys.stdout).start().stop()
elastic.multiprocessing.tail_log: TailLog("n", {0: pathlib.Path(TMP)}, sys.stdout).start().stop()
elastic.multiprocessing: DefaultLogsSpecs(log_dir=pathlib.Path(TMP)).reify({0: {}, 1: {}}).stdouts
elastic.multiprocessing: start_processes("x", "/bin/true", {0: (b"a", 1)}, {0: {"A": b"b"}}, DefaultLogsSpecs()).wait()
elastic.multiprocessing: start_processes("x", "/bin/true", {0: ()}, {0: {"A": 1}}, DefaultLogsSpecs())
elastic.multiprocessing.subprocess_handler: get_subprocess_handler(b"/bin/true", (b"a",), {}, None, None, 0).proc.wait()
elastic.rendezvous: P("c10d", "h:1", "r", 1, 1, a=b"1").get_as_int("a")
elastic.rendezvous: P("c10d", "h:1", "r", 1, 1, a=b"1").get_as_bool("a")
elastic.rendezvous: P("c10d", "h:1", "r", 1, 1, a=[]).get_as_int("a")
elastic.rendezvous: RendezvousStoreInfo.build(0, STORE, "h", 5).master_port
elastic.rendezvous.utils: parse_rendezvous_endpoint(b"h:1", 5)
elastic.rendezvous.c10d_rendezvous_backend: C10dRendezvousBackend(STORE, "r").set_state("x")
elastic.rendezvous.c10d_rendezvous_backend: C10dRendezvousBackend(STORE, "r").set_state(bytearray(b"x"))[0]
elastic.rendezvous.etcd_server: EtcdServer().get_port()
elastic.rendezvous.etcd_server: EtcdServer().get_endpoint().rpartition(":")[2]
elastic.rendezvous.etcd_server: EtcdServer().stop()
elastic.rendezvous.etcd_server: EtcdServer("/dev/null/x").start(num_retries=1)
elastic.metrics: put_metric(b"a", 1, b"g")
elastic.events: Event("n", EventSource.AGENT, metadata={"a": b"x"}).serialize()
launcher: LaunchConfig(1, 1, 1).run_id
launcher: LaunchConfig(0, 1, 1)
launcher: LaunchConfig(2, 1, 1)
launcher: elastic_launch(LaunchConfig(1, 1, 1, **C10D, start_method="nope"), print)()
launcher: elastic_launch(LaunchConfig(1, 1, 1, **C10D, max_restarts=0), "/no/such/program")()
launcher: elastic_launch(LaunchConfig(1, 1, 1, **C10D), None)()
launcher: elastic_launch(LaunchConfig(1, 1, 1, **C10D, max_restarts=0), "/bin/true")(b"a", 3)
launcher: elastic_launch(LaunchConfig(1, 2, 1, rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0", **SOON), "/bin/true")()
launcher: elastic_launch(LaunchConfig(1, 2, 1, rdzv_backend="redis", rdzv_endpoint="127.0.0.1:x"), "/bin/true")()
run: parse_min_max_nnodes("1:2")
run: parse_min_max_nnodes("1:2:3")
run: parse_min_max_nnodes("x")
run: parse_min_max_nnodes("")
run: determine_local_world_size("2")
run: determine_local_world_size("cpu") > 0
run: determine_local_world_size("gpu")
run: determine_local_world_size("x")
run: determine_local_world_size("")
run: parse_args(["--nope", "t.py"])
run: parse_args([])
run: parse_args(["--max-restarts", "x", "t.py"])
run: config_from_args(parse_args(["--nnodes", "x", "t.py"]))
run: config_from_args(parse_args(["--nnodes", "2:1", "t.py"]))
run: config_from_args(parse_args(["--nproc-per-node", "x", "t.py"]))
run: config_from_args(parse_args(["--rdzv-conf", "a", "t.py"]))
run: config_from_args(parse_args(["--local-ranks-filter", "x", "t.py"]))
run: config_from_args(parse_args(["--logs-specs", "nope", "t.py"]))
run: config_from_args(parse_args(["-r", "9", "t.py"]))
run: config_from_args(parse_args(["--log-dir", "/etc/passwd", "t.py"]))
run: config_from_args(parse_args(["-m", "--no-python", "t.py"]))
run: config_from_args(parse_args(["--no-python", "-m", "t"]))
run: config_from_args(parse_args(["--run-path", "-m", "t"]))
run: config_from_args(parse_args(["--max-restarts", "-1", "t.py"]))
run: config_from_args(parse_args(["--numa-binding", "x", "t.py"]))
run: get_use_env(parse_args(["t.py"]))
launcher: elastic_launch(LaunchConfig(2, 1, 1, run_id="r"), "/bin/true")()
launcher: elastic_launch(LaunchConfig(0, 1, 1, run_id="r"), "/bin/true")()
launcher: elastic_launch(LaunchConfig(1, 1, 1, run_id="r", rdzv_backend="nope"), "/bin/true")()
launcher: elastic_launch(LaunchConfig(1, 1, 1, **C10D, max_restarts=0), "/bin/false")()
"""

CALLS: Final[tuple[tuple[str, str], ...]] = tuple(
    (name, text) for name, _, text in (line.partition(": ") for line in _CALLS.strip().splitlines())
)
"""Module below `torch.distributed`, expression. See the test for the names in capitals, and for short ones."""

_ASSERTED: Final = "torch has an assertion there, without a text"

DIFFERENT: Final[Mapping[str, Different]] = {
    'elastic.multiprocessing.errors: ChildFailedError("x", {}).get_first_failure()': Different(
        "AssertionError", "ValueError", _ASSERTED
    ),
    'elastic.multiprocessing.errors: str(ChildFailedError("x", {}))': Different(
        "AssertionError", "ValueError", _ASSERTED
    ),
    'elastic.multiprocessing.errors: ErrorHandler().dump_error_file("/no/such")': Different(
        "FileNotFoundError", "nothing", "a log line names the file; an error here would hide the worker's failure"
    ),
    'elastic.multiprocessing: DefaultLogsSpecs(log_dir="/proc/nope/x")': Different(
        "FileNotFoundError", "nothing", "directories are created for the first round, so that `reify` raises"
    ),
    'elastic.rendezvous.etcd_server: EtcdServer("/dev/null/x").start(num_retries=1)': Different(
        "NotADirectoryError",
        "EtcdServerSystemError",
        "an `OSError` and a `RuntimeError`, for each reason",
    ),
    "launcher: elastic_launch(LaunchConfig(1, 1, 1, **C10D), None)()": Different(
        "AssertionError", "ConfigError", _ASSERTED
    ),
    'run: config_from_args(parse_args(["--nnodes", "2:1", "t.py"]))': Different(
        "AssertionError", "nothing", "`elastic_launch` and `run` raise `ConfigError`"
    ),
    'run: config_from_args(parse_args(["--max-restarts", "-1", "t.py"]))': Different(
        "AssertionError", "nothing", "`elastic_launch` and `run` raise `ConfigError`"
    ),
}
"""By module and expression."""
