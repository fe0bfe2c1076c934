"""Torch's names: the modules of `torch.distributed` that elastic-core has, and the module that defines each name.

The one table behind `elastic_core.compat`, its type stubs and the migration page. No imports: the build reads it, too.
"""

NAMES: dict[str, dict[str, str]] = {
    "elastic": {},
    "elastic.agent": {},
    "elastic.agent.server": {
        "elastic_torchrun.agent.elastic_agent": "ElasticAgent",
        "elastic_torchrun.agent.simple_elastic_agent": "SimpleElasticAgent",
        "elastic_torchrun.agent.worker_group": "RunResult Worker WorkerGroup WorkerState",
        "elastic_torchrun.agent.worker_spec": "WorkerSpec",
        "elastic_torchrun.helpers": "TORCHELASTIC_ENABLE_FILE_TIMER TORCHELASTIC_TIMER_FILE",
    },
    "elastic.agent.server.api": {
        "elastic_torchrun.agent.elastic_agent": "ElasticAgent",
        "elastic_torchrun.agent.simple_elastic_agent": "SimpleElasticAgent",
        "elastic_torchrun.agent.worker_group": "RunResult Worker WorkerGroup WorkerState",
        "elastic_torchrun.agent.worker_spec": "DEFAULT_ROLE WorkerSpec",
    },
    "elastic.agent.server.health_check_server": {
        "elastic_torchrun.agent.health_check_server": "HealthCheckServer create_healthcheck_server",
    },
    "elastic.agent.server.local_elastic_agent": {
        "elastic_torchrun.agent.local_elastic_agent": "LocalElasticAgent",
        "elastic_torchrun.helpers": (
            "TORCHELASTIC_ENABLE_FILE_TIMER TORCHELASTIC_HEALTH_CHECK_PORT TORCHELASTIC_TIMER_FILE "
            "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
        ),
    },
    "elastic.control_plane": {
        "elastic_ops.control_plane": "worker_main",
        "elastic_torchrun.helpers": "TORCH_WORKER_SERVER_SOCKET",
    },
    "elastic.events": {
        "elastic_torchrun.events": (
            "Event EventHandler EventMetadataValue EventSource NodeState NullEventHandler RdzvEvent configure "
            "construct_and_record_rdzv_event get_logging_handler record record_rdzv_event"
        ),
    },
    "elastic.events.api": {
        "elastic_torchrun.events.api": "Event EventMetadataValue EventSource NodeState RdzvEvent",
    },
    "elastic.events.handlers": {
        "elastic_torchrun.events.handlers": "get_logging_handler log_handlers",
    },
    "elastic.metrics": {
        "elastic_torchrun.metrics": (
            "ConsoleMetricHandler MetricData MetricHandler MetricsConfig MetricStream NullMetricHandler configure "
            "get_elapsed_time_ms getStream initialize_metrics prof profile publish_metric put_metric"
        ),
    },
    "elastic.metrics.api": {
        "elastic_torchrun.metrics.api": (
            "ConsoleMetricHandler MetricData MetricHandler MetricsConfig MetricStream NullMetricHandler configure "
            "get_elapsed_time_ms getStream prof profile publish_metric put_metric"
        ),
    },
    "elastic.multiprocessing": {
        "elastic_torchrun.processes.context": "PContext",
        "elastic_torchrun.processes.group_context": "MultiprocessContext SubprocessContext",
        "elastic_torchrun.processes.logs_specs": "DefaultLogsSpecs LogsDest LogsSpecs",
        "elastic_torchrun.processes.process_failure": "ProcessFailure",
        "elastic_torchrun.processes.run_result": "RunProcsResult",
        "elastic_torchrun.processes.signals": "SignalException",
        "elastic_torchrun.processes.start": "start_processes",
        "elastic_torchrun.processes.std": "Std to_map",
    },
    "elastic.multiprocessing.api": {
        "elastic_torchrun.processes.context": "PContext",
        "elastic_torchrun.processes.group_context": "MultiprocessContext SubprocessContext",
        "elastic_torchrun.processes.logs_specs": "DefaultLogsSpecs LogsDest LogsSpecs",
        "elastic_torchrun.processes.process_failure": "ProcessFailure",
        "elastic_torchrun.processes.run_result": "RunProcsResult",
        "elastic_torchrun.processes.signals": "SignalException",
        "elastic_torchrun.processes.std": "Std to_map",
        "elastic_torchrun.processes.redirects": "get_std_cm redirect_stderr redirect_stdout",
        "elastic_torchrun.processes.subprocess_handler": "SubprocessHandler get_subprocess_handler",
        "elastic_torchrun.processes.tail_log": "TailLog",
    },
    "elastic.multiprocessing.errors": {
        "elastic_ops.recording": "ErrorHandler get_error_handler record set_error_handler",
        "elastic_torchrun.helpers": "GlobalRank JSON",
        "elastic_torchrun.processes.child_failed": "ChildFailedError",
        "elastic_torchrun.processes.process_failure": "ProcessFailure",
    },
    "elastic.multiprocessing.errors.error_handler": {
        "elastic_ops.recording": "ErrorHandler",
    },
    "elastic.multiprocessing.errors.handlers": {
        "elastic_ops.recording": "get_error_handler",
    },
    "elastic.multiprocessing.redirects": {
        "elastic_torchrun.processes.redirects": "redirect redirect_stderr redirect_stdout",
    },
    "elastic.multiprocessing.subprocess_handler": {
        "elastic_torchrun.processes.subprocess_handler": "SubprocessHandler get_subprocess_handler",
    },
    "elastic.multiprocessing.subprocess_handler.handlers": {
        "elastic_torchrun.processes.subprocess_handler": "get_subprocess_handler",
    },
    "elastic.multiprocessing.subprocess_handler.subprocess_handler": {
        "elastic_torchrun.processes.subprocess_handler": "SubprocessHandler",
    },
    "elastic.multiprocessing.tail_log": {
        "elastic_torchrun.processes.tail_log": "TailLog tail_logfile",
    },
    "elastic.rendezvous": {
        "elastic_core.errors": (
            "RendezvousClosedError RendezvousConnectionError RendezvousError "
            "RendezvousGracefulExitError RendezvousStateError RendezvousTimeoutError"
        ),
        "elastic_core.rendezvous.handler": "RendezvousHandler",
        "elastic_torchrun.rendezvous.creators": (
            "RendezvousHandlerCreator RendezvousHandlerRegistry rendezvous_handler_registry"
        ),
        "elastic_torchrun.rendezvous.parameters": "RendezvousParameters",
        "elastic_torchrun.rendezvous.store_info": "RendezvousInfo RendezvousStoreInfo",
    },
    "elastic.rendezvous.api": {
        "elastic_core.errors": (
            "RendezvousClosedError RendezvousConnectionError RendezvousError "
            "RendezvousGracefulExitError RendezvousStateError RendezvousTimeoutError"
        ),
        "elastic_core.rendezvous.handler": "RendezvousHandler",
        "elastic_torchrun.rendezvous.creators": (
            "RendezvousHandlerCreator RendezvousHandlerRegistry rendezvous_handler_registry"
        ),
        "elastic_torchrun.rendezvous.parameters": "RendezvousParameters",
        "elastic_torchrun.rendezvous.store_info": "RendezvousInfo RendezvousStoreInfo",
    },
    "elastic.rendezvous.c10d_rendezvous_backend": {
        "elastic_torchrun.rendezvous.c10d_backend": "DEFAULT_PORT C10dRendezvousBackend create_backend",
    },
    "elastic.rendezvous.dynamic_rendezvous": {
        "elastic_torchrun.rendezvous.dynamic": (
            "DynamicRendezvousHandler RendezvousSettings RendezvousTimeout create_handler"
        ),
        "elastic_torchrun.rendezvous.state_backend": "RendezvousBackend Token",
    },
    "elastic.rendezvous.etcd_rendezvous": {
        "elastic_torchrun.rendezvous.etcd_rendezvous": "EtcdRendezvous EtcdRendezvousHandler create_rdzv_handler",
    },
    "elastic.rendezvous.etcd_rendezvous_backend": {
        "elastic_torchrun.rendezvous.etcd_v2_backend": "EtcdRendezvousBackend create_backend",
    },
    "elastic.rendezvous.etcd_server": {
        "elastic_torchrun.helpers": "find_free_port",
        "elastic_torchrun.rendezvous.etcd_rendezvous": "EtcdServer",
    },
    "elastic.rendezvous.etcd_store": {
        "elastic_torchrun.rendezvous.etcd_store": "EtcdStore",
    },
    "elastic.rendezvous.registry": {
        "elastic_torchrun.rendezvous.creators": "get_rendezvous_handler",
    },
    "elastic.rendezvous.static_tcp_rendezvous": {
        "elastic_torchrun.rendezvous.static_tcp": "StaticTCPRendezvous create_rdzv_handler",
    },
    "elastic.rendezvous.utils": {
        "elastic_torchrun.rendezvous.endpoint": "parse_rendezvous_endpoint",
    },
    "elastic.timer": {
        "elastic_torchrun.timer.api": "TimerClient TimerRequest TimerServer configure expires",
        "elastic_torchrun.timer.file_client": "FileTimerClient",
        "elastic_torchrun.timer.file_request": "FileTimerRequest",
        "elastic_torchrun.timer.file_server": "FileTimerServer",
        "elastic_torchrun.timer.local_timer": "LocalTimerClient LocalTimerServer",
    },
    "elastic.timer.api": {
        "elastic_torchrun.timer.api": "RequestQueue TimerClient TimerRequest TimerServer configure expires",
    },
    "elastic.timer.debug_info_logging": {
        "elastic_torchrun.timer.debug_info_logging": "log_debug_info_for_expired_timers",
    },
    "elastic.timer.file_based_local_timer": {
        "elastic_torchrun.timer.file_client": "FileTimerClient",
        "elastic_torchrun.timer.file_request": "FileTimerRequest",
        "elastic_torchrun.timer.file_server": "FileTimerServer",
    },
    "elastic.timer.local_timer": {
        "elastic_torchrun.timer.local_timer": "LocalTimerClient LocalTimerServer MultiprocessingRequestQueue",
    },
    "elastic.utils": {
        "elastic_torchrun.helpers": "get_env_variable_or_raise macros",
        "elastic_torchrun.rendezvous.tcp_store": "get_socket_with_port",
    },
    "elastic.utils.api": {
        "elastic_torchrun.rendezvous.tcp_store": "get_socket_with_port",
        "elastic_torchrun.helpers": "get_env_variable_or_raise macros",
    },
    "elastic.utils.data": {
        "elastic_torchrun.data.cycling": "CyclingIterator",
        "elastic_torchrun.data.sampler": "ElasticDistributedSampler",
    },
    "elastic.utils.data.cycling_iterator": {
        "elastic_torchrun.data.cycling": "CyclingIterator",
    },
    "elastic.utils.data.elastic_distributed_sampler": {
        "elastic_torchrun.data.sampler": "ElasticDistributedSampler",
    },
    "elastic.utils.distributed": {
        "elastic_torchrun.rendezvous.tcp_store": "create_c10d_store get_free_port get_socket_with_port",
    },
    "elastic.utils.log_level": {
        "elastic_torchrun.helpers": "get_log_level",
    },
    "elastic.utils.logging": {
        "elastic_torchrun.helpers": "get_logger",
    },
    "elastic.utils.process_state": {
        "elastic_torchrun.helpers": "is_uninterruptible_state read_proc_state",
    },
    "elastic.utils.store": {
        "elastic_torchrun.rendezvous.store_helpers": "barrier get_all store_timeout synchronize",
    },
    "launch": {
        "elastic_torchrun.launcher.twin": "launch main parse_args",
    },
    "launcher": {
        "elastic_torchrun.launcher.api": "LaunchConfig elastic_launch launch_agent",
    },
    "launcher.api": {
        "elastic_torchrun.launcher.api": "LaunchConfig elastic_launch launch_agent",
    },
    "numa": {},
    "numa.binding": {
        "elastic_numa.binding": "AffinityMode NumaOptions",
    },
    "run": {
        "elastic_torchrun.launcher.torchs_parser": (
            "config_from_args determine_local_world_size get_args_parser get_rdzv_endpoint get_use_env main "
            "parse_args parse_min_max_nnodes run run_script_path"
        ),
    },
}
"""By torch's path without `torch.` and `distributed.`: elastic-core's modules, and the names that each provides."""

MAINS: dict[str, str] = {"run": "elastic_core.run", "launch": "elastic_torchrun.launcher.twin"}
"""The modules whose function `process` is run by `python -m elastic_core.compat.…`."""


def torch_path(name: str) -> str:
    """Torch's own path of a module of the table."""
    return f"torch.{name}" if name.startswith("numa") else f"torch.distributed.{name}"


def is_package(name: str) -> bool:
    """Whether there are modules below one of the table."""
    return any(other.startswith(f"{name}.") for other in NAMES)


def homes(name: str) -> dict[str, str]:
    """The names of a module, each with elastic-core's module that defines it."""
    return {each: home for home, names in NAMES[name].items() for each in names.split()}


def stub(name: str) -> str:
    """The text of a module's type stub."""
    lines = [f"from {home} import {each} as {each}" for each, home in homes(name).items()]
    return "\n".join([f'"""`{torch_path(name)}`, by ours."""', "", *lines, ""])
