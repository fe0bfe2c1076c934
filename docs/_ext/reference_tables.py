"""What the reference pages take from the code: each function returns MyST Markdown.

A name that the code has and these tables don't explain raises KeyError: the build fails, and so does the test.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import house
from msgspec.structs import replace
from page_parts import attributes, first_line, public, table
from public_names import api_front_page, api_reference, embedding_reference

import elastic_report.model as report_model
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
from elastic_report.ledger.states import LedgerState

WORKER_VARIABLES: Final[Mapping[str, str]] = {
    "RANK": "global rank: this worker's number among all workers, from 0",
    "WORLD_SIZE": "number of workers of the round on all nodes together",
    "LOCAL_RANK": "this worker's number on its node, from 0; 0 in every worker with `--virtual-local-rank`",
    "LOCAL_WORLD_SIZE": "number of workers on this node",
    "GROUP_RANK": "rank of the node",
    "GROUP_WORLD_SIZE": "number of nodes of the round",
    "ROLE_NAME": "`--role`",
    "ROLE_RANK": "this worker's number among the workers of its role",
    "ROLE_WORLD_SIZE": "number of workers with this role",
    "MASTER_ADDR": "address of rank 0; with one node `127.0.0.1`, or the value of `--master-addr` or `--local-addr`",
    "MASTER_PORT": "port on which rank 0 listens; with one node a port that the agent reserves for rank 0, a new one "
    "in each round unless `--master-port` gives it",
    "TORCHELASTIC_RESTART_COUNT": "number of restarts after a failure so far in this run; 0 at first",
    "TORCHELASTIC_MAX_RESTARTS": "`--max-restarts`",
    "TORCHELASTIC_RUN_ID": "the run's id (`--rdzv-id`, or a fresh one)",
    "TORCHELASTIC_USE_AGENT_STORE": "`False`: rank 0 hosts the store of `init_process_group`; `True`: the agent hosts "
    "the store (`--agent-store`, or rank 0 has connected to it as a client; then its hook sets the variable)",
    "TORCHELASTIC_ERROR_FILE": "file for the worker's first uncaught exception",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "`1`, unless it is set already; `0` in place of `1` in a process that may be "
    "kept [with `TRAINING_WARM_NCCL=1`](../howto/warm-functions.md#groups-of-nccl)",
    "OMP_NUM_THREADS": "`1` with several workers if it is unset, as with torchrun; `--omp-threads` sets it",
    "CUDA_VISIBLE_DEVICES": "the devices of `--devices` (one of them with `--virtual-local-rank`); otherwise as "
    "inherited. Other accelerators have variables of their own: `HIP_VISIBLE_DEVICES`, `ZE_AFFINITY_MASK`",
    "ELASTIC_ROUND": "index of the round, from 0; it counts restarts and membership changes",
    "ELASTIC_MEMBERSHIP_CHANGES": "number of rounds that began because nodes joined or left",
    "ELASTIC_NODE_ID": "the node's name in logs and reports (`--node-id`, else the host's name)",
    "ELASTIC_INCARNATION": "random mark of this agent, which identifies processes that its workers leave behind",
    "ELASTIC_WORKER_HOOKS": "`1`: the worker's interpreter records its uncaught exception; absent with "
    "`--no-worker-hooks`",
    "ELASTIC_FAULT_FILE": "file for the stack at a fault signal, such as SIGSEGV",
    "ELASTIC_STARTUP": "functions of hooks that the worker's interpreter calls before its script; absent without any",
}
"""Variables that the agent adds to a worker's environment."""

