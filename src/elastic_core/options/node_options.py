"""The options for nodes and their rendezvous: torch's rules, `local` for one node, or a store."""

import uuid
from typing import Final

from elastic_core.errors import ConfigError
from elastic_core.option_spec import RunOption
from elastic_core.options.choices import Choices, Draft, Section, section
from elastic_core.options.readers import integer, key_values, name_of, seconds, unprintable
from elastic_core.plugins.conversion import duration_s

_DEFAULT_STATIC_PORT = 29500
_RENDEZVOUS = ("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf")
_REDIS_SCHEMES = ("redis", "rediss", "unix")
_STATIC_ONLY = ("master_addr", "master_port")


def _node_id(choices: Choices, dest: str) -> str:
    return name_of(choices, dest) if choices.chosen(dest) else ""


def _allowed(choices: Choices, dest: str) -> tuple[str, ...]:
    texts = choices.texts(dest)
    if not texts:
        return ()
    from elastic_core.rendezvous.identity import parse_allow_mismatch  # milliseconds that other runs save

    return tuple(sorted(parse_allow_mismatch(texts)))


NODES: Final = section(
    Section.NODES,
    RunOption(
        name="nnodes",
        metavar="N|MIN:MAX",
        help="Number of nodes. MIN:MAX: start with at least MIN nodes, and use up to MAX.",
        default="1:1",
        torch=True,
    ),
    RunOption(
        name="standalone",
        type="bool",
        help="Run on this node alone, without a rendezvous; overrides the --rdzv-... options.",
        torch=True,
    ),
    RunOption(
        name="rdzv_backend",
        metavar="NAME",
        help="How nodes find each other: a backend that 'elastic plugins' lists, or module:Class. With one node, no "
        "endpoint and the default backend, the run uses 'local'.",
        default="static",
        torch=True,
        field="nodes.backend",
    ),
    RunOption(
        name="rdzv_endpoint",
        metavar="HOST[:PORT]",
        help="Address of the rendezvous backend, in the form that the backend expects. Each backend has its own "
        "default.",
        default="",
        torch=True,
        field="nodes.endpoint",
    ),
    RunOption(
        name="rdzv_id",
        metavar="ID",
        help="Run id, the same on all nodes; required with several nodes, except with 'static'.",
        default="none",
        default_note="a fresh one with one node",
        fault=unprintable,
        hint="--rdzv-id bert-7",
        torch=True,
        field="nodes.run_id",
    ),
    RunOption(
        name="rdzv_conf",
        metavar="K=V,K=V",
        help="Options of the rendezvous backend. Times are in seconds, or have a unit.",
        default="",
        torch=True,
        field="rdzv_conf",
    ),
    RunOption(
        name="environment",
        metavar="NAME|none",
        help="Scheduler that supplies defaults for options that are not given, if several schedulers are detected; "
        "'none' disables these defaults.",
        default_note="each that is detected: Slurm, Kubernetes pods, and other installed ones",
    ),
    RunOption(
        name="node_rank",
        type="int",
        help="Rank of this node with the 'static' backend. With other backends the preferred rank, used if it is free.",
        default=0,
        least=0,
        torch=True,
        field="nodes.node_rank",
    ),
    RunOption(
        name="master_addr",
        metavar="HOST",
        help="MASTER_ADDR, the address of node 0, with the 'static' backend or with one node.",
        default="127.0.0.1",
        torch=True,
        field="nodes.master_addr",
    ),
    RunOption(
        name="master_port",
        type="int",
        metavar="PORT",
        help="MASTER_PORT, the port on which rank 0 listens, with the 'static' backend or with one node.",
        default_note="29500; a free port with one node",
        least=0,
        most=65535,
        torch=True,
        field="nodes.master_port",
    ),
    RunOption(
        name="local_addr",
        metavar="HOST",
        help="Address of this node at which the other nodes reach it.",
        default_note="detected",
        torch=True,
        field="nodes.local_addr",
        read=Choices.value,
    ),
    RunOption(
        name="agent_port",
        type="int",
        metavar="PORT",
        help="Port of this agent. By UDP, agents report to each other whether they reach the store; by TCP, 'elastic "
        "logs' and 'elastic report' read. A firewall must let both through. Each agent of a host needs its own port.",
        default=0,
        default_note="a free port",
        least=0,
        most=65535,
        field="nodes.agent_port",
        read=Choices.value,
    ),
    RunOption(
        name="node_id",
        metavar="ID",
        help="Name of this node in logs and reports.",
        default_note="host name",
        fault=unprintable,
        hint="--node-id node0",
        field="nodes.node_id",
        read=_node_id,
    ),
    RunOption(
        name="rdzv_attempt",
        type="int",
        help="Number of this attempt at the run, the same on all nodes. A new number starts a new run after the last "
        "attempt has ended.",
        default=0,
        default_note="the scheduler's restart count (Slurm, JobSet, AWS Batch), else 0",
        least=0,
        field="nodes.attempt",
        read=Choices.value,
    ),
    RunOption(
        name="spares",
        type="int",
        metavar="K",
        help="How many nodes above the maximum of --nnodes may wait to replace a lost node. Further nodes are "
        "rejected.",
        default_note="no limit",
        least=0,
        field="nodes.spares",
        read=Choices.value,
    ),
    RunOption(
        name="allow_mismatch",
        metavar="KEY,KEY",
        help="Settings in which this node may differ from the run that it joins: nproc, role, nnodes, entrypoint, "
        "arguments, backend_options, torch, python, policy.",
        many=True,
        field="nodes.allow_mismatch",
        read=_allowed,
    ),
    RunOption(
        name="join_timeout",
        type="duration",
        help="How long to wait for the minimum number of nodes; with one node, for a hook that rejects the start. "
        "Same as join_timeout=SECONDS in --rdzv-conf.",
        default=600.0,
        above=0,
        field="join_timeout_s",
        read=Choices.value,
    ),
    RunOption(
        name="connect_timeout",
        type="duration",
        help="How long to try to connect to the backend's server at the start. Same as connect_timeout=SECONDS in "
        "--rdzv-conf.",
        default_note="60",
        above=0,
    ),
    RunOption(
        name="store_outage_grace",
        type="duration",
        help="How long workers continue while no node reaches the backend's server; then --on-store-loss applies. A "
        "new round waits equally long for the nodes of the last round if none of them responds, because their workers "
        "may still run.",
        default=120.0,
        field="nodes.store_outage_grace_s",
        read=Choices.value,
    ),
    RunOption(
        name="on_store_loss",
        help="If the server stays unreachable: keep the workers until they end, or fail the run.",
        default="keep",
        choices=("keep", "fail"),
        field="nodes.on_store_loss",
        read=Choices.value,
    ),
)


