"""The agent's metrics in the group `elastic`. The table in the docs is made from it."""

import enum
from typing import Final

from elastic_core.api import Record

GROUP: Final = "elastic"


class Kind(enum.StrEnum):
    """The meaning of successive values of a family."""

    GAUGE = "gauge"
    """A gauge: each value replaces the last."""
    COUNTER = "counter"
    """A counter: each value is the total so far."""
    SUMMARY = "summary"
    """A summary: each value is one observation; Prometheus gets their count and sum."""


class Family(Record, frozen=True, kw_only=True):
    """One metric, a series for each value of its labels."""

    name: str
    kind: Kind
    labels: tuple[str, ...] = ()
    help: str


def _family(name: str, kind: Kind, help_text: str, *labels: str) -> Family:
    return Family(name=name, kind=kind, labels=labels, help=help_text)


FAMILIES: Final = (
    _family("elastic_run_info", Kind.GAUGE, "1; what the run is", "run_id", "node_id", "role", "backend"),
    _family("elastic_agent_state", Kind.GAUGE, "1 for the state that the agent is in, 0 for one that it left", "state"),
    _family("elastic_round", Kind.GAUGE, "index of the round that this node is in, from 0"),
    _family("elastic_rounds_total", Kind.COUNTER, "rounds that this node was part of"),
    _family("elastic_round_nodes", Kind.GAUGE, "nodes of the round"),
    _family("elastic_world_size", Kind.GAUGE, "workers of the round on all nodes together"),
    _family("elastic_node_rank", Kind.GAUGE, "rank of this node in the round"),
    _family("elastic_workers_alive", Kind.GAUGE, "workers of this node that have not ended"),
    _family(
        "elastic_worker_exits_total",
        Kind.COUNTER,
        "ends of this node's workers: succeeded, failed, or terminated (by the agent)",
        "outcome",
    ),
    _family("elastic_failures_total", Kind.COUNTER, "failures that were examined, by the first cause's class", "class"),
    _family("elastic_restarts_total", Kind.COUNTER, "restarts after failures, by the first cause's class", "class"),
    _family(
        "elastic_hangs_total",
        Kind.COUNTER,
        "hangs that this node reported, by the kind of cause; with elastic-watch only",
        "cause",
    ),
    _family(
        "elastic_hang_suspect",
        Kind.GAUGE,
        "1 for a rank of the run for which ranks of this node wait, 0 when they make progress again; with "
        "elastic-watch only",
        "rank",
    ),
    _family("elastic_membership_changes_total", Kind.COUNTER, "rounds that ended because nodes came or went"),
    _family(
        "elastic_phase_seconds",
        Kind.SUMMARY,
        "how long it took to detect a failure, to stop the workers, to form a round, to start the workers",
        "phase",
    ),
    _family(
        "elastic_heartbeat_age_seconds",
        Kind.GAUGE,
        "time since a worker's last heartbeat, updated every 5 s; with elastic-watch only",
        "local_rank",
    ),
    _family("elastic_heartbeat_step", Kind.GAUGE, "the last step that a worker reported by a heartbeat", "local_rank"),
    _family(
        "elastic_store_latency_seconds", Kind.GAUGE, "mean of the calls of the last 5 s to the rendezvous store", "call"
    ),
    _family("elastic_store_calls_total", Kind.COUNTER, "calls to the rendezvous store", "call", "outcome"),
    _family("elastic_store_reachable", Kind.GAUGE, "0 while the rendezvous store is away, 1 when it is back"),
    _family(
        "elastic_hook_field", Kind.GAUGE, "a number that a hook publishes, or 1 for yes and 0 for no", "hook", "field"
    ),
    _family(
        "elastic_goodput_ratio",
        Kind.GAUGE,
        "productive share of this node's time by the formula `google` or `nvidia`, the lowest value of a range; with "
        "elastic-report only",
        "formula",
    ),
    _family(
        "elastic_lost_seconds_total",
        Kind.COUNTER,
        "this node's time that was not productive, by the state of the time ledger; with elastic-report only",
        "cause",
    ),
    _family(
        "elastic_straggler_score",
        Kind.GAUGE,
        "the others' work divided by that of a straggler; 1 after it ended; `rank` is empty for a node; with "
        "elastic-watch only",
        "rank",
        "node",
    ),
    _family("elastic_stragglers", Kind.GAUGE, "stragglers that this node knows; node rank 0 knows those of the run"),
    _family("elastic_exit_code", Kind.GAUGE, "the run's exit code, at its end"),
)

BY_NAME: Final = {family.name: family for family in FAMILIES}
