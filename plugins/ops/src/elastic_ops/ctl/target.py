"""The server for `elastic ctl`: an agent of this user on this machine, or one of its workers."""

import os
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Final, TypeVar

import elastic_ops.control_plane.client as client
from elastic_core.api import ConfigError, ElasticError, Record, decode_json
from elastic_core.api.records import run_places
from elastic_ops.node_workers import WorkersDocument, WorkerState
from elastic_ops.run_directories import FoundRun, find_runs, runs_named
from elastic_ops.status.document import AgentStatus

NO_SERVER: Final = "put @elastic_ops.control_plane.worker_main() on the script's main function"

_T = TypeVar("_T")


class Target(Record, frozen=True, kw_only=True):
    """A server. `name` is for people; `rank` is `None` for the agent."""

    name: str
    path: str
    rank: int | None = None


def chosen_agents(target: str | None, worker: int | None) -> list[AgentStatus]:
    """Return the running agents of a run, or of the only run of this host; with `worker` the one that has it.

    Raises:
        ConfigError: there is none, or no run is named and this host has several.
    """
    try:
        found = find_runs() if target is None else runs_named(target)
    except ConfigError as err:
        raise ConfigError(err.what, hint="elastic status, which lists this machine's runs") from err
    except OSError as err:
        hint = "the user who started the run"
        raise ConfigError(f"run {target!r} can't be looked at ({err.strerror})", hint=hint) from err
    alive = [run.status for run in found if run.running and run.status is not None]
    if worker is not None and len(alive) > 1:
        alive = [status for status in alive if any(each.global_rank == worker for each in status.workers)] or alive
    if not alive:
        raise _nothing(target, found)
    run_ids = sorted({status.run_id for status in alive})
    if len(run_ids) > 1:
        shown = ", ".join(map(repr, run_ids))
        raise ConfigError(
            f"RUN: {len(run_ids)} runs are on this host ({shown}); expected one", hint="elastic ctl RUN …"
        )
    if len(alive) > 1 and worker is not None:
        what = f"--worker {worker}: none of the {len(alive)} agents on this host has a worker of that rank"
        raise ConfigError(what, hint=f"one of these as RUN: {_paths(found)}")
    return alive


def is_run(name: str) -> bool:
    """Return whether an agent of a run of that id runs on this host."""
    return any(run.running and run.status is not None and run.status.run_id == name for run in find_runs())


def only_one(agents: list[AgentStatus], command: str) -> AgentStatus:
    """Return the agent for a command that may change something.

    Raises:
        ConfigError: the run has several agents here.
    """
    if len(agents) == 1:
        return agents[0]
    run_id = agents[0].run_id
    raise ConfigError(
        f"{command}: run {run_id!r} has {len(agents)} agents on this host; expected one",
        hint=f"one of these as RUN: {_paths(runs_named(run_id))}",
    )


def _paths(found: list[FoundRun]) -> str:
    return ", ".join(repr(run.path) for run in found if run.running)


def _nothing(target: str | None, found: list[FoundRun]) -> ConfigError:
    if target is None:
        what = f"no agent of this user runs on this host (directories: {run_places()})"
        return ConfigError(what, hint="elastic runs, which lists earlier runs too")
    last = found[-1]
    if last.status is None:
        return ConfigError(f"run {target!r}: its agent has not written its status yet", hint="again in a second")
    run_id = last.status.run_id
    if last.status.end is not None:
        end = last.status.end
        what = f"run {run_id!r} has ended here ({end.outcome}, exit code {end.exit_code})"
        return ConfigError(what, hint=f"elastic incidents {target}")
    if last.running is None:
        where = last.status.agent.host or "another host"
        return ConfigError(f"run {run_id!r} can't be reached from here: its agent is on {where}, or in a container")
    return ConfigError(f"the agent of run {run_id!r} is dead", hint=f"elastic status {target}")


def agent_of(status: AgentStatus) -> Target:
    """Return the agent's server.

    Raises:
        ConfigError: it has none.
    """
    name = f"the agent of run {status.run_id!r}"
    if not status.control:
        hint = "again in a second if the run has just begun, else elastic run without --no-control-plane"
        raise ConfigError(f"{name} has no control plane", hint=hint)
    return Target(name=name, path=status.control)


def workers_of(agent: Target, *, timeout_s: float) -> tuple[WorkerState, ...]:
    """Return the workers of an agent's node; raises as `asked` does."""
    reply = asked(agent, lambda: client.call(agent.path, "workers", timeout_s=timeout_s))
    if not reply.ok:  # its loop is stuck, say
        text = " ".join(reply.text.split())
        raise ElasticError(f"{agent.name} refused 'workers' (status {reply.status}): {text}")
    return decode_json(reply.content, WorkersDocument).workers


def worker_of(agent: Target, rank: int, *, timeout_s: float) -> Target:
    """Return a worker's server.

    Raises:
        ConfigError: there is no such worker, or it has no server.
        ElasticError: the agent does not respond.
    """
    workers = workers_of(agent, timeout_s=timeout_s)
    worker = next((each for each in workers if each.global_rank == rank), None)
    if worker is None or not worker.alive:
        here = ", ".join(str(each.global_rank) for each in workers if each.alive) or "none"
        raise ConfigError(f"--worker: {rank}; expected a rank on this node: {here}", hint="elastic ctl workers")
    return Target(name=f"the worker with rank {rank}", path=worker.control, rank=rank)


def asked(target: Target, question: Callable[[], _T]) -> _T:
    """Return a server's response.

    Raises:
        ConfigError: there is no server, or it is another user's.
        ElasticError: it does not respond.
    """
    try:
        return question()
    except (FileNotFoundError, ConnectionRefusedError) as err:
        hint = "elastic status" if target.rank is None else NO_SERVER
        raise ConfigError(f"{target.name} does not listen at {target.path!r}", hint=hint) from err
    except PermissionError as err:
        raise ConfigError(
            f"{target.name} is not for user {os.geteuid()}: {target.path!r} belongs to user {_owner(target.path)}",
            hint="the user who started the run",
        ) from err
    except TimeoutError as err:
        raise ElasticError(f"{target.name} did not answer in time", hint="a longer --timeout") from err
    except (ConnectionResetError, BrokenPipeError, HTTPException) as err:
        raise ElasticError(
            f"{target.name} closed the connection without a valid HTTP response", hint="elastic status"
        ) from err


def _owner(path: str) -> str:
    try:
        return str(Path(path).lstat().st_uid)
    except OSError:
        return "another"