def place_run(draft: Draft, min_nodes: int, max_nodes: int) -> None:
    """Set the rendezvous fields and the run id.

    Raises:
        ConfigError: The options contradict each other, or a required one is missing.
    """
    choices = draft.choices
    backend = (choices.text("rdzv_backend") or "").strip()
    conf = key_values(choices, "rdzv_conf", [choices.text("rdzv_conf") or ""])
    if choices.flag("standalone"):
        _standalone(draft, min_nodes, max_nodes)
    elif backend == "local" and max_nodes > 1:
        raise ConfigError(
            f"nnodes: {min_nodes}:{max_nodes}; expected 1 with {draft.name('rdzv_backend')} 'local'",
            hint="--nnodes 1, or another --rdzv-backend",
        )
    elif max_nodes == 1 and (backend == "local" or (backend == "static" and _static_is_local(draft, conf))):
        _local_with_address(draft)
        if backend == "local":
            draft.take("rdzv_conf", conf)
        elif conf:
            draft.notice(f"{draft.name('rdzv_conf')} without effect: one node needs no rendezvous")
    else:
        _backend(draft, backend, conf, max_nodes)


def _static_is_local(draft: Draft, conf: dict[str, str]) -> bool:
    # One node needs no static rendezvous if the backend was not given, or no endpoint and options were.
    return not draft.choices.chosen("rdzv_backend") or not (conf or draft.choices.text("rdzv_endpoint"))


