"""What torch 2.13 has, and what it is here: the source of the migration page, and of the test that walks torch.

Names are those that a module of torch's defines, or exports, without an underscore. A test fails for one that is
neither here nor explained, for a counterpart that can't be imported, and for parameters that ours doesn't take.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True)
class Module:
    """What became of a module of torch's.

    Args:
        room: Our module for users; None: there is only the one in `elastic_core.compat`.
        names: What is in both, by the name that it has in torch.
        compat_only: What is in `elastic_core.compat` alone.
        absent: What is not here, and why.
    """

    room: str | None = None
    names: tuple[str, ...] = ()
    compat_only: tuple[str, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)


def compat(module: str) -> str:
    """Return the module of ours that has the path of torch's."""
    return f"elastic_core.compat.{module.removeprefix('torch.').removeprefix('distributed.')}"


_LINUX: Final = "only Linux is supported"
_BY_PYTHON: Final = "streams are redirected without the C library"
_FOR_ITS_LOG: Final = "serves torch's own log lines"
_TYPE_VARIABLE: Final = "a type variable"
_TORCHS_OWN: Final = "torch's own: `torch.distributed.DistStoreError`"
_ETCD_STOP: Final = "`EtcdServer.stop`"
_CAS: Final = "waits between two attempts of a store that has no watch; ours watches"
_ETCD_PROTOCOL: Final = "part of torch's protocol on etcd's v2 API; ours is another, on the v3 API"

