"""A report as a trace for Perfetto: nodes are processes, workers are threads.

Source: Chrome's "Trace Event Format": complete events (`X`), instant events (`i`) and metadata (`M`), with times in
microseconds. Process 0 is the run itself: its rounds, and its incidents.
"""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from elastic_report.model import NodeLane, Report, WorkerBar

Event = dict[str, object]

_RUN: Final = 0
_ROUNDS, _INCIDENTS = 0, 1
"""Threads of the run."""
_NODE: Final = 0
"""The thread with a node's states. Worker N of the node is thread N + 1."""


def trace(report: Report) -> dict[str, object]:
    """Return the trace as an object for JSON. Times are microseconds since the beginning of the run."""
    events = [*_of_run(report)]
    pids: dict[str, int] = {}
    named: set[tuple[int, int]] = set()
    for lane in report.nodes:
        known = lane.node_id in pids
        pid = pids.setdefault(lane.node_id, len(pids) + 1)
        if not known:
            host = f" on {lane.host}" if lane.host and lane.host not in lane.node_id else ""
            events += _named_process(pid, f"node {lane.node_id}{host}", pid)
            events.append(_metadata("thread_name", pid, _NODE, {"name": "state of the node"}))
        events += _of_lane(lane, pid, named)
    events += [_of_event(report, index, pids) for index in range(len(report.events))]
    began = datetime.datetime.fromtimestamp(report.run.began_ns / 1e9, tz=datetime.UTC)
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "run_id": report.run.run_id,
            "began": began.isoformat(timespec="milliseconds"),
            "result": report.run.sentence,
            "clocks": report.clocks,
        },
        "traceEvents": events,
    }


def _of_run(report: Report) -> Iterator[Event]:
    yield from _named_process(_RUN, f"run {report.run.run_id}", _RUN)
    yield _metadata("thread_name", _RUN, _ROUNDS, {"name": "rounds"})
    yield _metadata("thread_name", _RUN, _INCIDENTS, {"name": "incidents"})
    last_s = max((lane.end_s for lane in report.nodes), default=report.run.ended_s or 0.0)
    for row in report.rounds:
        args = {
            "attempt": row.attempt,
            "token": row.token,
            "nodes": row.node_count,
            "workers": row.world_size,
            "ended by": row.ended_by,
            "reason": row.reason,
            "joined": list(row.joined),
            "left": list(row.left),
            "lost": list(row.lost),
        }
        end_s = last_s if row.end_s is None else row.end_s
        yield _complete(f"round {row.index}", "round", (_RUN, _ROUNDS), row.begin_s, end_s, args)
    for incident in report.incidents:
        args = {
            "summary": incident.incident.summary,
            "class": str(incident.incident.failure_class),
            "decision": incident.decision,
            "rule": incident.rule,
            "detect_s": incident.detect_s,
            "recover_s": incident.recover_s,
            "lost_s": incident.lost_s,
        }
        yield _instant(incident.sentence, "incident", (_RUN, _INCIDENTS), incident.at_s, "g", args)


def _of_lane(lane: NodeLane, pid: int, named: set[tuple[int, int]]) -> Iterator[Event]:
    for span in lane.spans:
        args = {"round": span.round, "reason": span.reason, "attempt": lane.attempt, "inferred": lane.inferred or None}
        yield _complete(str(span.state), "state", (pid, _NODE), span.begin_s, span.end_s, args)
    for worker in lane.workers:
        tid = worker.local_rank + 1
        if (pid, tid) not in named:
            named.add((pid, tid))
            yield _metadata("thread_name", pid, tid, {"name": f"worker {worker.local_rank}"})
        args = {
            "round": worker.round,
            "exit code": worker.code,
            "stopped by the agent": worker.stopped,
            "first step": worker.first_step,
            "last step": worker.last_step,
        }
        yield _complete(f"rank {worker.global_rank}", "worker", (pid, tid), worker.begin_s, worker.end_s, args)
        for kind, begin_s, end_s in _inside(worker):
            yield _complete(kind, "checkpoint", (pid, tid), begin_s, end_s, {})


def _inside(worker: WorkerBar) -> Sequence[tuple[str, float, float]]:
    # An event that reaches beyond the one around it is drawn wrongly.
    return [
        (kind, max(begin_s, worker.begin_s), min(end_s, worker.end_s))
        for kind, begin_s, end_s in worker.marks
        if begin_s < worker.end_s and end_s > worker.begin_s
    ]


def _of_event(report: Report, index: int, pids: dict[str, int]) -> Event:
    event = report.events[index]
    pid = pids.get(event.node)
    place, scope = ((_RUN, _ROUNDS), "g") if pid is None else ((pid, _NODE), "p")
    args = {"text": event.text, "node": event.node, "rank": event.rank, "incident": event.incident}
    return _instant(event.text or event.name, event.name, place, event.at_s, scope, args)


# --- the format


def _named_process(pid: int, name: str, place: int) -> Iterator[Event]:
    yield _metadata("process_name", pid, 0, {"name": name})
    yield _metadata("process_sort_index", pid, 0, {"sort_index": place})


def _metadata(name: str, pid: int, tid: int, args: Mapping[str, object]) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _complete(
    name: str, category: str, place: tuple[int, int], begin_s: float, end_s: float, args: Mapping[str, object]
) -> Event:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": place[0],
        "tid": place[1],
        "ts": _us(begin_s),
        "dur": max(0, _us(end_s) - _us(begin_s)),
        "args": _known(args),
    }


def _instant(
    name: str, category: str, place: tuple[int, int], at_s: float, scope: str, args: Mapping[str, object]
) -> Event:
    return {
        "ph": "i",
        "name": name,
        "cat": category,
        "pid": place[0],
        "tid": place[1],
        "ts": _us(at_s),
        "s": scope,
        "args": _known(args),
    }


def _known(args: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in args.items() if value not in (None, "", [])}


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
