"""A run as its store has it: the result, the last failures, and the nodes of the last round."""

from collections.abc import Sequence
from contextlib import closing

from elastic_core.api import Record
from elastic_core.api.commands import StoreChoice
from elastic_ops.incidents.listed import incidents_of_store
from elastic_ops.status.store_view import STOPPED, STOPPED_BY, RunInStore
from elastic_ops.store import StoreReader
from elastic_report.combining.evidence import AgentEvidence, StoreEvidence
from elastic_report.ledger.document import Ledger
from elastic_report.sources.agents import Missing
from elastic_report.sources.asking import Place, ask


class StoredFacts(Record, frozen=True, kw_only=True):
    """What the store has, and the running agents."""

    evidence: StoreEvidence
    places: tuple[Place, ...]
    """The agents of the last round that run."""
    secret: str
    backend: str


def read_store(choice: StoreChoice) -> StoredFacts:
    """Return a run's content in its store.

    Raises:
        NoSuchRunError: the store has no such run.
        ElasticError: the store can't be reached or read.
    """
    with closing(StoreReader(choice)) as reader:
        run = RunInStore(reader.read(), choice, reader.where)
        where = reader.where
    stored = run.run
    control = stored.control
    verdict = None if control is None else control.verdict
    roster = () if stored.round is None else stored.round.roster
    live = {incarnation for incarnation, _ in stored.members} - stored.silent
    outcome = "" if verdict is None else STOPPED if verdict.decision.rule == STOPPED_BY else verdict.decision.outcome
    failures = incidents_of_store(choice.run_id, run.history, run.evidence)
    evidence = StoreEvidence(
        where=where,
        outcome=outcome,
        exit_code=None if verdict is None else verdict.exit_code,
        reason="" if verdict is None else verdict.decision.reason,
        failures=tuple(each.incident for each in failures),
        members=tuple(entry.node for entry in roster),
        round_index=None if stored.round is None else stored.round.index,
        round_token=0 if stored.round is None else stored.round.token,
        lost=() if verdict is not None else tuple(each.node for each in roster if each.incarnation not in live),
    )
    places = [
        Place(node_id=entry.node, address=entry.host, port=entry.agent_port, incarnation=entry.incarnation)
        for entry in roster
        if entry.incarnation in live and verdict is None
    ]
    return StoredFacts(
        evidence=evidence,
        places=tuple(places),
        secret="" if control is None else control.secret,
        backend=choice.backend,
    )


def agents_elsewhere(stored: StoredFacts, here: Sequence[AgentEvidence], missing: Missing) -> list[AgentEvidence]:
    """Return the running agents of other hosts, which are asked for their ledgers.

    Args:
        stored: What the store has.
        here: The agents that were found on this machine.
        missing: Gets a line for each agent that can't be asked.
    """
    known = {agent.ledger.begin.incarnation for agent in here if agent.ledger is not None}
    names = {agent.node_id for agent in here if agent.alive}
    places = [each for each in stored.places if each.incarnation not in known and each.node_id not in names]
    found = []
    for place, answer in zip(places, ask(places, stored.secret), strict=True):
        if isinstance(answer, Ledger):
            begin = answer.begin
            found.append(
                AgentEvidence(
                    node_id=begin.node_id,
                    run_id=begin.run_id,
                    host=begin.host,
                    ledger=answer,
                    started_ns=begin.started_ns,
                    script=begin.script,
                    backend=begin.backend,
                    alive=True,
                    current=True,
                )
            )
        else:
            missing.note(
                f"{place.node_id} can't be asked for its ledger at {place.address}, TCP port {place.port} ({answer}). "
                "Try: a port that is open (--agent-port), or elastic report on that host"
            )
    return found
