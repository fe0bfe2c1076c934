"""What the reference pages take from the code: each function returns MyST Markdown.

A name that the code has and these tables don't explain raises KeyError: the build fails, and so does the test.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import house
from msgspec.structs import replace
from page_parts import first_line, public, table
from public_names import api_front_page, api_reference, embedding_reference

from elastic_core import errors
from elastic_core.agent.machine.states import AgentState
from elastic_core.api import AgentHook, LaunchChange
from elastic_core.hooks.members import METHODS
from elastic_core.launcher.plan import Attempt, worker_environment
from elastic_core.option_spec import OptionSpec, RunOption
from elastic_core.options.choices import Section
from elastic_core.options.hook_options import all_hook_options
from elastic_core.options.settings import Entrypoint, RunSettings
from elastic_core.options.table import OPTIONS
from elastic_core.options.worker_options import WorkerSettings
from elastic_core.plugins.conversion import wanted
from elastic_core.plugins.discovery import KINDS
from elastic_core.plugins.loading import INTERFACES, bases_of
from elastic_core.processes.spec import WorkerPaths
from elastic_core.rendezvous.coordinated_options import COORDINATED_OPTIONS
from elastic_core.types import FailureClass, RendezvousSettings, Round
from elastic_ops.control_plane.agent_handlers import AGENT_HANDLERS, AgentHandlers
from elastic_ops.control_plane.builtin import BUILT_IN
from elastic_ops.metrics.table import FAMILIES
from elastic_policy_rules import schema
from elastic_policy_rules.values import CLASS_NAMES
from elastic_rdzv_etcd.store import EtcdStore
from elastic_rdzv_etcd.v2.store import EtcdV2Store
from elastic_rdzv_redis.embedded import EmbeddedStore
from elastic_rdzv_redis.store import RedisStore
from elastic_rdzv_static.handler import StaticRendezvous

WORKER_VARIABLES: Final[Mapping[str, str]] = {
    "RANK": "global rank: this worker's number among all workers, from 0",
    "WORLD_SIZE": "how many workers the round has on all nodes together",
    "LOCAL_RANK": "this worker's number on its node, from 0; 0 in every worker with `--virtual-local-rank`",
    "LOCAL_WORLD_SIZE": "how many workers this node has",
    "GROUP_RANK": "rank of the node",
    "GROUP_WORLD_SIZE": "how many nodes the round has",
    "ROLE_NAME": "`--role`",
    "ROLE_RANK": "this worker's number among the workers of its role",
    "ROLE_WORLD_SIZE": "how many workers have this role",
    "MASTER_ADDR": "where rank 0 is; in a run of one node `127.0.0.1`, or what `--master-addr` or `--local-addr` says",
    "MASTER_PORT": "where rank 0 listens; in a run of one node a port that the agent holds for it, a new one each time "
    "unless `--master-port` chose it",
    "TORCHELASTIC_RESTART_COUNT": "how many failures were answered with a restart so far in this run; 0 at first",
    "TORCHELASTIC_MAX_RESTARTS": "`--max-restarts`",
    "TORCHELASTIC_RUN_ID": "the run's id (`--rdzv-id`, or a fresh one)",
    "TORCHELASTIC_USE_AGENT_STORE": "`False`: rank 0 hosts the store of `init_process_group`; `True`: it is there "
    "(`--agent-store`, or rank 0 has connected to it as a client: then our hook sets it)",
    "TORCHELASTIC_ERROR_FILE": "where the worker's first uncaught exception is recorded",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "`1`, unless it is set already",
    "OMP_NUM_THREADS": "`1` with several workers where it is unset, as torchrun does; `--omp-threads` sets it",
    "CUDA_VISIBLE_DEVICES": "the devices of `--devices` (one of them with `--virtual-local-rank`); otherwise as "
    "inherited. Its name is that of the accelerator's own variable: `HIP_VISIBLE_DEVICES`, `ZE_AFFINITY_MASK`",
    "ELASTIC_ROUND": "index of the round, from 0: counts every restart and every change of membership",
    "ELASTIC_MEMBERSHIP_CHANGES": "how many rounds began because nodes came or went",
    "ELASTIC_NODE_ID": "the node's name in logs and reports (`--node-id`, else the host's name)",
    "ELASTIC_INCARNATION": "random mark of this agent, by which left-over processes are recognised",
    "ELASTIC_WORKER_HOOKS": "`1`: the worker's interpreter records its uncaught exception; absent with "
    "`--no-worker-hooks`",
    "ELASTIC_FAULT_FILE": "where the stack of a fault signal (SIGSEGV and the like) is written",
    "ELASTIC_STARTUP": "functions that a hook has the worker's interpreter call before its script; absent without one",
}
"""What a worker's environment holds beside what it inherits."""

