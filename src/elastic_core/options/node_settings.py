"""Which rendezvous a run uses, with what: torch's rules, and `local` where one node needs no rendezvous."""

import uuid

from elastic_core.errors import ConfigError
from elastic_core.options.coordination import settle_store, tell_without_store
from elastic_core.options.draft import Draft
from elastic_core.options.values import integer, key_values, name_of

_DEFAULT_STATIC_PORT = 29500
_RENDEZVOUS = ("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf")
_REDIS_SCHEMES = ("redis", "rediss", "unix")
_STATIC_ONLY = ("master_addr", "master_port")


def place_run(draft: Draft, min_nodes: int, max_nodes: int) -> None:
    """Settle the rendezvous fields and the run's id.

    Raises:
        ConfigError: the options contradict each other, or a needed one is missing.
    """
    choices = draft.choices
    backend = (choices.text("rdzv_backend") or "").strip()
    conf = key_values(choices, "rdzv_conf", [choices.text("rdzv_conf") or ""])
    if choices.flag("standalone"):
        _standalone(draft, min_nodes, max_nodes)
    elif backend == "local" and max_nodes > 1:
        raise ConfigError(
            f"{draft.name('rdzv_backend')} 'local' serves one node: nnodes is {min_nodes}:{max_nodes}",
            hint="--nnodes 1, or another --rdzv-backend",
        )
    elif max_nodes == 1 and (backend == "local" or (backend == "static" and _static_is_local(draft, conf))):
        _local_with_address(draft)
        _local_conf(draft, backend, conf)
    else:
        _backend(draft, backend, conf, max_nodes)


def _static_is_local(draft: Draft, conf: dict[str, str]) -> bool:
    """Return whether one node needs no static rendezvous: it was not asked for by name, or has nothing to work with."""
    return not draft.choices.chosen("rdzv_backend") or not (conf or draft.choices.text("rdzv_endpoint"))


def _local_conf(draft: Draft, backend: str, conf: dict[str, str]) -> None:
    if backend == "local":
        draft.take("rdzv_conf", conf)
    elif conf:
        draft.tell(f"{draft.name('rdzv_conf')} without effect: one node needs no rendezvous")


def _standalone(draft: Draft, min_nodes: int, max_nodes: int) -> None:
    origin = draft.choices.origin("standalone")
    if min_nodes > 1:
        raise ConfigError(
            f"{origin.split()[-1]} is for one node: nnodes is {min_nodes}:{max_nodes}",
            hint="--nnodes 1, or no --standalone",
        )
    if max_nodes > 1:
        draft.set("max_nodes", 1, origin)
        draft.tell(f"--standalone is for one node: no other joins, though nnodes is {min_nodes}:{max_nodes}")
    ignored = [draft.name(dest) for dest in _RENDEZVOUS if draft.choices.chosen(dest)]
    if ignored:
        draft.tell(f"{', '.join(ignored)} overridden by --standalone")
    draft.set("rdzv_backend", "local", origin)
    draft.set("run_id", str(uuid.uuid4()), origin)
    _without_effect(draft, "standalone", (*_STATIC_ONLY, "node_rank"))
    tell_without_store(draft, "standalone")


def _local(draft: Draft, *, origin: str) -> None:
    draft.set("rdzv_backend", "local", origin)
    tell_without_store(draft, "local")
    if draft.choices.chosen("rdzv_id"):
        draft.take("run_id", name_of(draft.choices, "rdzv_id"), "rdzv_id")
    else:
        draft.set("run_id", str(uuid.uuid4()), "derived: fresh, one node")


def _local_with_address(draft: Draft) -> None:
    """One node: `--rdzv-endpoint`, as torch's static reads it, or `--master-addr`/`--master-port` say where."""
    choices = draft.choices
    explicit = choices.text("rdzv_backend") == "local"
    _local(draft, origin=choices.origin("rdzv_backend") if explicit else "derived: one node needs no rendezvous")
    if integer(choices, "node_rank", at_least=0) > 0:
        draft.tell(f"{draft.name('node_rank')} without effect: there is one node")
    if choices.text("rdzv_endpoint"):
        address, port = _endpoint(draft)
        draft.take("master_addr", address, "rdzv_endpoint")
        draft.take("master_port", port, "rdzv_endpoint")
        return
    if choices.chosen("master_addr"):
        draft.take("master_addr", _unbracketed(choices.text("master_addr") or ""))
    if choices.chosen("master_port"):
        draft.take("master_port", integer(choices, "master_port", at_least=0, at_most=65535) or None)