VARIABLES_OF_HOOKS: Final[Mapping[str, str]] = {
    "TORCH_WORKER_SERVER_SOCKET": "socket of the worker's [control plane](control-plane.md), if its script starts "
    "one; a value that you set is kept; absent with `--no-control-plane`, and without elastic-ops",
    "TORCHELASTIC_TIMER_FILE": "the pipe for [timers](timers.md); absent, or as inherited, without "
    "`TORCHELASTIC_ENABLE_FILE_TIMER=1`",
    "LAST_ROUND_FILE": "a file that, from the second round on, describes the last round, for "
    "[`attempt()`](worker.md#from-elastic-train); absent without elastic-train",
    "TRAINING_BEAT_FILE": "memory for [heartbeats](../howto/hangs.md) and stacks; absent without elastic-watch",
    "TORCH_FR_BUFFER_SIZE": "`2000`, the number of collectives that torch's flight recorder keeps, set when the script "
    "imports torch; a value that you set is kept; absent without elastic-watch",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "the same for torch before 2.9; if you set it, `TORCH_FR_BUFFER_SIZE` is not set",
    "TORCH_FR_DUMP_TEMP_FILE": "`recorder/round_N/rank_` in the run directory: the prefix of the files that NCCL "
    "writes when a collective times out; set with torch for GPUs only; a value that you set is kept",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "the same for torch before 2.9; if you set it, `TORCH_FR_DUMP_TEMP_FILE` is not "
    "set",
    "TORCH_INCLUDE_STACK_TRACE": "`false`: those files have no stacks, which a hang could block; set with torch for "
    "GPUs only; a value that you set is kept",
    "NCCL_RAS_ADDR": "the address of NCCL's RAS service on this node, another one for each run, set with "
    "`--hang-timeout`; a value that you set is kept; absent without elastic-watch",
    "TRAINING_WARM_SOCKET": "the agent's socket for workers that are [kept between rounds](../howto/warm-rounds.md); "
    "empty if it keeps none; absent without elastic-warm",
    "TRAINING_WARM_TIMEOUT": "`--warm-timeout`, in seconds; absent without elastic-warm",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "`0` in a process with `TRAINING_WARM_NCCL=1`, so that NCCL waits for no file after "
    "an error; a value that you set is kept",
    "TORCH_NCCL_ENABLE_MONITORING": "`0` there, so that NCCL does not end it while it aborts its groups; a "
    "value that you set is kept",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "`1` there, so that NCCL's watchdog does not sleep for a minute after "
    "an error; a value that you set is kept",
    "NCCL_SET_THREAD_NAME": "`1` there: NCCL names its threads, and the one that lives as long as the process is "
    "known; a value that you set is kept",
    "TRAINING_STOP_PAGE": "memory for [`should_stop`](../explanation/planned-stops.md); absent without elastic-train",
    "TRAINING_STOP_FILE": "a file that exists during a [planned stop](../explanation/planned-stops.md); the "
    "worker removes it when it has saved; with `--save-timeout` or `--save-signal`",
}
"""Variables that our hooks add."""