VARIABLES_OF_HOOKS: Final[Mapping[str, str]] = {
    "TORCH_WORKER_SERVER_SOCKET": "where the worker's [control plane](control-plane.md) listens if its script wants "
    "one; a value of yours stands; absent with `--no-control-plane`, and without elastic-ops",
    "TORCHELASTIC_TIMER_FILE": "the pipe for [timers](timers.md); absent, or as inherited, without "
    "`TORCHELASTIC_ENABLE_FILE_TIMER=1`",
    "LAST_ROUND_FILE": "a file that, from the second round on, says what the one before was, for "
    "[`attempt()`](worker.md#from-elastic-train); absent without elastic-train",
    "TRAINING_BEAT_FILE": "memory for [heartbeats](../howto/hangs.md) and stacks; absent without elastic-watch",
    "TRAINING_STOP_PAGE": "memory for [`should_stop`](../explanation/planned-stops.md); absent without elastic-train",
    "TRAINING_STOP_FILE": "a file that is there while a [planned stop](../explanation/planned-stops.md) is held; "
    "removing it says that the worker has saved; with `--save-timeout` or `--save-signal`",
}
"""What hooks of ours add."""

READ_VARIABLES: Final[Mapping[str, str]] = {
    "PYTHON_EXEC": "interpreter of the workers; default: the one that runs `elastic`",
    "OMP_NUM_THREADS": "left as it is where it is set, unless `--omp-threads` is given",
    "LOGLEVEL": "level of events, which are INFO: `WARNING` records none",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "signals that end the wait of [`start_processes`](multiprocessing.md); "
    "default `SIGTERM,SIGINT,SIGHUP,SIGQUIT`",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "seconds of grace where `--shutdown-timeout` is not given",
    "TORCHELASTIC_HEALTH_CHECK_PORT": "port on which [health checks](agent.md) are answered; 0 takes a free one",
    "ELASTIC_HEALTH_CHECK_HOST": "address to listen on for them; default `127.0.0.1`",
    "TORCHELASTIC_ENABLE_FILE_TIMER": "`1`: the agent ends workers whose [timers](timers.md) run down",
    "TORCHELASTIC_TIMER_FILE": "where to make the pipe by which workers set them; default: in the run directory",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "seconds in uninterruptible sleep after which a worker is a failure "
    "(`--uninterruptible-timeout` of `elastic-watch`); default: never",
    "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT": "seconds that a node whose workers are done waits for the others', with a "
    "handler that was written for torch; default 300",
    "TORCH_ELASTIC_WORKER_IDENTICAL": "`1`: subclasses of `SimpleElasticAgent` take all nodes to be alike",
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "prefix of tee'd lines, where `--log-line-prefix-template` is not given",
    "HIP_VISIBLE_DEVICES": "the devices of `--virtual-local-rank` on ROCm, one for each worker, which finds it in "
    "`CUDA_VISIBLE_DEVICES` as well",
    "CUDA_VISIBLE_DEVICES": "limits what `--nproc-per-node gpu` counts and what the numbers of `--devices` mean; for "
    "other accelerators `HIP_VISIBLE_DEVICES`, `ROCR_VISIBLE_DEVICES`, `ZE_AFFINITY_MASK`",
    "NCCL_SOCKET_IFNAME": "NCCL's own: `elastic doctor` says where it names no interface of the node",
    "NCCL_IB_DISABLE": "NCCL's own: `elastic doctor` warns of `1`, which leaves InfiniBand unused",
    "CUDA_LAUNCH_BLOCKING": "CUDA's own: `elastic doctor` warns of `1`, which waits for each kernel",
    "TORCH_NCCL_BLOCKING_WAIT": "torch's own: `elastic doctor` warns of `1`, which is slower",
    "XDG_RUNTIME_DIR": "where run directories of runs with a terminal are made, if it is this user's own; else "
    "`TMPDIR`, `TEMP`, `TMP`, `/tmp`",
    "SLURM_RESTART_COUNT": "which attempt at the run this is, where `--rdzv-attempt` is not given; else "
    "`JOBSET_RESTART_ATTEMPT`, `AWS_BATCH_JOB_ATTEMPT`",
    "JOB_COMPLETION_INDEX": "shows a pod of an Indexed Job or a JobSet to `elastic-env-kubernetes`, which takes "
    "`ELASTIC_K8S_NNODES` and [others](../howto/kubernetes.md#what-a-pod-knows) for options that nobody gave",
    "ELASTIC_SLURM_VERDICTS": "the folder in which each agent leaves its exit code, for the script of a job; set by "
    "`elastic slurm submit`",
    "ELASTIC_JOB_ID": "the scheduler's name of the job, the same for all its nodes, where it has no variable of its "
    "own for it (`SLURM_JOB_ID`, `AWS_BATCH_JOB_ID`): a verdict of another job is no answer to this one",
    "TORCHELASTIC_ETCD_BINARY_PATH": "the etcd that `EtcdServer` and `--rdzv-conf embedded=true` run; default that of "
    "the extra `embedded`, else the one on `PATH`",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "set to `1`, where it is not set, with a handler that was written for torch: "
    "each round gets a port of its own",
    "REDIS_URL": "where the server of backend `redis` is, where `--rdzv-endpoint` is not given",
    "ELASTIC_REDIS_USERNAME": "ACL user of backend `redis`, where neither URL nor `username` in `--rdzv-conf` says it",
    "ELASTIC_REDIS_PASSWORD": "its password, where neither URL nor `password_file` in `--rdzv-conf` says it",
    "ELASTIC_ETCD_ENDPOINTS": "where backend `etcd` is, where `--rdzv-endpoint` is not given: `HOST:2379,HOST2:2379`",
    "ETCDCTL_ENDPOINTS": "the same, as etcd's own command reads it",
    "ELASTIC_ETCD_USERNAME": "user of backend `etcd`, where neither URL nor `username` in `--rdzv-conf` says it",
    "ELASTIC_ETCD_PASSWORD": "its password, where neither URL nor `password_file` in `--rdzv-conf` says it",
    "ELASTIC_C10D_TOKEN": "token that all nodes of backend `c10d` share, where `token_file` is not given",
    "ELASTIC_C10D_SECRETS": "the folder, which all hosts of the user share, for the secrets that hosts of backend "
    "`c10d` make; default `~/.local/state/elastic/c10d`",
    "ELASTIC_KEEP": "`1` in what a worker starts: that process is [left running](../explanation/no-orphans.md) on "
    "purpose; the launcher's own is not passed on to workers",
    "PATH": "where a program of `--no-python` is looked for, and the server of backend `c10d`",
    "ELASTIC_DEBUG": "`1`: an error of the command line also shows its traceback, and so does what a plugin raises",
}
"""What `elastic run` reads, beside the `PET_` variables."""