def _standalone(draft: Draft, min_nodes: int, max_nodes: int) -> None:
    origin = draft.choices.origin("standalone")
    if min_nodes > 1:
        raise ConfigError(
            f"nnodes: {min_nodes}:{max_nodes}; expected 1 with {origin.split()[-1]}",
            hint="--nnodes 1, or no --standalone",
        )
    if max_nodes > 1:
        draft.set("nodes.max_nodes", 1, origin)
        draft.notice(f"--standalone is for one node: no other joins, though nnodes is {min_nodes}:{max_nodes}")
    ignored = [draft.name(dest) for dest in _RENDEZVOUS if draft.choices.chosen(dest)]
    if ignored:
        draft.notice(f"{', '.join(ignored)} overridden by --standalone")
    draft.set("nodes.backend", "local", origin)
    draft.set("nodes.run_id", str(uuid.uuid4()), origin)
    _without_effect(draft, "standalone", (*_STATIC_ONLY, "node_rank"))
    notice_without_store(draft, "standalone")


def _local(draft: Draft, *, origin: str) -> None:
    draft.set("nodes.backend", "local", origin)
    notice_without_store(draft, "local")
    if draft.choices.chosen("rdzv_id"):
        draft.take("rdzv_id", name_of(draft.choices, "rdzv_id"))
    else:
        draft.set("nodes.run_id", str(uuid.uuid4()), "derived: fresh, one node")


def _local_with_address(draft: Draft) -> None:
    # For one node, `--rdzv-endpoint` (as torch's static reads it) or `--master-addr` and `--master-port` give the
    # address.
    choices = draft.choices
    explicit = choices.text("rdzv_backend") == "local"
    _local(draft, origin=choices.origin("rdzv_backend") if explicit else "derived: one node needs no rendezvous")
    if integer(choices, "node_rank") > 0:
        draft.notice(f"{draft.name('node_rank')} without effect: there is one node")
    if choices.text("rdzv_endpoint"):
        address, port = _endpoint(draft)
        _take_master(draft, address, port)
        return
    if choices.chosen("master_addr"):
        draft.take("master_addr", _unbracketed(choices.text("master_addr") or ""))
    if choices.chosen("master_port"):
        draft.take("master_port", integer(choices, "master_port", most=65535) or None)


def _take_master(draft: Draft, address: str, port: int | None) -> None:
    origin = draft.choices.origin("rdzv_endpoint")
    draft.set("nodes.master_addr", address, origin)
    draft.set("nodes.master_port", port, origin)


def _endpoint(draft: Draft) -> tuple[str, int | None]:
    # Host and port; no port or port 0 means any free port.
    text = (draft.choices.text("rdzv_endpoint") or "").strip()
    if "://" in text:  # not shown: it may contain a password
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
    # The registry checks later whether the backend is installed and accepts these options.
    choices = draft.choices
    static = backend == "static"
    if not backend:
        choices.reject("rdzv_backend", "the name of a rendezvous backend", hint="'elastic plugins' lists them")
    draft.take("rdzv_backend", backend)
    draft.take("rdzv_endpoint", (choices.text("rdzv_endpoint") or "").strip())
    draft.take("rdzv_conf", conf)
    if choices.chosen("rdzv_id") or static:
        draft.take("rdzv_id", name_of(choices, "rdzv_id"))
    elif max_nodes == 1:
        draft.set("nodes.run_id", str(uuid.uuid4()), "derived: fresh, one node")
    else:
        raise ConfigError(
            f"no run id is given; expected one, by which up to {max_nodes} nodes meet with rdzv-backend {backend!r}",
            hint="--rdzv-id NAME, the same on every node",
        )
    if static:
        _static(draft, max_nodes)
        return
    settle_store(draft, conf)
    if choices.chosen("node_rank"):
        draft.take("node_rank", integer(choices, "node_rank"))
    _without_effect(draft, backend, _STATIC_ONLY)


def _static(draft: Draft, max_nodes: int) -> None:
    choices = draft.choices
    notice_without_store(draft, "static")
    if max_nodes > 1 and (choices.text("max_restarts") or "0").strip() != "0":
        draft.notice("with 'static' a node restarts alone, and the others fail of it. Try: --rdzv-backend c10d")
    draft.take("node_rank", _check_node_rank(draft, max_nodes))
    address = _unbracketed(choices.text("master_addr") or "")
    port = integer(choices, "master_port", least=1, most=65535) if choices.chosen("master_port") else None
    if choices.text("rdzv_endpoint"):
        host, endpoint_port = _endpoint(draft)
        if endpoint_port is None:
            choices.reject("rdzv_endpoint", "a port with static", hint=f"{host}:{_DEFAULT_STATIC_PORT}")
        ignored = [draft.name(dest) for dest in ("master_addr", "master_port") if choices.chosen(dest)]
        if ignored:
            draft.notice(f"{', '.join(ignored)} without effect: --rdzv-endpoint gives the address of node 0")
        _take_master(draft, host, endpoint_port)
        return
    draft.take("master_addr", address)
    draft.take("master_port", port or _DEFAULT_STATIC_PORT)
    shown = f"[{address}]" if ":" in address else address
    draft.set("nodes.endpoint", f"{shown}:{port or _DEFAULT_STATIC_PORT}", "derived: master address and port")