READ_VARIABLES: Final[Mapping[str, str]] = {
    "PYTHON_EXEC": "interpreter of the workers; default: the one that runs `elastic`",
    "OMP_NUM_THREADS": "if it is set, workers inherit it, unless `--omp-threads` is given",
    "LOGLEVEL": "level of events. Events have level INFO: `WARNING` records none",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "signals that end the wait of [`start_processes`](multiprocessing.md); "
    "default `SIGTERM,SIGINT,SIGHUP,SIGQUIT`",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "grace period in seconds if `--shutdown-timeout` is not given",
    "TORCHELASTIC_HEALTH_CHECK_PORT": "port on which the agent answers [health checks](agent.md); 0: a free port",
    "ELASTIC_HEALTH_CHECK_HOST": "address of the health checks; default `127.0.0.1`",
    "TORCHELASTIC_ENABLE_FILE_TIMER": "`1`: the agent ends workers with an expired [timer](timers.md)",
    "TORCHELASTIC_TIMER_FILE": "path of the pipe through which workers set timers; default: in the run directory",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "seconds in uninterruptible sleep after which a worker counts as "
    "failed (`--uninterruptible-timeout` of `elastic-watch`); default: no limit",
    "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT": "with a handler that was written for torch: seconds that a node with "
    "finished workers waits for the workers of other nodes; default 300",
    "TORCH_ELASTIC_WORKER_IDENTICAL": "`1`: subclasses of `SimpleElasticAgent` assume that all nodes are alike",
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "prefix of tee'd lines if `--log-line-prefix-template` is not given",
    "HIP_VISIBLE_DEVICES": "the devices of `--virtual-local-rank` on ROCm, one for each worker; the worker finds its "
    "device in `CUDA_VISIBLE_DEVICES` as well",
    "CUDA_VISIBLE_DEVICES": "limits the devices that `--nproc-per-node gpu` counts, and that the numbers of "
    "`--devices` mean; for other accelerators `HIP_VISIBLE_DEVICES`, `ROCR_VISIBLE_DEVICES`, `ZE_AFFINITY_MASK`",
    "NCCL_SOCKET_IFNAME": "NCCL's own: `elastic doctor` warns if it names no interface of the node",
    "NCCL_RAS_ENABLE": "NCCL's own: with `0`, elastic-watch sets no `NCCL_RAS_ADDR` and reads no RAS service in a hang",
    "NCCL_IB_DISABLE": "NCCL's own: `elastic doctor` warns of `1`, which leaves InfiniBand unused",
    "CUDA_LAUNCH_BLOCKING": "CUDA's own: `elastic doctor` warns of `1`, which waits for each kernel",
    "TORCH_NCCL_BLOCKING_WAIT": "torch's own: `elastic doctor` warns of `1`, which is slower",
    "XDG_RUNTIME_DIR": "parent of the run directories of runs with a terminal, if it belongs to this user; else "
    "`TMPDIR`, `TEMP`, `TMP`, `/tmp`",
    "SLURM_RESTART_COUNT": "number of this attempt at the run if `--rdzv-attempt` is not given; else "
    "`JOBSET_RESTART_ATTEMPT`, `AWS_BATCH_JOB_ATTEMPT`",
    "JOB_COMPLETION_INDEX": "marks a pod of an Indexed Job or a JobSet. `elastic-env-kubernetes` then reads "
    "`ELASTIC_K8S_NNODES` and [others](../howto/kubernetes.md#what-a-pod-knows) for options that are not given",
    "ELASTIC_SLURM_VERDICTS": "folder in which each agent writes its exit code, for the script of a job; set by "
    "`elastic slurm submit`",
    "ELASTIC_JOB_ID": "the scheduler's id of the job, the same on all its nodes, for schedulers without a variable of "
    "their own (`SLURM_JOB_ID`, `AWS_BATCH_JOB_ID`). The result of another job does not end the run of this job",
    "TORCHELASTIC_ETCD_BINARY_PATH": "the etcd program that `EtcdServer` and `--rdzv-conf embedded=true` run; default: "
    "that of the extra `embedded`, else the one on `PATH`",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "set to `1` if it is not set, with a handler that was written for torch, so "
    "that each round gets a port of its own",
    "REDIS_URL": "address of the server of backend `redis` if `--rdzv-endpoint` is not given",
    "ELASTIC_REDIS_USERNAME": "ACL user of backend `redis` if neither URL nor `username` in `--rdzv-conf` gives one",
    "ELASTIC_REDIS_PASSWORD": "its password if neither the URL nor `password_file` in `--rdzv-conf` gives one",
    "ELASTIC_ETCD_ENDPOINTS": "address of backend `etcd` if `--rdzv-endpoint` is not given: `HOST:2379,HOST2:2379`",
    "ETCDCTL_ENDPOINTS": "the same, as etcd's own command reads it",
    "ELASTIC_ETCD_USERNAME": "user of backend `etcd` if neither the URL nor `username` in `--rdzv-conf` gives one",
    "ELASTIC_ETCD_PASSWORD": "its password if neither the URL nor `password_file` in `--rdzv-conf` gives one",
    "ELASTIC_C10D_TOKEN": "token that all nodes of backend `c10d` share if `token_file` is not given",
    "ELASTIC_C10D_SECRETS": "folder, shared by all hosts of the user, for the secrets that hosts of backend "
    "`c10d` make; default `~/.local/state/elastic/c10d`",
    "ELASTIC_KEEP": "`1` in the environment of a process that a worker starts: the process is intentionally [left "
    "running](../explanation/no-orphans.md). The launcher's own is not passed on to workers",
    "PATH": "search path for the program of `--no-python`, and for the server of backend `c10d`",
    "ELASTIC_DEBUG": "`1`: an error of the command line, or of a plugin, also shows its traceback",
    "NO_COLOR": "not empty: [no colours](../howto/logs.md#times-and-colours-of-the-agents-lines) in lines of the agent "
    "and of commands",
    "FORCE_COLOR": "not empty and not `0`: colours also in files and pipes, unless `NO_COLOR` forbids them",
    "CLICOLOR_FORCE": "the same",
    "TERM": "`dumb`: no colours, unless `FORCE_COLOR` requests them",
}
"""Variables that `elastic run` reads, except the `PET_` variables."""

INTERNAL_VARIABLES: Final[Mapping[str, str]] = {
    "ELASTIC_SIDECAR": "`1` in a server that an agent has started beside its workers, so that its guard identifies it",
    "ELASTIC_WORKER_PROGRAM": "if the command in front of the worker is a Python program: the end of the command line "
    "of the interpreter that counts as the worker",
    "ELASTIC_KEPT_FOLDER": "the folder of a backend's server on this host; both are removed when the agent ends",
    "TRAINING_WARM_DIR": "the folder of a worker's last [commits](warm-state.md#files); absent without one",
    "TRAINING_WARM_BYTES": "the bytes that the commits of one worker may have there",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "set to `0` for the process of `--agent-store`, which needs no device",
}
"""Variables that are neither for users nor for workers."""


