"""The settings of a run from a library call, checked as those of the command line."""

import logging
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from elastic_core.api import ConfigError
from elastic_core.embedding import ALLOWABLE, Entrypoint, RunSettings, resolve
from elastic_torchrun.functions.call import FunctionCall
from elastic_torchrun.launcher.launch_config import LaunchConfig
from elastic_torchrun.launcher.library_options import Given, given_from, library_environment
from elastic_torchrun.processes.logs_specs import DefaultLogsSpecs

if TYPE_CHECKING:
    from elastic_torchrun.agent.worker_spec import WorkerSpec

MACRO: Final = "${local_rank}"
CONFIGURED: Final = "configured"
"""The entry points of the handlers that pass data on to handlers configured in this process."""
_DEFAULT_BACKEND: Final = "etcd"
_C10D: Final = "c10d"
_STATIC: Final = "static"

_log = logging.getLogger(__name__)


def settings_of_config(config: LaunchConfig, entrypoint: Entrypoint) -> RunSettings:
    """Return the settings from torch's `LaunchConfig`.

    Raises:
        ConfigError: a value is malformed, or values contradict each other.
    """
    if not 0 < config.min_nodes <= config.max_nodes:
        what = f"LaunchConfig: min_nodes is {config.min_nodes}, max_nodes is {config.max_nodes}"
        raise ConfigError(what, hint="0 < min_nodes <= max_nodes")
    alone = config.max_nodes == 1 and config.rdzv_backend == _DEFAULT_BACKEND and not config.rdzv_endpoint
    options: dict[str, Any] = {
        "nnodes": f"{config.min_nodes}:{config.max_nodes}",
        "nproc_per_node": config.nproc_per_node,
        "run_id": config.run_id if alone else _run_id(config),
        "role": config.role,
        "max_restarts": config.max_restarts,
        "monitor_interval": config.monitor_interval,
        "local_addr": config.local_addr,
        "event_log_handler": _chosen(config.event_log_handler),
        "numa_binding": _numa(config.numa_options, config.nproc_per_node),
        "signals_to_handle": config.signals_to_handle,
        "duplicate_stdout_filters": config.duplicate_stdout_filters,
        "duplicate_stderr_filters": config.duplicate_stderr_filters,
        "virtual_local_rank": config.virtual_local_rank,
        "shutdown_timeout": config.shutdown_timeout,
        **_logs(config.logs_specs),
        **_metrics(config.metrics_cfg),
    }
    conf = {key: str(value) for key, value in config.rdzv_configs.items()}
    if not alone:
        options |= {"rdzv_backend": config.rdzv_backend, "rdzv_endpoint": _endpoint(config)}
        options["node_rank"] = conf.pop("rank", None)
    settings = _settled(given_from(options), entrypoint)
    if settings.nodes.backend != "local":
        settings = replace(settings, rdzv_conf={**conf, **settings.rdzv_conf})
    output = replace(settings.output, log_line_prefix_template=config.log_line_prefix_template)
    return replace(settings, output=output)


def _run_id(config: LaunchConfig) -> str:
    """Return the run's id. For several nodes without one, make a new one, as torch does."""
    if config.run_id or config.max_nodes == 1 or config.rdzv_backend == _STATIC:  # the settings have one for these
        return config.run_id
    made = str(uuid.uuid4())
    _log.warning("LaunchConfig has no run_id: this run is %s, and other nodes join it by that name alone", made)
    return made


def _endpoint(config: LaunchConfig) -> str:
    """Return the rendezvous endpoint. With `c10d` this node can choose it, as in torch."""
    endpoint = config.rdzv_endpoint.strip()
    if config.rdzv_backend != _C10D or config.max_nodes == 1:
        return endpoint
    host, _, port = endpoint.rpartition(":")
    if port != "0" or (":" in host and not host.endswith("]")):
        return endpoint or "localhost"
    from elastic_torchrun.rendezvous.tcp_store import get_free_port  # few want it

    made = f"{host}:{get_free_port()}"
    _log.warning("LaunchConfig has rdzv_endpoint %r: this run's is %s, and other nodes join only there", endpoint, made)
    return made


def settings_of_spec(spec: "WorkerSpec", entrypoint: Entrypoint, *, logs_specs: object) -> RunSettings:
    """Return the settings from torch's `WorkerSpec`, for one node; its handler adds more.

    Raises:
        ConfigError: a value is malformed.
    """
    options: dict[str, Any] = {
        "nproc_per_node": spec.local_world_size,
        "role": spec.role,
        "max_restarts": spec.max_restarts,
        "monitor_interval": spec.monitor_interval,
        "local_addr": spec.local_addr,
        "master_addr": spec.master_addr,
        "master_port": spec.master_port,
        "event_log_handler": _chosen(spec.event_log_handler),
        "numa_binding": _numa(spec.numa_options, spec.local_world_size),
        "duplicate_stdout_filters": spec.duplicate_stdout_filters,
        "duplicate_stderr_filters": spec.duplicate_stderr_filters,
        "virtual_local_rank": spec.virtual_local_rank,
        **_logs(logs_specs),
    }
    return _settled(given_from(options), entrypoint)