def _check_node_rank(draft: Draft, max_nodes: int) -> int:
    rank = integer(draft.choices, "node_rank")
    if rank >= max_nodes:
        draft.choices.reject("node_rank", f"a rank below the number of nodes, {max_nodes}", hint="raise --nnodes")
    return rank


def _without_effect(draft: Draft, backend: str, dests: tuple[str, ...]) -> None:
    ignored = [draft.name(dest) for dest in dests if draft.choices.chosen(dest)]
    if ignored:
        draft.notice(f"{', '.join(ignored)} without effect with {backend!r}: only 'static' and a single node use it")


# --- runs with a store ---


# Options that are short forms of keys of `--rdzv-conf`.
_CONF_KEYS: Final = ("join_timeout", "connect_timeout")
_COORDINATED_ONLY: Final = (
    "spares",
    "rdzv_attempt",
    "allow_mismatch",
    "agent_port",
    "max_membership_changes",
    "store_outage_grace",
    "on_store_loss",
    "connect_timeout",
)


def settle_coordination(draft: Draft) -> None:
    """Set the fields for a rendezvous in a store; without a store, add notices about them.

    Raises:
        ConfigError: A value is malformed, or two values contradict each other.
    """
    draft.settle(NODES)
    draft.choices.value("connect_timeout")  # checked here, so that the error names the option


def settle_store(draft: Draft, conf: dict[str, str]) -> None:
    """Set the fields that only a run with a store needs: the backend's options, and the attempt.

    Raises:
        ConfigError: An option was given twice with different values.
    """
    from elastic_core.rendezvous.identity import attempt_from_environment  # milliseconds that other runs save

    draft.take("rdzv_conf", _shorthands(draft, conf))
    if not draft.choices.chosen("rdzv_attempt"):
        attempt = attempt_from_environment(draft.environ)
        draft.set("nodes.attempt", attempt.number, "derived: the scheduler's count" if attempt.number else "default")
        draft.set("nodes.job", attempt.job, "derived: the scheduler's name of the job" if attempt.job else "default")
        draft.set("nodes.attempt_given", attempt.given, "derived: the scheduler's" if attempt.given else "default")
    else:
        draft.set("nodes.attempt_given", True, "derived: --rdzv-attempt")


def _shorthands(draft: Draft, conf: dict[str, str]) -> dict[str, str]:
    # An option given twice with different values raises ConfigError.
    choices = draft.choices
    full = dict(conf)
    for key in filter(choices.chosen, _CONF_KEYS):
        text = (choices.text(key) or "").strip()
        if not text.replace(".", "").isdecimal():
            text = f"{seconds(choices, key):g}"  # handlers for torch accept no units
        typed = conf.get(key, text)
        sources = [choices.origin(dest).partition(" ")[0] for dest in (key, "rdzv_conf")]
        if _same(typed, text) or sources == ["flag", "env"]:
            full[key] = text
        elif sources[0] == sources[1]:
            raise ConfigError(
                f"{draft.name(key)} {text} and {key}={typed} in {draft.name('rdzv_conf')} disagree",
                hint="one of them",
            )
    return full


def notice_without_store(draft: Draft, backend: str) -> None:
    """Add a notice about options that have no effect without a store."""
    ignored = [draft.name(dest) for dest in _COORDINATED_ONLY if draft.choices.chosen(dest)]
    if ignored:
        draft.notice(f"{', '.join(ignored)} without effect with {backend!r}: there is no store in which nodes meet")


def _same(one: str, other: str) -> bool:
    times = duration_s(one), duration_s(other)
    return times[0] == times[1] if None not in times else one == other