def options() -> str:
    """Every option of `elastic run`, by section."""
    parts = []
    every = [*OPTIONS, *all_hook_options()]
    for section in dict.fromkeys((*map(str, Section), *(str(row.heading) for row in every))):
        rows = [row for row in every if row.heading == section]
        parts += [
            f"## {section}",
            table(("option, variable", "meaning", "default", "in torchrun"), map(_option, rows)),
        ]
    return "\n\n".join(parts)


def _option(row: RunOption) -> tuple[str, ...]:
    names = ([f"-{row.short}"] if row.short else []) + [f"--{row.flag}"]
    typed = ", ".join(f"`{name} {row.value_name}`" if row.value_name else f"`{name}`" for name in names)
    default = (
        "" if not row.value_name else row.default_note or (f"`{row.default_text}`" if row.default_text else "none")
    )
    many = " May be given several times." if row.many else ""
    variable = f"<br>`{row.env_name}`" if row.env_name else ""
    return f"{typed}{variable}", row.help + many, default, "yes" if row.torch else "no"


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
    ("`state`", "Return the present content of `status.json`, as JSON. The hook `recorder` offers it."),
    (
        "`store`",
        "Open the workers' store beside this agent, as `--agent-store` does. Rank 0 calls it if it finds no store.",
    ),
)
"""Handlers that hooks offer."""


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
    return table(("group", "kind of plugin", "base class"), rows)


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
        return table(("key", "value", "default", "meaning"), rows)
    return table(("key", "value", "meaning"), ((name, value, meaning) for name, value, _, meaning in rows))


def policy_words(words: Mapping[str, str]) -> str:
    """Return values of a rule file."""
    return table(("value", "meaning"), ((f"`{word}`", meaning) for word, meaning in words.items()))


def failure_classes() -> str:
    """Return the classes of failures, and how else they may be written in a rule file."""
    rows = []
    for kind in FailureClass:
        others = (f"`{name}`" for name, kinds in CLASS_NAMES.items() if kind in kinds and name != kind.value)
        rows.append((f"`{kind.value}`", ", ".join(others)))
    return table(("class", "also"), rows)


def moments() -> str:
    """Return the moments of a hook, in the order of `AgentHook`."""
    events = {method: event for event, method in METHODS.items()}
    rows = []
    for name in (name for name in vars(AgentHook) if name.startswith("on_")):
        if name in events:
            event = events[name]
            gets = f"{public(event)}: " + ", ".join(f"`{field}`" for field in event.__struct_fields__)
        else:
            gets = "any of these records, except those of the feed"
        rows.append((f"`{name}`", gets, inspect.getdoc(getattr(AgentHook, name)) or ""))
    return table(("method", "record and its fields", "purpose, and when it is called"), rows)


def states() -> str:
    """The states of an agent in one line each."""
    return table(("state", "meaning"), ((f"`{cls.__name__}`", first_line(cls)) for cls in AgentState.__args__))


def report_states() -> str:
    """The states of the time ledger, in their order."""
    found = attributes(LedgerState)
    return table(
        ("state", "meaning"), ((f"`{state.value}`", found[state.name].text.replace("\n", " ")) for state in LedgerState)
    )


_REPORT: Final = (
    "Report",
    "RunFacts",
    "Account",
    "LostTime",
    "Ratio",
    "NodeLane",
    "LaneSpan",
    "WorkerBar",
    "RoundRow",
    "TimelineEvent",
    "IncidentRow",
    "Difference",
)
"""The parts of a report's JSON, from the outside inwards."""


def report_json() -> str:
    """The fields of a report's JSON."""
    parts = []
    for name in _REPORT:
        cls = getattr(report_model, name)
        rows = (
            (f"`{field}`", f"`{said.annotation}`", said.text.replace("\n", " "))
            for field, said in attributes(cls).items()
        )
        array = " It is an array, with these values in this order." if cls.__struct_config__.array_like else ""
        parts.append(f"### `{name}`\n\n{first_line(cls)}{array}\n\n{table(('field', 'type', 'meaning'), rows)}")
    return "\n\n".join(parts)


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
    "report-states": report_states,
    "report-json": report_json,
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
    "string-imports": house.string_imports,
}
"""By the name that a page asks for."""
