"""Chooses where a run is read, from the arguments of `elastic report`, and reads it."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from elastic_core.api import SYSTEM_CLOCK, Clock, ConfigError
from elastic_core.api.commands import StoreChoice
from elastic_core.api.records import RunRecord, run_places
from elastic_ops.run_target import NoSuchRunError, store_asked, typed_options
from elastic_report.combining.evidence import AgentEvidence, RunEvidence
from elastic_report.ledger.document import Ledger
from elastic_report.sources import directories, machine
from elastic_report.sources.agents import Missing
from elastic_report.sources.asking import Place, ask
from elastic_report.sources.store import agents_elsewhere, read_store


def read_run(targets: Sequence[str], options: Mapping[str, str | None], *, clock: Clock = SYSTEM_CLOCK) -> RunEvidence:
    """Return everything that can be found about a run.

    Args:
        targets: RUN of the command: nothing, a run id, a number or a directory, or several directories.
        options: The options that choose a store, by their identifiers.
        clock: This machine's clocks.

    Raises:
        ConfigError: there is no such run, or what names it is not clear.
        ElasticError: the store can't be reached or read.
    """
    missing = Missing()
    if len(targets) > 1:
        if typed := typed_options(options):
            raise ConfigError(
                f"RUN: {len(targets)} directories and {_flag(next(iter(typed)))}; expected one of both",
                hint="elastic report DIR …, or elastic report RUN with the --rdzv options",
            )
        return _of_directories(targets, missing, clock)
    target = targets[0] if targets else None
    if target == "":
        raise ConfigError(
            "RUN: ''; expected a run id, a number of elastic runs, or a run directory", hint="elastic runs"
        )
    found = machine.records(missing)
    record = None if target is None else machine.named(target, found)
    choice = _store(options, target, record)
    if choice is not None:
        try:
            return _of_store(choice, found, missing, clock)
        except NoSuchRunError:
            own = machine.records_of(choice.run_id, found)
            if typed_options(options) or not own:
                raise
            record = own[-1]  # only a variable names the store, which forgets a run that is over
    if target is None:
        record = record or machine.last_run(found)
    elif record is None:
        if Path(target).expanduser().is_dir() or os.sep in target:
            return _of_directories([target], missing, clock)
        raise machine.no_such_run(target)
    return _of_machine(record, found, missing, clock)


def _store(options: Mapping[str, str | None], target: str | None, record: RunRecord | None) -> StoreChoice | None:
    """Return the store to read. A run of this machine is not taken for a job's number."""
    if not typed_options(options):
        if target is None:
            return None  # the last run of this machine, wherever its nodes meet
        if record is not None and target.isdecimal() and target != record.run_id:
            target = record.run_id
            if not (os.environ.get("PET_RDZV_BACKEND") or "").strip():
                return None
    return store_asked(options, target if record is None or os.sep not in (target or "") else record.run_id)


def _of_machine(record: RunRecord, found: Sequence[RunRecord], missing: Missing, clock: Clock) -> RunEvidence:
    own = machine.records_of(record.run_id, found)
    if record not in own:  # an earlier run of this id was named by its number or directory
        own = [
            run
            for run in found
            if run.run_id == record.run_id and run.agent.started_ns <= max(record.ended_ns, record.agent.started_ns)
        ]
        own = machine.records_of(record.run_id, own)
    agents = _asked(machine.agents_of(own, missing), own, missing)
    _note_gone(agents, missing)
    earliest_ns = min((run.agent.started_ns for run in own), default=0)
    return RunEvidence(
        run_id=record.run_id,
        now_ns=clock.wall_ns(),
        source="this machine",
        agents=tuple(agents),
        earlier=tuple(machine.last_good(record.run_id, record.script, earliest_ns, found)),
        missing=missing.lines,
    )


def _of_store(choice: StoreChoice, found: Sequence[RunRecord], missing: Missing, clock: Clock) -> RunEvidence:
    stored = read_store(choice)
    own = machine.records_of(choice.run_id, found)
    here = _asked(machine.agents_of(own, missing), own, missing)
    agents = [*here, *agents_elsewhere(stored, here, missing)]
    script = next((agent.script for agent in agents if agent.script), "")
    earliest_ns = min((agent.started_ns for agent in agents), default=clock.wall_ns())
    return RunEvidence(
        run_id=choice.run_id,
        now_ns=clock.wall_ns(),
        source=f"{stored.evidence.where}, and this machine" if here else stored.evidence.where,
        agents=tuple(agents),
        store=stored.evidence,
        earlier=tuple(machine.last_good(choice.run_id, script, earliest_ns, found)),
        missing=missing.lines,
    )


def _of_directories(targets: Sequence[str], missing: Missing, clock: Clock) -> RunEvidence:
    agents = directories.agents_below(targets, missing)
    run_id = directories.run_id_of(agents)
    shown = ", ".join(targets[:4]) + (f" and {len(targets) - 4} more" if len(targets) > 4 else "")
    earlier: list[AgentEvidence] = []
    script = next((agent.script for agent in agents if agent.script), "")
    try:
        found = machine.records(Missing())
    except ConfigError:  # this machine has no place for runs: only the comparison is missing
        found = []
    if starts := [agent.started_ns for agent in agents if agent.started_ns]:
        earlier = machine.last_good(run_id, script, min(starts), found)
    return RunEvidence(
        run_id=run_id,
        now_ns=clock.wall_ns(),
        source=shown,
        agents=tuple(agents),
        earlier=tuple(earlier),
        missing=missing.lines,
    )


def _asked(agents: Sequence[AgentEvidence], records: Sequence[RunRecord], missing: Missing) -> list[AgentEvidence]:
    """Return the agents of this machine; those that run were asked for their ledgers, as their files may lag behind."""
    controls = machine.controls_of(records)
    alive = [agent for agent in agents if agent.alive and controls.get(agent.run_dir)]
    places = [Place(node_id=agent.node_id, control=controls[agent.run_dir]) for agent in alive]
    answers = dict(zip((agent.run_dir for agent in alive), ask(places), strict=True))
    found = []
    for agent in agents:
        answer = answers.get(agent.run_dir)
        if isinstance(answer, Ledger):
            agent = replace(agent, ledger=answer, current=True, node_id=answer.begin.node_id, host=answer.begin.host)
        elif answer is not None and agent.ledger is None:
            missing.note(f"the agent of {agent.node_id} has not sent its ledger ({answer})")
        found.append(agent)
    return found


def _note_gone(agents: Sequence[AgentEvidence], missing: Missing) -> None:
    gone = [agent for agent in agents if agent.outcome != "succeeded" and not agent.run_dir]
    if gone:
        missing.note(
            f"{len(gone)} run director{'y is' if len(gone) == 1 else 'ies are'} gone: log files are missing "
            f"(directories: {run_places()})"
        )


def _flag(dest: str) -> str:
    return f"--{dest.replace('_', '-')}"