INTERNAL_VARIABLES: Final[Mapping[str, str]] = {
    "ELASTIC_SIDECAR": "`1` in a server that an agent has started beside its workers, by which its guard knows it",
    "ELASTIC_WORKER_PROGRAM": "below a command in front that is a Python program: how the command line ends of the "
    "interpreter that counts as the worker's",
    "ELASTIC_KEPT_FOLDER": "the folder that a server of a backend has on this host; both go when the agent does",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "set to `0` for the process of `--agent-store`, which needs no device",
}
"""Neither for users nor for workers."""


def options() -> str:
    """Every option of `elastic run`, by section."""
    parts = []
    every = [*OPTIONS, *all_hook_options()]
    for section in dict.fromkeys((*map(str, Section), *(str(row.heading) for row in every))):
        rows = [row for row in every if row.heading == section]
        head = ("option", "meaning", "default", "variable", "in torchrun")
        parts += [f"## {section}", table(head, map(_option, rows))]
    return "\n\n".join(parts)


def _option(row: RunOption) -> tuple[str, ...]:
    names = ([f"-{row.short}"] if row.short else []) + [f"--{row.flag}"]
    typed = ", ".join(f"`{name} {row.value_name}`" if row.value_name else f"`{name}`" for name in names)
    default = (
        "" if not row.value_name else row.default_note or (f"`{row.default_text}`" if row.default_text else "none")
    )
    many = " May be given several times." if row.many else ""
    return typed, row.help + many, default, f"`{row.env_name}`" if row.env_name else "", "yes" if row.torch else "no"