MODULES: Final[Mapping[str, Module]] = {
    "torch.distributed.elastic.agent.server": Module(
        room="elastic_core.agent.server",
        names=("ElasticAgent", "RunResult", "SimpleElasticAgent", "Worker", "WorkerGroup", "WorkerSpec", "WorkerState"),
        compat_only=("TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_TIMER_FILE"),
    ),
    "torch.distributed.elastic.agent.server.api": Module(
        room="elastic_core.agent.server",
        names=("ElasticAgent", "RunResult", "SimpleElasticAgent", "Worker", "WorkerGroup", "WorkerSpec", "WorkerState"),
        compat_only=("DEFAULT_ROLE",),
    ),
    "torch.distributed.elastic.agent.server.health_check_server": Module(
        room="elastic_core.agent.server",
        names=("HealthCheckServer", "create_healthcheck_server"),
    ),
    "torch.distributed.elastic.agent.server.local_elastic_agent": Module(
        room="elastic_core.agent.server",
        names=("LocalElasticAgent",),
        compat_only=(
            "TORCHELASTIC_ENABLE_FILE_TIMER",
            "TORCHELASTIC_HEALTH_CHECK_PORT",
            "TORCHELASTIC_TIMER_FILE",
            "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
        ),
    ),
    "torch.distributed.elastic.control_plane": Module(
        room="elastic_core.control_plane",
        names=("worker_main",),
        compat_only=("TORCH_WORKER_SERVER_SOCKET",),
    ),
    "torch.distributed.elastic.events": Module(
        room="elastic_core.events",
        names=(
            "Event",
            "EventMetadataValue",
            "EventSource",
            "NodeState",
            "RdzvEvent",
            "construct_and_record_rdzv_event",
            "get_logging_handler",
            "record",
            "record_rdzv_event",
        ),
    ),
    "torch.distributed.elastic.events.api": Module(
        room="elastic_core.events",
        names=("Event", "EventMetadataValue", "EventSource", "NodeState", "RdzvEvent"),
    ),
    "torch.distributed.elastic.events.handlers": Module(
        room="elastic_core.events",
        names=("get_logging_handler",),
    ),
    "torch.distributed.elastic.metrics": Module(
        room="elastic_core.metrics",
        names=(
            "ConsoleMetricHandler",
            "MetricData",
            "MetricHandler",
            "MetricsConfig",
            "NullMetricHandler",
            "configure",
            "getStream",
            "get_elapsed_time_ms",
            "initialize_metrics",
            "prof",
            "profile",
            "publish_metric",
            "put_metric",
        ),
    ),
    "torch.distributed.elastic.metrics.api": Module(
        room="elastic_core.metrics",
        names=(
            "ConsoleMetricHandler",
            "MetricData",
            "MetricHandler",
            "MetricStream",
            "MetricsConfig",
            "NullMetricHandler",
            "configure",
            "getStream",
            "get_elapsed_time_ms",
            "prof",
            "profile",
            "publish_metric",
            "put_metric",
        ),
    ),
    "torch.distributed.elastic.multiprocessing": Module(
        room="elastic_core.multiprocessing",
        names=(
            "DefaultLogsSpecs",
            "LogsDest",
            "LogsSpecs",
            "MultiprocessContext",
            "PContext",
            "ProcessFailure",
            "RunProcsResult",
            "SignalException",
            "Std",
            "SubprocessContext",
            "start_processes",
            "to_map",
        ),
    ),
    "torch.distributed.elastic.multiprocessing.api": Module(
        room="elastic_core.multiprocessing",
        names=(
            "DefaultLogsSpecs",
            "LogsDest",
            "LogsSpecs",
            "MultiprocessContext",
            "PContext",
            "RunProcsResult",
            "SignalException",
            "Std",
            "SubprocessContext",
            "to_map",
        ),
        compat_only=("get_std_cm",),
        absent={"IS_MACOS": _LINUX, "IS_WINDOWS": _LINUX},
    ),
    "torch.distributed.elastic.multiprocessing.errors": Module(
        room="elastic_core.multiprocessing.errors",
        names=("ChildFailedError", "ErrorHandler", "ProcessFailure", "get_error_handler", "record"),
        compat_only=("GlobalRank", "JSON"),
    ),
    "torch.distributed.elastic.multiprocessing.errors.error_handler": Module(
        room="elastic_core.multiprocessing.errors",
        names=("ErrorHandler",),
    ),
    "torch.distributed.elastic.multiprocessing.errors.handlers": Module(
        room="elastic_core.multiprocessing.errors",
        names=("get_error_handler",),
    ),
    "torch.distributed.elastic.multiprocessing.redirects": Module(
        room="elastic_core.multiprocessing.redirects",
        names=("redirect", "redirect_stderr", "redirect_stdout"),
        absent={"IS_MACOS": _LINUX, "IS_WINDOWS": _LINUX, "get_libc": _BY_PYTHON, "libc": _BY_PYTHON},
    ),
    "torch.distributed.elastic.multiprocessing.subprocess_handler": Module(
        room="elastic_core.multiprocessing.subprocess_handler",
        names=("SubprocessHandler", "get_subprocess_handler"),
    ),
    "torch.distributed.elastic.multiprocessing.subprocess_handler.handlers": Module(
        room="elastic_core.multiprocessing.subprocess_handler",
        names=("get_subprocess_handler",),
    ),
    "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler": Module(
        room="elastic_core.multiprocessing.subprocess_handler",
        names=("SubprocessHandler",),
        absent={"IS_WINDOWS": _LINUX},
    ),
    "torch.distributed.elastic.multiprocessing.tail_log": Module(
        room="elastic_core.multiprocessing.tail_log",
        names=("TailLog", "tail_logfile"),
    ),
    "torch.distributed.elastic.rendezvous": Module(
        room="elastic_core.rendezvous",
        names=(
            "RendezvousClosedError",
            "RendezvousConnectionError",
            "RendezvousError",
            "RendezvousGracefulExitError",
            "RendezvousHandler",
            "RendezvousHandlerCreator",
            "RendezvousHandlerRegistry",
            "RendezvousInfo",
            "RendezvousParameters",
            "RendezvousStateError",
            "RendezvousStoreInfo",
            "RendezvousTimeoutError",
            "rendezvous_handler_registry",
        ),
    ),
    "torch.distributed.elastic.rendezvous.api": Module(
        room="elastic_core.rendezvous",
        names=(
            "RendezvousClosedError",
            "RendezvousConnectionError",
            "RendezvousError",
            "RendezvousGracefulExitError",
            "RendezvousHandler",
            "RendezvousHandlerCreator",
            "RendezvousHandlerRegistry",
            "RendezvousInfo",
            "RendezvousParameters",
            "RendezvousStateError",
            "RendezvousStoreInfo",
            "RendezvousTimeoutError",
            "rendezvous_handler_registry",
        ),
    ),
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend": Module(
        room="elastic_core.rendezvous",
        names=("C10dRendezvousBackend",),
        compat_only=("DEFAULT_PORT", "create_backend"),
    ),
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous": Module(
        room="elastic_core.rendezvous",
        names=("DynamicRendezvousHandler", "RendezvousBackend", "RendezvousTimeout", "create_handler"),
        compat_only=("RendezvousSettings", "Token"),
        absent={"get_method_name": _FOR_ITS_LOG},
    ),
    "torch.distributed.elastic.rendezvous.etcd_rendezvous": Module(
        room="elastic_core.rendezvous",
        names=("EtcdRendezvous", "EtcdRendezvousHandler"),
        compat_only=("create_rdzv_handler",),
        absent={
            "CONST_ETCD_FROZEN_TTL": _ETCD_PROTOCOL,
            "CONST_ETCD_JOINABLE_EPHEMERAL_TTL": _ETCD_PROTOCOL,
            "CONST_ETCD_SETUP_TTL": _ETCD_PROTOCOL,
            "CONST_RUNID_SUBROOT_TTL": _ETCD_PROTOCOL,
            "CONST_WORKER_KEEPALIVE_TTL": _ETCD_PROTOCOL,
            "EtcdRendezvousRetryImmediately": _ETCD_PROTOCOL,
            "EtcdRendezvousRetryableFailure": _ETCD_PROTOCOL,
        },
    ),
    "torch.distributed.elastic.rendezvous.etcd_rendezvous_backend": Module(
        room="elastic_core.rendezvous",
        names=("EtcdRendezvousBackend",),
        compat_only=("create_backend",),
    ),
    "torch.distributed.elastic.rendezvous.etcd_server": Module(
        room="elastic_core.rendezvous",
        names=("EtcdServer",),
        compat_only=("find_free_port",),
        absent={"stop_etcd": _ETCD_STOP},
    ),
    "torch.distributed.elastic.rendezvous.etcd_store": Module(
        room="elastic_core.rendezvous",
        names=("EtcdStore",),
        absent={"cas_delay": _CAS},
    ),
    "torch.distributed.elastic.rendezvous.registry": Module(
        room="elastic_core.rendezvous",
        names=("get_rendezvous_handler",),
    ),
    "torch.distributed.elastic.rendezvous.static_tcp_rendezvous": Module(
        room="elastic_core.rendezvous",
        names=("StaticTCPRendezvous",),
        compat_only=("create_rdzv_handler",),
    ),
    "torch.distributed.elastic.rendezvous.utils": Module(
        room="elastic_core.rendezvous",
        names=("parse_rendezvous_endpoint",),
    ),
    "torch.distributed.elastic.timer": Module(
        room="elastic_core.timer",
        names=(
            "FileTimerClient",
            "FileTimerRequest",
            "FileTimerServer",
            "LocalTimerClient",
            "LocalTimerServer",
            "TimerClient",
            "TimerRequest",
            "TimerServer",
            "configure",
            "expires",
        ),
    ),
    "torch.distributed.elastic.timer.api": Module(
        room="elastic_core.timer",
        names=("RequestQueue", "TimerClient", "TimerRequest", "TimerServer", "configure", "expires"),
    ),
    "torch.distributed.elastic.timer.debug_info_logging": Module(
        room="elastic_core.timer",
        names=("log_debug_info_for_expired_timers",),
    ),
    "torch.distributed.elastic.timer.file_based_local_timer": Module(
        room="elastic_core.timer",
        names=("FileTimerClient", "FileTimerRequest", "FileTimerServer"),
    ),
    "torch.distributed.elastic.timer.local_timer": Module(
        room="elastic_core.timer",
        names=("LocalTimerClient", "LocalTimerServer", "MultiprocessingRequestQueue"),
    ),
    "torch.distributed.elastic.utils": Module(
        compat_only=("get_env_variable_or_raise", "get_socket_with_port", "macros"),
    ),
    "torch.distributed.elastic.utils.api": Module(
        compat_only=("get_env_variable_or_raise", "get_socket_with_port", "macros"),
    ),
    "torch.distributed.elastic.utils.data": Module(
        room="elastic_core.data",
        names=("CyclingIterator", "ElasticDistributedSampler"),
    ),
    "torch.distributed.elastic.utils.data.cycling_iterator": Module(
        room="elastic_core.data",
        names=("CyclingIterator",),
    ),
    "torch.distributed.elastic.utils.data.elastic_distributed_sampler": Module(
        room="elastic_core.data",
        names=("ElasticDistributedSampler",),
        absent={"T": _TYPE_VARIABLE},
    ),
    "torch.distributed.elastic.utils.distributed": Module(
        room="elastic_core.rendezvous",
        names=("create_c10d_store", "get_free_port"),
        compat_only=("get_socket_with_port",),
    ),
    "torch.distributed.elastic.utils.log_level": Module(
        compat_only=("get_log_level",),
    ),
    "torch.distributed.elastic.utils.logging": Module(
        compat_only=("get_logger",),
    ),
    "torch.distributed.elastic.utils.process_state": Module(
        compat_only=("is_uninterruptible_state", "read_proc_state"),
    ),
    "torch.distributed.elastic.utils.store": Module(
        room="elastic_core.rendezvous",
        names=("barrier", "get_all", "store_timeout", "synchronize"),
        absent={"DistStoreError": _TORCHS_OWN},
    ),
    "torch.distributed.launch": Module(
        room="elastic_core.launch",
        names=("launch", "main", "parse_args"),
    ),
    "torch.distributed.launcher": Module(
        room="elastic_core.launcher",
        names=("LaunchConfig", "elastic_launch", "launch_agent"),
    ),
    "torch.distributed.launcher.api": Module(
        room="elastic_core.launcher",
        names=("LaunchConfig", "elastic_launch", "launch_agent"),
    ),
    "torch.distributed.run": Module(
        room="elastic_core.run",
        names=(
            "config_from_args",
            "determine_local_world_size",
            "get_args_parser",
            "get_rdzv_endpoint",
            "get_use_env",
            "parse_args",
            "parse_min_max_nnodes",
            "run",
            "run_script_path",
        ),
        compat_only=("main",),
    ),
    "torch.numa.binding": Module(
        room="elastic_core.numa",
        names=("AffinityMode", "NumaOptions"),
        absent={"K": _TYPE_VARIABLE, "V": _TYPE_VARIABLE},
    ),
}
"""By torch's name."""