def settings_of_options(options: Mapping[str, object], entrypoint: Entrypoint) -> RunSettings:
    """Return the settings from options of `elastic run`, by their names with underscores.

    Raises:
        ConfigError: there is no such option, a value is malformed, or values contradict each other.
    """
    given = given_from(options)
    if "log_dir" in given and not {"redirects", "tee", "logs_specs"} & given.keys():
        given["tee"] = "3"  # else nothing would ever be in that directory
    return _settled(given, entrypoint)


def brings_logs(logs_specs: object) -> bool:
    """Return whether this object itself decides where output goes, and not only settings made from it."""
    return logs_specs is not None and not _logs(logs_specs)


def _settled(given: Given, entrypoint: Entrypoint) -> RunSettings:
    environ = library_environment()
    unset = "OMP_NUM_THREADS" not in environ and "omp_threads" not in given
    if unset:  # a library leaves it unset, as torch's does: only a command line logs that it was set to 1
        environ["OMP_NUM_THREADS"] = ""
    settings = resolve(_with_configured(given), environ=environ, entrypoint=entrypoint).settings
    return replace(
        settings,
        entrypoint=_for_each_rank(settings.entrypoint, settings.nodes.local_world_size),
        # What code asks for is no slip of a command line's.
        nodes=replace(settings.nodes, allow_mismatch=tuple(sorted(ALLOWABLE))),
    )


def _with_configured(given: Given) -> Given:
    """Add the handlers of metrics and events that code of this process has configured."""
    from elastic_torchrun.events import recording
    from elastic_torchrun.metrics import api as metrics

    added: Given = {}
    if metrics.is_configured():
        named = given.get("metrics_handler", ())
        added["metrics_handler"] = (*(named if isinstance(named, tuple) else ()), CONFIGURED)
    destination = str(given.get("event_log_handler", "null"))
    if recording.wants_events(destination):
        added["event_log_handler"] = f"{CONFIGURED}:{destination}"
    return {**given, **added}


def _for_each_rank(entrypoint: Entrypoint, nproc: int) -> Entrypoint:
    """Add each worker's local rank to the function's arguments, if they contain the placeholder."""
    call = entrypoint.function
    if (
        not isinstance(call, FunctionCall)
        or not isinstance(call.args, tuple)
        or not any(_asks(arg) for arg in call.args)
    ):
        return entrypoint
    args = {rank: tuple(_filled(arg, rank) for arg in call.args) for rank in range(nproc)}
    return replace(entrypoint, function=replace(call, args=args))


def _asks(argument: object) -> bool:
    return isinstance(argument, str) and MACRO in argument


def _filled(argument: object, rank: int) -> object:
    return argument.replace(MACRO, str(rank)) if isinstance(argument, str) else argument


def _numa(options: object, nproc: int) -> object:
    """Return the mode of torch's `NumaOptions` or elastic-core's. `None` also if binding is impossible and optional."""
    mode = getattr(options, "affinity_mode", None)
    mode = getattr(mode, "value", mode)
    if mode is None or not getattr(options, "should_fall_back_if_binding_fails", False):
        return mode
    from elastic_numa import AffinityMode, NumaOptions  # few want it

    ours = NumaOptions(AffinityMode(mode), should_fall_back_if_binding_fails=True)
    return None if ours.cpus_for(0, nproc) is None else mode


def _chosen(event_log_handler: str) -> str | None:
    """Return the name unless its handler drops all events, as torch's default does."""
    return None if event_log_handler == "null" else event_log_handler


def _metrics(metrics_cfg: Mapping[str, str] | None) -> dict[str, Any]:
    """Return its options; other keys are ignored, as torch ignores all."""
    cfg = metrics_cfg or {}
    return {"metrics_handler": cfg.get("handler"), "metrics_port": cfg.get("port")}


def _logs(logs_specs: object) -> dict[str, Any]:
    """Return the options that correspond to a `DefaultLogsSpecs`; empty if only the object itself can decide."""
    if type(logs_specs) is not DefaultLogsSpecs:
        return {}
    log_dir, redirects, tee, ranks = logs_specs.chosen
    if not log_dir and (redirects or tee):
        return {}  # its user will ask the object where the files are
    return {
        "log_dir": log_dir,
        "redirects": _streams(redirects),
        "tee": _streams(tee),
        "local_ranks_filter": sorted(ranks or ()) or None,
    }


def _streams(streams: object) -> str | None:
    if isinstance(streams, Mapping):
        return ",".join(f"{rank}:{int(std)}" for rank, std in streams.items()) or None
    return str(int(streams)) if isinstance(streams, int) and streams else None