def worker_variables() -> str:
    """What workers find in their environment."""
    found = {name: WORKER_VARIABLES[name] for name in worker_variable_names()} | VARIABLES_OF_HOOKS
    return table(("variable", "meaning"), ((f"`{name}`", text) for name, text in found.items()))


def worker_variable_names() -> list[str]:
    """Return the names that a worker's environment really gets, whatever the options."""
    entrypoint = Entrypoint(argv=("python", "train.py"), name="train.py")
    bare = RunSettings(entrypoint=entrypoint, nodes=RendezvousSettings(run_id="run"))
    names: dict[str, None] = {}
    for settings in (bare, replace(bare, workers=WorkerSettings(omp_threads=1, devices=("0",)))):
        paths = WorkerPaths(error_file="error.json", fault_file="fault.log")
        names |= dict.fromkeys(worker_environment(settings, _attempt(), 0, paths, {}))
    return sorted(names, key=list(WORKER_VARIABLES).index)


def _attempt() -> Attempt:
    numbers = dict.fromkeys(("index", "token", "node_rank", "base_rank", "role_base_rank", "master_port"), 0)
    sizes = dict.fromkeys(("node_count", "local_world_size", "world_size", "role_world_size"), 1)
    round_ = Round(**numbers, **sizes, nonce="", role="default", master_addr="")
    change = LaunchChange(startup=("acme.trace:begin",))
    return Attempt(round=round_, restart_count=0, membership_changes=0, incarnation="", node_id="", changes=(change,))


def read_variables() -> str:
    """What the command reads."""
    return table(("variable", "meaning"), ((f"`{name}`", text) for name, text in READ_VARIABLES.items()))


def pet_variables() -> str:
    """The variable of each option."""
    rows = (
        (f"`{row.env_name}`", f"`--{row.flag}`", "yes" if row.torch else "no")
        for row in (*OPTIONS, *all_hook_options())
        if row.env_name
    )
    return table(("variable", "option", "in torchrun"), rows)


def exit_codes() -> str:
    """The exit code of each error class."""
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.ElasticError)]
    rows = (
        (str(cls.exit_code), f"`{cls.__name__}`", first_line(cls))
        for cls in sorted(classes, key=lambda cls: (cls.exit_code, cls.__name__))
    )
    return table(("code", "error", "meaning"), rows)


OFFERED: Final = (
    ("`state`", "Answer with what `status.json` would have now, as JSON. Offered by the hook `recorder`."),
    (
        "`store`",
        "Open the workers' store beside this agent, as `--agent-store` does. Called by rank 0 when it finds none.",
    ),
)
"""What hooks offer beside the control plane's own."""


def agent_handlers() -> str:
    """What the agent's control plane has."""
    own = _handlers((name, vars(AgentHandlers)[name]) for name in AGENT_HANDLERS)
    return table(("handler", "what it does"), sorted((*own, *OFFERED)))


def worker_handlers() -> str:
    """What every worker's control plane has, whatever it imports."""
    return table(("handler", "what it does"), _handlers(BUILT_IN.items()))


def _handlers(found: Iterable[tuple[str, object]]) -> Iterable[tuple[str, str]]:
    return ((f"`{name}`", first_line(handler)) for name, handler in sorted(found))


def groups() -> str:
    """The entry-point groups."""
    of_classes = (group for group in KINDS if group in INTERFACES)
    rows = ((f"`{group}`", KINDS[group], " or ".join(map(public, bases_of(group)))) for group in of_classes)
    return table(("group", "what its plugins are", "what a class in it derives from"), rows)


def metric_families() -> str:
    """What the agent measures under names of ours."""
    rows = (
        (f"`{family.name}`", family.kind, ", ".join(f"`{label}`" for label in family.labels), family.help)
        for family in FAMILIES
    )
    return table(("metric", "kind", "labels", "what it is"), rows)


def coordinated_options() -> str:
    """The keys of every backend on a store."""
    return _specs(COORDINATED_OPTIONS)


def etcd_options() -> str:
    """Return the keys of `etcd`."""
    return _specs(EtcdStore.options)


def etcd_v2_options() -> str:
    """Return the keys of `etcd-v2`."""
    return _specs(EtcdV2Store.options)


