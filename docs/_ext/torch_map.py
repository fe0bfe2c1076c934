"""The names of torch 2.13 and their counterparts here, for the migration page and its test.

Names are those that a module of torch defines or exports, without an underscore. A test fails if a name is neither
here nor explained, if a counterpart cannot be imported, or if it does not accept torch's parameters.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final

from elastic_torchrun.names import NAMES, homes, torch_path


@dataclass(frozen=True)
class Module:
    """The counterpart of a module of torch.

    Args:
        room: Our shorter module. None means that only the module in `elastic_core.compat` exists.
        names: Names in both, by the name in torch.
        compat_only: Names only in `elastic_core.compat`.
        absent: Names that do not exist here, with the reason.
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
_FOR_ITS_LOG: Final = "used only for torch's log lines"
_TYPE_VARIABLE: Final = "a type variable"
_TORCHS_OWN: Final = "import torch's class, `torch.distributed.DistStoreError`"
_ETCD_STOP: Final = "use `EtcdServer.stop`"
_CAS: Final = "a delay between two attempts of a store without a watch; the store here watches"
_ETCD_PROTOCOL: Final = "part of torch's protocol on etcd's v2 API; the protocol here is another, on the v3 API"

_ROOMS: Final[Mapping[str, str]] = {
    "elastic.control_plane": "elastic_ops.control_plane",
    "elastic.events": "elastic_torchrun.events",
    "elastic.metrics": "elastic_torchrun.metrics",
    "elastic.multiprocessing.errors": "elastic_ops.recording",
    "launch": "elastic_core.launch",
    "launcher": "elastic_core.launcher",
    "numa": "elastic_numa",
    "run": "elastic_core.run",
}
"""Our shorter modules, by the module of torch whose names they have."""

_OTHER: Final = {("elastic_core.run", "main")}
"""Names that are another function in our module."""

_BESIDE: Final[Mapping[str, str]] = {
    "elastic.events": "EventHandler NullEventHandler configure",
    "elastic.events.handlers": "log_handlers",
    "elastic.metrics": "MetricStream",
    "elastic.multiprocessing.api": (
        "ProcessFailure SubprocessHandler TailLog get_subprocess_handler redirect_stderr redirect_stdout"
    ),
    "elastic.multiprocessing.errors": "set_error_handler",
}
"""Names here that torch does not define."""

_ABSENT: Final[Mapping[str, Mapping[str, str]]] = {
    "elastic.multiprocessing.api": {"IS_MACOS": _LINUX, "IS_WINDOWS": _LINUX},
    "elastic.multiprocessing.redirects": {
        "IS_MACOS": _LINUX,
        "IS_WINDOWS": _LINUX,
        "get_libc": _BY_PYTHON,
        "libc": _BY_PYTHON,
    },
    "elastic.multiprocessing.subprocess_handler.subprocess_handler": {"IS_WINDOWS": _LINUX},
    "elastic.rendezvous.dynamic_rendezvous": {"get_method_name": _FOR_ITS_LOG},
    "elastic.rendezvous.etcd_rendezvous": dict.fromkeys(
        (
            "CONST_ETCD_FROZEN_TTL",
            "CONST_ETCD_JOINABLE_EPHEMERAL_TTL",
            "CONST_ETCD_SETUP_TTL",
            "CONST_RUNID_SUBROOT_TTL",
            "CONST_WORKER_KEEPALIVE_TTL",
            "EtcdRendezvousRetryImmediately",
            "EtcdRendezvousRetryableFailure",
        ),
        _ETCD_PROTOCOL,
    ),
    "elastic.rendezvous.etcd_server": {"stop_etcd": _ETCD_STOP},
    "elastic.rendezvous.etcd_store": {"cas_delay": _CAS},
    "elastic.utils.data.elastic_distributed_sampler": {"T": _TYPE_VARIABLE},
    "elastic.utils.store": {"DistStoreError": _TORCHS_OWN},
    "numa.binding": {"K": _TYPE_VARIABLE, "V": _TYPE_VARIABLE},
}
"""Names of torch that do not exist here, with the reason."""