ATTRIBUTES: Final[Mapping[str, str]] = {
    "torch.distributed.elastic.rendezvous.etcd_rendezvous.EtcdRendezvous.*": _ETCD_PROTOCOL,
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous.DynamicRendezvousHandler.settings": (
        "read by torch's own agent alone; it is `get_run_id()` and what the handler was made from"
    ),
}
"""Methods and properties of torch's classes that ours have not, and why; `*`: all."""

PARAMETERS: Final[Mapping[str, str]] = {
    "torch.distributed.elastic.multiprocessing.LogsDest": "the same default, ``, made otherwise",
    "torch.distributed.elastic.multiprocessing.api.LogsDest": "the same default, ``, made otherwise",
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous.DynamicRendezvousHandler": (
        "torch's takes parts of its state machine; both are made by `from_backend` or `create_handler`, with the same "
        "parameters"
    ),
}
"""Callables that take other parameters than torch's, and why."""

VARIABLES: Final[Mapping[str, str]] = {
    "USE_LIBUV": "read by torch's own stores, here as there",
}
"""Variables of torch's modules that are neither set nor read here, and why."""

COMMANDS: Final[tuple[tuple[str, str], ...]] = (
    ("torchrun", "`elastic run`"),
    ("python -m torch.distributed.run", "`python -m elastic_core.run`"),
    ("python -m torch.distributed.launch", "`python -m elastic_core.launch`, deprecated likewise"),
    ("python -m torch.distributed.launch --use-env", "`elastic run`"),
    ("torchrun.handlers (entry points)", "`elastic_core.rendezvous`; torch's are found as well"),
    ("torchrun.logs_specs (entry points)", "the same group"),
)
"""What is typed, or declared, and what it is here."""

