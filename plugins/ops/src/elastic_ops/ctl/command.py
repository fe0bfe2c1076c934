"""Query a running agent or worker, drain this node, or restart the workers."""

from difflib import get_close_matches
from typing import Final

import click
import msgspec

import elastic_ops.control_plane.client as client
from elastic_core.api import ConfigError, ElasticError, Record
from elastic_core.api.commands import echo, echo_json
from elastic_ops.ctl.target import (
    NO_SERVER,
    Target,
    agent_of,
    asked,
    chosen_agents,
    is_run,
    only_one,
    worker_of,
    workers_of,
)
from elastic_ops.jobs import has_runs
from elastic_ops.run_target import complete_run, duration
from elastic_ops.status.document import AgentStatus

api_version = 1

_NOT_FOUND: Final = 404
_BAD_REQUEST: Final = 400
_QUESTIONS: Final = ("metrics", "ping", "stacks", "state", "store", "workers")
"""Agent commands that change nothing. If a run has several agents on this host, all are queried."""


_BUILT_IN: Final = (*_QUESTIONS, "drain", "restart")
"""Commands that every agent has."""


class Answer(Record, frozen=True, kw_only=True):
    """The output of `--json`. `body` is JSON if the server's response is, else text. `rank` is null for the agent."""

    node_id: str
    command: str
    rank: int | None
    status: int
    content_type: str
    body: object


class Commands(Record, frozen=True, kw_only=True):
    """The commands of one server; `commands` is null if there is none."""

    rank: int | None
    commands: tuple[str, ...] | None


class CommandsDocument(Record, frozen=True, kw_only=True):
    """The output of `--json` without a command."""

    run_id: str
    node_id: str
    servers: tuple[Commands, ...]


def _ctl(words: tuple[str, ...], run: str | None, worker: int | None, timeout: float, as_json: bool) -> int:
    run, words = _read_words(words, run)
    agents = chosen_agents(run, worker)
    if words and words[0] not in _QUESTIONS:
        agents = [only_one(agents, words[0])]
    params = _params(words[1:])
    codes = []
    for status in agents:
        agent = agent_of(status)
        if len(agents) > 1 and not as_json:
            echo(f"node {status.node_id}:")
        if not words:
            _list(status, agent, worker, timeout, as_json=as_json)
        else:
            target = agent if worker is None else worker_of(agent, worker, timeout_s=timeout)
            codes.append(_ask(target, words[0], params, status.node_id, timeout, as_json=as_json))
    return max(codes, default=0)


def _ask(target: Target, command: str, params: dict[str, str], node_id: str, timeout: float, *, as_json: bool) -> int:
    reply = asked(target, lambda: client.call(target.path, command, params, timeout_s=timeout))
    if as_json:
        echo_json(_answer(command, target, reply, node_id))
    elif not reply.ok:
        raise _refusal(command, target, reply, timeout)
    else:
        _print(reply)
    return _code(reply)


def _read_words(words: tuple[str, ...], run: str | None) -> tuple[str | None, tuple[str, ...]]:
    """Return the run, and the command with its parameters: two words before those are RUN and COMMAND.

    Raises:
        ConfigError: a single word names a run of this host, and a command that each agent has.
    """
    if run is not None or not words:
        return run, words
    first, rest = words[0], words[1:]
    if rest and "=" not in rest[0]:
        return (None, words) if first in _BUILT_IN and not has_runs(first) else (first, rest)
    if rest or first not in _BUILT_IN:
        return (None, words) if rest or not has_runs(first) else (first, ())
    if is_run(first):
        what = f"ctl {first!r}: a run of this host and a command have that name"
        raise ConfigError(what, hint=f"elastic ctl RUN {first}, or elastic ctl --run {first}")
    return None, words


def _params(words: tuple[str, ...]) -> dict[str, str]:
    params = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise click.UsageError(f"parameter: {word!r}; expected KEY=VALUE", click.get_current_context())
        params[key] = value
    return params


def _code(reply: client.Reply) -> int:
    if reply.ok:
        return 0
    return 2 if reply.status in (_NOT_FOUND, _BAD_REQUEST) else 1