def _module(name: str) -> Module:
    beside = _BESIDE.get(name, "").split()
    known = sorted(each for each in homes(name) if each not in beside)
    room = next((room for torchs, room in reversed(_ROOMS.items()) if f"{name}.".startswith(f"{torchs}.")), None)
    exported = importlib.import_module(room).__all__ if room else ()
    shared = tuple(each for each in known if each in exported and (room, each) not in _OTHER)
    return Module(
        room=room if shared else None,
        names=shared,
        compat_only=tuple(each for each in known if each not in shared),
        absent=_ABSENT.get(name, {}),
    )


MODULES: Final[Mapping[str, Module]] = {torch_path(name): _module(name) for name in NAMES if NAMES[name]}
"""The modules of elastic-torchrun by torch's name."""

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
    "USE_LIBUV": "torch's own stores read it",
}
"""Variables of torch's modules that are neither set nor read here, with the reason."""

SINCE: Final[Mapping[str, str]] = {
    "--log-line-prefix-template": "2.14",
    "--print-completion": "2.14",
    "worker server: c10d_health_check": "2.15",
    "worker server: fr_dump_file": "2.15",
    "torch.distributed.elastic.multiprocessing.errors.ErrorHandler.maybe_enrich_signal_failure_message": "2.14",
    "torch.distributed.elastic.multiprocessing.errors.ErrorHandler.record_success": "2.15",
    "torch.distributed.elastic.multiprocessing.errors.ErrorHandler.set_entrypoint_fn_name": "2.15",
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous.RendezvousSettings.cas_backoff_max_seconds": "2.15",
}
"""Options, handlers and methods that torch 2.13 does not have, each with the release that added it."""


def has(name: str) -> bool:
    """Return whether the installed torch has what `SINCE` may list; all else it has."""
    installed = tuple(int(part) for part in version("torch").split(".")[:2])
    return installed >= tuple(int(part) for part in SINCE.get(name, "0.0").split("."))


COMMANDS: Final[tuple[tuple[str, str], ...]] = (
    ("torchrun", "`elastic run`"),
    ("python -m torch.distributed.run", "`python -m elastic_core.run`"),
    ("python -m torch.distributed.launch", "`python -m elastic_core.launch`, also deprecated"),
    ("python -m torch.distributed.launch --use-env", "`elastic run`"),
    ("torchrun.handlers (entry points)", "`elastic_core.rendezvous`; entry points of torch's group are found as well"),
    ("torchrun.logs_specs (entry points)", "the same group"),
)
"""Commands and entry-point groups of torch, and their counterparts here."""

PAGES: Final[tuple[tuple[str, str], ...]] = (
    ("Quickstart", "[your first run](../tutorial/first-run.md), [two nodes](../tutorial/two-nodes.md)"),
    ("Train script", "[write a train script](../howto/train-script.md)"),
    ("Examples", "[digits](../tutorial/digits.md), and the folder `examples`"),
    ("torchrun (Elastic Launch)", "[elastic run](run.md), [coming from torchrun](../howto/from-torchrun.md)"),
    (
        "Elastic Agent",
        "[agent as a library](agent.md), [run workers from Python](../howto/from-python.md)",
    ),
    ("Multiprocessing", "[processes as a library](multiprocessing.md), [logs](../howto/logs.md)"),
    ("Subprocess Handling", "[processes as a library](multiprocessing.md)"),
    ("Error Propagation", "[errors](errors.md), [error file](error-file.md)"),
    ("Rendezvous", "[rendezvous as a library](rendezvous.md), [backends](backends.md)"),
    ("Expiration Timers", "[timers](timers.md)"),
    ("Metrics", "[metrics](metrics.md), [metrics and events](../howto/metrics-and-events.md)"),
    ("Events", "[events](events.md)"),
    ("Control Plane", "[control plane](control-plane.md), [control a run](../howto/operating-a-run.md)"),
    ("NUMA Binding Utilities", "[bind workers to processors](../howto/numa.md)"),
    (
        "Customization",
        "[customize it](../howto/customization.md), [the interfaces](../plugin_authors/interfaces.md)",
    ),
    ("TorchElastic Kubernetes", "[Kubernetes](../howto/kubernetes.md), [containers](../howto/containers.md)"),
)
"""The pages of torch's documentation of elastic, and ours."""