def redis_options() -> str:
    """The keys of `redis` alone."""
    return _specs(RedisStore.options)


def c10d_options() -> str:
    """The keys of `c10d` alone."""
    return _specs(EmbeddedStore.options)


def static_options() -> str:
    """The keys of `static`."""
    return _specs(StaticRendezvous.options)


def _specs(specs: Iterable[OptionSpec]) -> str:
    rows = (
        (f"`{spec.name}`", _value_of(spec), "" if spec.default is None else _default(spec), spec.help) for spec in specs
    )
    return table(("key", "value", "default", "meaning"), rows)


def _value_of(spec: OptionSpec) -> str:
    return wanted(spec) + (f" ({spec.unit})" if spec.unit and spec.type != "duration" else "")


def _default(spec: OptionSpec) -> str:
    return f"`{spec.default:g}`" if isinstance(spec.default, float) else f"`{str(spec.default).lower()}`"


def policy_keys(keys: Iterable[schema.Key]) -> str:
    """Keys of a part of a rule file."""
    rows = [(f"`{key.name}`", key.value, key.default, key.meaning) for key in keys]
    if any(default for _, _, default, _ in rows):
        return table(("key", "value", "left out", "meaning"), rows)
    return table(("key", "value", "meaning"), ((name, value, meaning) for name, value, _, meaning in rows))


def policy_words(words: Mapping[str, str]) -> str:
    """Words of a rule file."""
    return table(("word", "what follows"), ((f"`{word}`", meaning) for word, meaning in words.items()))


def failure_classes() -> str:
    """Return the classes of failures, and how else they may be written in a rule file."""
    rows = []
    for kind in FailureClass:
        others = (f"`{name}`" for name, kinds in CLASS_NAMES.items() if kind in kinds and name != kind.value)
        rows.append((f"`{kind.value}`", ", ".join(others)))
    return table(("class", "also"), rows)


def moments() -> str:
    """What hooks are told, in the order of `AgentHook`."""
    events = {method: event for event, method in METHODS.items()}
    rows = []
    for name in (name for name in vars(AgentHook) if name.startswith("on_")):
        if name in events:
            event = events[name]
            gets = f"{public(event)}: " + ", ".join(f"`{field}`" for field in event.__struct_fields__)
        else:
            gets = "any of these, but for the feed's"
        rows.append((f"`{name}`", gets, inspect.getdoc(getattr(AgentHook, name)) or ""))
    return table(("method", "gets", "when, and what for"), rows)


def states() -> str:
    """The states of an agent in one line each."""
    return table(("state", "meaning"), ((f"`{cls.__name__}`", first_line(cls)) for cls in AgentState.__args__))


GENERATORS: Final[Mapping[str, Callable[[], str]]] = {
    "api-front-page": api_front_page,
    "api": api_reference,
    "embedding": embedding_reference,
    "options": options,
    "worker-variables": worker_variables,
    "read-variables": read_variables,
    "pet-variables": pet_variables,
    "exit-codes": exit_codes,
    "agent-handlers": agent_handlers,
    "worker-handlers": worker_handlers,
    "groups": groups,
    "coordinated-options": coordinated_options,
    "redis-options": redis_options,
    "etcd-options": etcd_options,
    "etcd-v2-options": etcd_v2_options,
    "c10d-options": c10d_options,
    "static-options": static_options,
    "policy-file-keys": lambda: policy_keys(schema.FILE_KEYS),
    "policy-rule-keys": lambda: policy_keys(schema.RULE_KEYS),
    "policy-match-keys": lambda: policy_keys(schema.MATCH_KEYS),
    "policy-uptime-keys": lambda: policy_keys(schema.UPTIME_KEYS),
    "policy-backoff-keys": lambda: policy_keys(schema.BACKOFF_KEYS),
    "policy-blame-keys": lambda: policy_keys(schema.BLAME_KEYS),
    "policy-actions": lambda: policy_words(schema.ACTIONS),
    "policy-exhausted": lambda: policy_words(schema.EXHAUSTED),
    "metric-families": metric_families,
    "failure-classes": failure_classes,
    "moments": moments,
    "states": states,
    "rooms": house.rooms,
    "distributions": house.distributions,
    "distribution-users": house.users,
    "string-imports": house.string_imports,
}
"""By the name that a page asks for."""