def _refusal(command: str, target: Target, reply: client.Reply, timeout_s: float) -> ElasticError:
    if reply.status == _NOT_FOUND:
        names = asked(target, lambda: client.names(target.path, timeout_s=timeout_s))
        if command not in names:
            near = next(iter(get_close_matches(command, names, n=1)), "")
            hint = f"elastic ctl {near}" if near else "--worker RANK" if target.rank is None else ""
            return ConfigError(f"{target.name} has no command {command!r}; it has {', '.join(names)}", hint=hint)
    text = " ".join(reply.text.split())
    what = f"{target.name} refused {command!r} (status {reply.status}): {text}"
    return ConfigError(what) if _code(reply) == ConfigError.exit_code else ElasticError(what)


def _print(reply: client.Reply) -> None:
    if reply.is_json:
        try:
            echo_json(msgspec.json.format(reply.content, indent=2).decode("utf-8", "replace"))
        except (msgspec.DecodeError, RecursionError):
            pass
        else:
            return
    echo(*reply.text.rstrip("\n").split("\n"))


def _answer(command: str, target: Target, reply: client.Reply, node_id: str) -> Answer:
    body: object = reply.text
    if reply.is_json:
        try:
            body = msgspec.json.decode(reply.content)
        except (msgspec.DecodeError, RecursionError):
            body = reply.text
    return Answer(
        node_id=node_id,
        command=command,
        rank=target.rank,
        status=reply.status,
        content_type=reply.content_type,
        body=body,
    )


# --- what there is


def _list(status: AgentStatus, agent: Target, worker: int | None, timeout_s: float, *, as_json: bool) -> None:
    servers = []
    if worker is None:
        names = asked(agent, lambda: client.names(agent.path, timeout_s=timeout_s))
        servers.append(Commands(rank=None, commands=names))
    for known in workers_of(agent, timeout_s=timeout_s):
        if known.alive and worker in (None, known.global_rank):
            target = Target(name="", path=known.control, rank=known.global_rank)
            servers.append(Commands(rank=known.global_rank, commands=_names(target, timeout_s)))
    if worker is not None and not servers:
        worker_of(agent, worker, timeout_s=timeout_s)  # its error lists the workers
    if as_json:
        echo_json(CommandsDocument(run_id=status.run_id, node_id=status.node_id, servers=tuple(servers)))
        return
    for server in servers:
        who = "agent" if server.rank is None else f"rank {server.rank}"
        echo(f"{who}: {'no server' if server.commands is None else ', '.join(server.commands)}")
    if any(server.commands is None for server in servers):
        echo(f"For a server in a worker, {NO_SERVER}.")


def _names(target: Target, timeout_s: float) -> tuple[str, ...] | None:
    try:
        return asked(target, lambda: client.names(target.path, timeout_s=timeout_s))
    except ElasticError:
        return None


_HELP = """\
Send a command to a running agent of this machine, or to one of its workers.

Commands of the agent: ping, state, workers, stacks (rank=N), metrics, drain (deadline=SECONDS; stops this node as
SIGTERM does), restart (reason=TEXT; restarts all workers of the run and is not counted by --max-restarts). Commands of
workers with elastic_ops.control_plane.worker_main in their script: ping, dump_traceback, pyspy_dump, those of torch,
and those that the script registers. Without COMMAND, list the commands.
"""
_EPILOG = """\b
Examples:
  elastic ctl                               # list the commands
  elastic ctl stacks                        # stacks of all workers of this node
  elastic ctl bert-7 drain deadline=60
  elastic ctl --worker 3 dump_traceback

Exit codes: 0; 1 the command was rejected, or got no answer; 2 usage, or no such run, worker or command.
"""

command = click.Command(
    "ctl",
    callback=_ctl,
    params=[
        click.Argument(["words"], metavar="[RUN] [COMMAND] [KEY=VALUE]...", nargs=-1, shell_complete=complete_run),
        click.Option(
            ["--run", "--rdzv-id", "--rdzv_id"],
            metavar="RUN",
            shell_complete=complete_run,
            help="The run, as the argument RUN.",
        ),
        click.Option(
            ["--worker"],
            metavar="RANK",
            type=click.IntRange(min=0),
            help="Send the command to the worker with this global rank.",
        ),
        click.Option(
            ["--timeout"],
            metavar="SECONDS",
            type=duration(),
            default=client.DEFAULT_TIMEOUT_S,
            show_default=True,
            help="How long to wait for the answer.",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON, one line per agent."),
    ],
    help=_HELP,
    epilog=_EPILOG,
)
