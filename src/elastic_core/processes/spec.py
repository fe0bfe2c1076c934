"""What it takes to start one worker: its command, its files, and its variables, each declared once."""

from collections.abc import Callable, Mapping
from typing import Final

from elastic_core.types import Record, Round


class StreamPlan(Record, frozen=True, kw_only=True):
    """Where one of a worker's output streams goes.

    `file` gets the raw bytes. `console`: the bytes also reach our own stream, line by line with `prefix`. Neither: with
    `inherit` the worker has our stream itself, else /dev/null. A file alone is opened by the worker's own descriptor:
    the agent touches no byte, unless a size limit makes it rotate the file.
    """

    file: str | None = None
    console: bool = False
    inherit: bool = True
    prefix: str = ""
    filters: tuple[str, ...] = ()
    """Lines of a stream for the console that hold one of these also go to `filtered_file`, if there is one."""
    filtered_file: str | None = None
    max_bytes: int | None = None
    """`file` is rotated when it would have more than this; None: never."""
    backups: int = 0
    """How many rotated files stay."""

    @property
    def through_agent(self) -> bool:
        """Whether the worker writes into a pipe of ours."""
        return self.console or (self.file is not None and self.max_bytes is not None)


class WorkerLaunch(Record, frozen=True, kw_only=True):
    """One worker process: complete command and environment.

    With a `function` the process calls that, and whoever does so starts it: of `argv` only the interpreter counts then,
    the rest is for people.
    """

    local_rank: int
    global_rank: int
    argv: tuple[str, ...]
    env: dict[str, str]
    stdout: StreamPlan = StreamPlan()
    stderr: StreamPlan = StreamPlan()
    foreground: bool = False
    """Keep the terminal: same session and foreground process group, inherited stdin (`--debug-rank`)."""
    function: str = ""
    """Its name; empty: the process is the program `argv`."""
    cpus: frozenset[int] | None = None
    """The processors that it may run on; None: as inherited."""


class WorkerPaths(Record, frozen=True, kw_only=True):
    """The files of one worker in one round."""

    error_file: str
    """Empty, as `fault_file` is, if the run directory has gone for good."""
    fault_file: str
    stdout: StreamPlan = StreamPlan()
    stderr: StreamPlan = StreamPlan()


class Place(Record, frozen=True, kw_only=True):
    """A worker's place in its run: all that its variables are made of."""

    run_id: str
    node_id: str
    incarnation: str
    max_restarts: int
    round: Round
    local_rank: int
    restart_count: int
    membership_changes: int
    use_agent_store: bool
    virtual_local_rank: bool
    """It sees one device only, as if it were the first worker."""
    files: WorkerPaths
    hooks: bool
    """Its interpreter records what ends it."""
    startup: tuple[str, ...] = ()
    """What its interpreter calls before its script."""


Make = Callable[[Place], str]

_LASTING: Final[Mapping[str, Make]] = {
    "LOCAL_RANK": lambda p: "0" if p.virtual_local_rank else str(p.local_rank),
    "ROLE_NAME": lambda p: p.round.role,
    "LOCAL_WORLD_SIZE": lambda p: str(p.round.local_world_size),
    "TORCHELASTIC_MAX_RESTARTS": lambda p: str(p.max_restarts),
    "TORCHELASTIC_RUN_ID": lambda p: p.run_id,
    "ELASTIC_NODE_ID": lambda p: p.node_id,
    "ELASTIC_INCARNATION": lambda p: p.incarnation,
}
_OF_ROUND: Final[Mapping[str, Make]] = {
    "RANK": lambda p: str(p.round.global_rank(p.local_rank)),
    "GROUP_RANK": lambda p: str(p.round.node_rank),
    "ROLE_RANK": lambda p: str(p.round.role_base_rank + p.local_rank),
    "WORLD_SIZE": lambda p: str(p.round.world_size),
    "GROUP_WORLD_SIZE": lambda p: str(p.round.node_count),
    "ROLE_WORLD_SIZE": lambda p: str(p.round.role_world_size),
    "MASTER_ADDR": lambda p: p.round.master_addr,
    "MASTER_PORT": lambda p: str(p.round.master_port),
    "TORCHELASTIC_RESTART_COUNT": lambda p: str(p.restart_count),
    "TORCHELASTIC_USE_AGENT_STORE": lambda p: str(p.use_agent_store),
    "TORCHELASTIC_ERROR_FILE": lambda p: p.files.error_file,
    "ELASTIC_ROUND": lambda p: str(p.round.index),
    "ELASTIC_MEMBERSHIP_CHANGES": lambda p: str(p.membership_changes),
}
_OF_ROUND_IF_ANY: Final[Mapping[str, Make]] = {
    "ELASTIC_WORKER_HOOKS": lambda p: "1" if p.hooks else "",
    "ELASTIC_FAULT_FILE": lambda p: p.files.fault_file if p.hooks else "",
    "ELASTIC_STARTUP": lambda p: ",".join(p.startup) if p.hooks else "",
}
"""Left out where they are empty; an agent's own are never its workers'."""

ROUND_VARIABLES: Final = frozenset(_OF_ROUND) | frozenset(_OF_ROUND_IF_ANY)
"""What differs between the rounds of one worker; no library reads it at its import. A spare starts without them."""
PLACE_VARIABLES: Final = ROUND_VARIABLES | frozenset(_LASTING)
AGENTS_OWN: Final = frozenset(_OF_ROUND_IF_ANY) | {"ELASTIC_KEEP", "ELASTIC_WORKER_PROGRAM"}
"""What no process inherits from an agent: ELASTIC_KEEP is for what a worker starts, ours would make all of it stay."""


def without_agents_own(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment as what an agent starts may inherit it."""
    return {name: value for name, value in environment.items() if name not in AGENTS_OWN}


def place_variables(place: Place) -> dict[str, str]:
    """Return what tells a worker its place: torch 2.13's variables, and ours."""
    variables = {name: make(place) for name, make in (*_LASTING.items(), *_OF_ROUND.items())}
    for name, make in _OF_ROUND_IF_ANY.items():
        if value := make(place):
            variables[name] = value
    return variables