def _endpoint(draft: Draft) -> tuple[str, int | None]:
    """Return host and port of `--rdzv-endpoint`; port 0 or none: any free one."""
    text = (draft.choices.text("rdzv_endpoint") or "").strip()
    if "://" in text:  # not shown: it may hold a password
        scheme = text.partition("://")[0]
        raise ConfigError(
            f"{draft.name('rdzv_endpoint')} is a URL, and no backend that takes one was named",
            hint="--rdzv-backend redis" if scheme in _REDIS_SCHEMES else "HOST:PORT",
        )
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, ""
    if not host or (port and not (port.isdecimal() and int(port) <= 65535)) or (colon and not port):
        draft.choices.reject("rdzv_endpoint", "HOST or HOST:PORT", hint="localhost:29500")
    return _unbracketed(host), int(port or 0) or None


def _unbracketed(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _backend(draft: Draft, backend: str, conf: dict[str, str], max_nodes: int) -> None:
    """A rendezvous backend by name; whether it is installed, and takes these options, is its registry's word."""
    choices = draft.choices
    static = backend == "static"
    if not backend:
        choices.reject("rdzv_backend", "the name of a rendezvous backend", hint="'elastic plugins' lists them")
    draft.take("rdzv_backend", backend)
    draft.take("rdzv_endpoint", (choices.text("rdzv_endpoint") or "").strip())
    draft.take("rdzv_conf", conf)
    if choices.chosen("rdzv_id") or static:
        draft.take("run_id", name_of(choices, "rdzv_id"), "rdzv_id")
    elif max_nodes == 1:
        draft.set("run_id", str(uuid.uuid4()), "derived: fresh, one node")
    else:
        raise ConfigError(
            f"no run id: up to {max_nodes} nodes find each other by it with rdzv-backend {backend!r}",
            hint="--rdzv-id NAME, the same on every node",
        )
    if static:
        _static(draft, max_nodes)
        return
    settle_store(draft, conf)
    if choices.chosen("node_rank"):
        rank = integer(choices, "node_rank", at_least=0)
        _compare_with_slurm(draft, rank)
        draft.take("node_rank", rank)
    _without_effect(draft, backend, _STATIC_ONLY)


def _static(draft: Draft, max_nodes: int) -> None:
    choices = draft.choices
    tell_without_store(draft, "static")
    if max_nodes > 1 and (choices.text("max_restarts") or "0").strip() != "0":
        draft.tell("with 'static' a node restarts alone, and the others fail of it. Try: --rdzv-backend c10d")
    rank = _check_node_rank(draft, max_nodes)
    _compare_with_slurm(draft, rank)
    draft.take("node_rank", rank)
    address = _unbracketed(choices.text("master_addr") or "")
    port = integer(choices, "master_port", at_least=1, at_most=65535) if choices.chosen("master_port") else None
    if choices.text("rdzv_endpoint"):
        host, endpoint_port = _endpoint(draft)
        if endpoint_port is None:
            choices.reject("rdzv_endpoint", "a port with static", hint=f"{host}:{_DEFAULT_STATIC_PORT}")
        ignored = [draft.name(dest) for dest in ("master_addr", "master_port") if choices.chosen(dest)]
        if ignored:
            draft.tell(f"{', '.join(ignored)} without effect: --rdzv-endpoint says where node 0 is")
        draft.take("master_addr", host, "rdzv_endpoint")
        draft.take("master_port", endpoint_port, "rdzv_endpoint")
        return
    draft.take("master_addr", address)
    draft.take("master_port", port or _DEFAULT_STATIC_PORT)
    shown = f"[{address}]" if ":" in address else address
    draft.set("rdzv_endpoint", f"{shown}:{port or _DEFAULT_STATIC_PORT}", "derived: master address and port")


def _check_node_rank(draft: Draft, max_nodes: int) -> int:
    rank = integer(draft.choices, "node_rank", at_least=0)
    if rank >= max_nodes:
        draft.choices.reject("node_rank", f"a rank below the number of nodes, {max_nodes}", hint="raise --nnodes")
    return rank


def _compare_with_slurm(draft: Draft, rank: int) -> None:
    """Say it where one step spans the nodes, and the rank is not this task's: expanded in the batch script, say."""
    node, task = draft.environ.get("SLURM_NODEID", ""), draft.environ.get("SLURM_PROCID", "")
    if draft.environ.get("SLURM_STEP_NUM_NODES", "1") != "1" and node and str(rank) not in (node, task):
        draft.tell(
            f"node rank {rank} ({draft.choices.origin('node_rank')}) on Slurm's node {node} (SLURM_NODEID). Try: "
            "srun bash -c 'PET_NODE_RANK=$SLURM_NODEID exec elastic run …'"
        )


def _without_effect(draft: Draft, backend: str, dests: tuple[str, ...]) -> None:
    ignored = [draft.name(dest) for dest in dests if draft.choices.chosen(dest)]
    if ignored:
        draft.tell(f"{', '.join(ignored)} without effect with {backend!r}: only 'static' and a single node use it")
