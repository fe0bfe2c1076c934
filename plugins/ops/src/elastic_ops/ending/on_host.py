"""The end of this host's agents through their sockets; no store is needed."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import elastic_ops.control_plane.client as client
from elastic_core.api import SYSTEM_CLOCK, ConfigError, ElasticError, WaitBudget
from elastic_core.api.commands import echo
from elastic_ops.ctl.target import agent_of, asked
from elastic_ops.run_directories import FoundRun, find_runs, run_at, runs_named
from elastic_ops.run_target import WITHOUT_STORE
from elastic_ops.status.document import AgentStatus

_LOOK_EVERY_S: Final = 0.1
_CONFLICT: Final = 409
"""The agent is ending already."""


def stop(target: str | None, *, deadline_s: float | None, timeout_s: float) -> None:
    """End all agents of a run, which are all on this host, and print the result.

    Raises:
        ConfigError: there is no such run, or it has nodes elsewhere.
        ElasticError: some have not ended in time.
    """
    agents = _agents(target)
    run_ids = {status.run_id for _, status in agents}
    if len(run_ids) > 1:
        shown = ", ".join(sorted(map(repr, run_ids)))
        raise ConfigError(f"RUN: {len(run_ids)} runs are on this host ({shown}); expected one", hint="elastic stop RUN")
    _, status = agents[0]
    count = 1 if status.round is None else status.round.node_count
    if count > len(agents):
        what = f"run {status.run_id!r} has {count} nodes; {len(agents)} of them on this host"
        raise ConfigError(what, hint=_hint("stop", status))
    _drain(agents, deadline_s=deadline_s, timeout_s=timeout_s)


def drain(target: str | None, names: Sequence[str], *, deadline_s: float | None, timeout_s: float) -> None:
    """End the agents of these nodes, and print the result.

    Raises:
        ConfigError: there is no such run, or a node is not here.
        ElasticError: some have not ended in time.
    """
    agents = _agents(target)
    chosen = []
    for name in names:
        found = [agent for agent in agents if name in _own_names(agent[1])]
        if not found:
            here = ", ".join(sorted(f"{status.node_id} of run {status.run_id!r}" for _, status in agents))
            named = next((status for _, status in agents if status.run_id == name), None)
            if named is not None:
                hint = f"elastic drain {name} {named.node_id}"
            elif len({status.run_id for _, status in agents}) > 1:
                hint = f"elastic drain RUN {name}, with --rdzv-backend and --rdzv-endpoint of a run on other hosts"
            else:
                hint = _hint("drain", agents[0][1], name)
            raise ConfigError(f"node {name!r}: not on this host, which has {here}", hint=hint)
        if len(found) > 1:
            dirs = ", ".join(run.path for run, _ in found)
            what = f"node {name!r}: {len(found)} agents on this host have that name; expected one"
            raise ConfigError(what, hint=f"elastic drain RUN {name}, RUN one of {dirs}")
        chosen += found
    _drain(chosen, deadline_s=deadline_s, timeout_s=timeout_s)


def found_names(name: str) -> tuple[bool, bool]:
    """Return whether a run with agents on this host has this name or directory, and whether a node has it."""
    running = [(run, run.status) for run in find_runs() if run.running and run.status is not None]
    is_run = any(name == status.run_id for _, status in running) or (os.sep in name and Path(name).is_dir())
    return is_run, any(name in _own_names(status) for _, status in running)


def _own_names(status: AgentStatus) -> tuple[str, ...]:
    return (status.node_id, status.node_id.partition("@")[0], status.node_id.rpartition("@")[2])


def _agents(target: str | None) -> list[tuple[FoundRun, AgentStatus]]:
    runs = find_runs() if target is None else runs_named(target)
    agents = [(run, run.status) for run in runs if run.running and run.status is not None]
    if not agents:
        which = "no agent of this user" if target is None else f"no agent of run {target!r}"
        raise ConfigError(
            f"{which} runs on this host",
            hint="--rdzv-backend and --rdzv-endpoint with RUN, for a run on other hosts",
        )
    return agents


def _hint(command: str, status: AgentStatus, node: str = "") -> str:
    if status.backend == "local":  # the run has this node only
        return f"elastic {command} {status.run_id} {status.node_id}"
    if status.backend in WITHOUT_STORE:
        return f"the same command on each host of the run, as backend {status.backend!r} has no store"
    words = f"{status.run_id} {node}".strip()
    return f"elastic {command} --rdzv-backend {status.backend} --rdzv-endpoint … {words}"


def _drain(agents: list[tuple[FoundRun, AgentStatus]], *, deadline_s: float | None, timeout_s: float) -> None:
    params = {"once": "1"} if deadline_s is None else {"deadline": f"{deadline_s:g}"}
    for _, status in agents:
        server = agent_of(status)
        reply = asked(server, partial(client.call, server.path, "drain", params))
        if not reply.ok and reply.status != _CONFLICT:
            raise ElasticError(f"{server.name} refused to drain: {' '.join(reply.text.split())}")
        echo(reply.text)
    _wait(agents, timeout_s)


def _wait(agents: list[tuple[FoundRun, AgentStatus]], timeout_s: float) -> None:
    end_s = SYSTEM_CLOCK.monotonic_s() + timeout_s
    pause = WaitBudget()
    left = agents
    while timeout_s and (left := [agent for agent in left if _runs(agent[0])]):
        if SYSTEM_CLOCK.monotonic_s() >= end_s:
            shown = ", ".join(status.node_id for _, status in left)
            hint = "the same again with a longer --timeout, or with a shorter --deadline for their workers"
            raise ElasticError(f"nodes still running after {timeout_s:g} s: {shown}", hint=hint)
        pause.sleep(_LOOK_EVERY_S)
    if timeout_s:
        for _, status in agents:
            echo(f"node {status.node_id} of run {status.run_id!r} has ended")


def _runs(run: FoundRun) -> bool:
    path = Path(run.path)
    return path.is_dir() and bool(run_at(path).running)