PAGES: Final[tuple[tuple[str, str], ...]] = (
    ("Quickstart", "[your first run](../tutorial/first-run.md), [two nodes](../tutorial/two-nodes.md)"),
    ("Train script", "[write a train script](../howto/train-script.md)"),
    ("Examples", "[digits](../tutorial/digits.md), and the folder `examples`"),
    ("torchrun (Elastic Launch)", "[elastic run](run.md), [coming from torchrun](../howto/from-torchrun.md)"),
    (
        "Elastic Agent",
        "[agents and workers as a library](agent.md), [run workers from Python](../howto/from-python.md)",
    ),
    ("Multiprocessing", "[processes as a library](multiprocessing.md), [logs](../howto/logs.md)"),
    ("Subprocess Handling", "[processes as a library](multiprocessing.md)"),
    ("Error Propagation", "[errors](errors.md), [error file](error-file.md)"),
    ("Rendezvous", "[rendezvous as a library](rendezvous.md), [backends](backends.md)"),
    ("Expiration Timers", "[timers](timers.md)"),
    ("Metrics", "[metrics](metrics.md), [metrics and events](../howto/metrics-and-events.md)"),
    ("Events", "[events](events.md)"),
    ("Control Plane", "[control plane](control-plane.md), [ask a running agent](../howto/control-plane.md)"),
    ("NUMA Binding Utilities", "[bind workers to processors](../howto/numa.md)"),
    (
        "Customization",
        "[customize it](../howto/customization.md), [the three interfaces](../plugin_authors/interfaces.md)",
    ),
    ("TorchElastic Kubernetes", "[Kubernetes](../howto/kubernetes.md), [containers](../howto/containers.md)"),
)
"""The pages of torch's documentation of elastic, and ours."""
