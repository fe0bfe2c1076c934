"""Formats an incident as text: the last block of a failed run's output, and the line about a restart. Pure."""

import re
import signal
from collections.abc import Iterator, Sequence

from elastic_core.encoding import clean, rank_ranges
from elastic_core.failure.classify import shortened
from elastic_core.failure.incident import Incident, iso_time
from elastic_core.failure.traceback_text import cut, frame_lines
from elastic_core.processes.errors.causes import ELSEWHERE
from elastic_core.processes.errors.frames import Frame, place_of
from elastic_core.system.clock import duration_text
from elastic_core.types import Decision, ErrorRecord, FailedWorker, FailureClass, Ignore, Restart

MAX_LINES = 25
MIN_WIDTH = 40
MAX_SUMMARY = 200
MAX_MESSAGE_LINES = 3
MAX_REASONS = 3
MAX_DETAILS = 5
MAX_LOG_PATHS = 2
MAX_FIELDS = 4
MAX_GROUPS = 3
MAX_NODES = 4
MAX_SUMMARY_LINES = 5
NO_ID = "none"
"""The run id, as in torch, of a `static` run without a given id."""

_PLAIN = {"…": "...", "─": "-", "·": "-"}
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+")


def render_incident(
    incident: Incident,
    *,
    width: int = 100,
    encoding: str = "utf-8",
    incident_path: str = "",
    title: str = "",
    host: str = "",
) -> str:
    """Return the block that ends a failed run: at most 25 lines; only lines with paths may exceed `width`.

    Args:
        incident: The incident.
        width: The terminal's width in characters; less than 40 is treated as 40.
        encoding: The stream's encoding; characters that it lacks are replaced, some by several.
        incident_path: The incident's file; empty if it was not written.
        title: The name of the run; empty means by its id.
        host: The host of that file, if the run has several nodes.
    """
    title = title or _title(incident)
    width = max(width, MIN_WIDTH)
    # The number of frames is reduced first: all other parts are limited, and a shorter traceback loses least.
    for frames, details in (
        (4, MAX_DETAILS),
        (3, MAX_DETAILS),
        (2, MAX_DETAILS),
        (1, MAX_DETAILS),
        (1, MAX_MESSAGE_LINES),
    ):
        lines = list(map(clean, _block(incident, width, incident_path, frames, details, title, host)))
        if len(lines) <= MAX_LINES:
            break
    return encodable("\n".join(lines), encoding)


def render_elsewhere(
    incident: Incident, *, title: str = "", incident_path: str = "", host: str = "", encoding: str = "utf-8"
) -> str:
    """Return the one line about a run that failed on another node, which prints the block; see `render_incident`."""
    summary = shortened(incident.summary, MAX_SUMMARY)
    summary = f"{_subject(incident, verb=False)} on {_node(incident)}: {summary}{_where(incident, there=True)}"
    decision = f"; {_decision(incident.decision)}" if incident.decision is not None else ""
    copy = f"; incident{_on(host)}: {incident_path}" if incident_path else ""
    text = f"{title or _title(incident)} failed: {summary}{decision}; the report is that node's{copy}"
    return encodable(clean(text), encoding)


def render_attempt(
    incident: Incident, *, restart: int, max_restarts: int | None, elsewhere: bool = False, encoding: str = "utf-8"
) -> str:
    """Return the one line about a failure that the run survives; it may be long, because it keeps all essential parts.

    `incident` has its decision. `restart` is the number of the restart that it causes, from 1; without a limit by
    count, `max_restarts` is `None`. `elsewhere`: the failed worker is on another node, which the line then names
    with its host.
    """
    decision = incident.decision if isinstance(incident.decision, Restart) else Restart()
    delay_s = decision.delay_s
    when = f"in {duration_text(delay_s)}" if delay_s > 0 else "now"
    count = f"restart {restart}" if max_restarts is None else f"restart {restart} of {max_restarts}"
    consequence = f"; {count} {when}"
    if decision.exclude_nodes:
        consequence += f" without {', '.join(decision.exclude_nodes)}"
    subject = _subject(incident)
    where = _where(incident, there=elsewhere)
    if decision.reason:
        consequence = f"; {decision.reason}{consequence}"
    others = incident.failed_count if incident.report_count else len(incident.secondary)
    if others:
        consequence = f"; {_count(others, 'other')} failed after it{consequence}"
    if elsewhere:
        subject = f"{subject} on {_node(incident)}"
    summary = shortened(incident.summary, MAX_SUMMARY)
    return encodable(clean(f"{subject}: {summary}{where}{consequence}"), encoding)


def headline(incident: Incident) -> str:
    """Return a short cause with its place: `ValueError: boom (train.py:11)`."""
    return clean(f"{shortened(incident.summary, MAX_SUMMARY)}{_where(incident, there=True)}")


def encodable(text: str, encoding: str) -> str:
    """Return `text` with characters that `encoding` lacks replaced or escaped."""
    try:
        text.encode(encoding)
    except LookupError:
        encoding = "ascii"
    except UnicodeEncodeError:
        pass
    else:
        return text
    for fancy, plain in _PLAIN.items():
        text = text.replace(fancy, plain)
    return text.encode(encoding, "backslashreplace").decode(encoding)


# --- the block's parts, from top to bottom


def _block(
    incident: Incident, width: int, incident_path: str, frame_count: int, detail_count: int, title: str, host: str
) -> Iterator[str]:
    yield cut(f"── {_headline(incident, title)} ", width).ljust(width, "─")
    yield from _identity(incident, width)
    yield from _message(incident, width, detail_count)
    if incident.first is not None and incident.first.error is not None:
        yield from frame_lines(_frames(incident.first), count=frame_count, width=width)
    yield from _others(incident, width)
    yield from _absent(incident, width)
    yield from _logs(incident)
    if incident.hang is not None and incident.hang.stacks:
        yield f"Stacks{_on(incident.node_id if incident.report_count > 1 else '')}: {incident.hang.stacks}"
    if incident.decision is not None:
        yield cut(f"Decision: {_decision(incident.decision)}", width)
    if incident_path:
        yield f"Incident{_on(host)}: {incident_path}"
    yield "─" * width


def _headline(incident: Incident, title: str) -> str:
    """Return the title of the block; it names only the round if the run continues with a restart."""
    failed = f"{title} failed: {_subject(incident, verb=False)}"
    if not isinstance(incident.decision, Restart):
        return failed
    return (f"round {incident.round_index} of " if incident.round_index >= 0 else "") + f"{failed}; restarted"


def _title(incident: Incident) -> str:
    return f"run {incident.run_id!r}" if incident.run_id != NO_ID else "run"


def _on(place: str) -> str:
    return f" on {place}" if place else ""


def _subject(incident: Incident, *, verb: bool = True) -> str:
    first = incident.first
    rank = incident.elsewhere_rank if first is None else first.exit.global_rank
    if rank is None:
        return f"{incident.failure_class.value} failed" if verb else incident.failure_class.value
    return f"rank {rank} failed" if verb else f"rank {rank}"


def _identity(incident: Incident, width: int) -> Iterator[str]:
    first = incident.first
    where = f"round {incident.round_index}" if incident.round_index >= 0 else "no round yet"
    source = f"hook {incident.reported_by}" if incident.reported_by else incident.source
    tail = f"source={source}  {where}, restarts {incident.restart_count}  {incident.at}"
    if first is None and incident.elsewhere_rank is not None:
        yield cut(f"rank {incident.elsewhere_rank} on {incident.host}, another node  {tail}", width)
        return
    if first is None:
        yield cut(f"host {_node(incident)}  {tail}", width)
        return
    exit = first.exit
    end = f"signal {exit.signal}" if exit.signal is not None else f"exit code {exit.code}"
    if exit.stop_signal is not None and exit.signal in (exit.stop_signal, signal.SIGKILL):
        end = f"{end} from the launcher"
    who = f"rank {exit.global_rank} (local rank {exit.local_rank}) on {_node(incident)}, pid {exit.pid}, {end}"
    if len(who) + 2 + len(tail) <= width:
        yield f"{who}  {tail}"
    else:
        yield cut(who, width)
        yield cut(tail, width)


def _node(incident: Incident) -> str:
    """Return this node's id, with its host if the id does not contain it; only the host before the node has an id."""
    node, host = incident.node_id, incident.host
    return (node or host) if not node or host in node else f"{node} ({host})"


def _message(incident: Incident, width: int, detail_count: int) -> Iterator[str]:
    first = incident.first
    # For failures of the launcher or its usage, no other text explains them: the advice is at the end of the summary.
    advises = first is None or incident.failure_class is FailureClass.USAGE
    room = MAX_SUMMARY_LINES if advises else MAX_MESSAGE_LINES
    passed_on = [] if first is None else _elsewhere_in(first)
    where = f" ({', '.join(filter(None, passed_on))})" if passed_on else ""
    yield from _wrapped(f"{incident.failure_class.value}: {incident.summary}{where}", width, room)
    fields = [f"{name}: {value}" for name, value in incident.fields.items()]
    if len(fields) > (most := min(MAX_FIELDS, detail_count)):
        fields[most - 1 :] = [f"… {_count(len(fields) - most + 1, 'more field')}"]
    yield from (f"  {shortened(line, width - 2)}" for line in fields)
    detail_count -= len(fields)
    error = None if first is None else first.error
    if error is None or detail_count <= 0:
        return
    lines = [line for line in error.message.splitlines() if line.strip()]
    if not error.type:
        yield "the end of its stderr:"
        lines = lines[-MAX_MESSAGE_LINES:]
    elif passed_on:
        lines = []  # this is the other process's traceback
    else:
        lines = lines[1:]  # the summary has its first line
    reasons = _reasons(incident, error)[:detail_count]
    for line in _ends_of(lines, min(MAX_MESSAGE_LINES + 1, detail_count - len(reasons))) + reasons:
        yield f"  {shortened(line.strip(), width - 2)}"


def _ends_of(lines: list[str], room: int) -> list[str]:
    """Return a message's lines, of a long message the first and the last ones, which usually have the reason."""
    if len(lines) <= room:
        return lines
    last = max(0, room - 2)
    return [lines[0], f"… {_count(len(lines) - 1 - last, 'more line')}", *lines[len(lines) - last :]][:room]


def _reasons(incident: Incident, error: ErrorRecord) -> list[str]:
    """Return what the summary omits: all notes but the first, and causes with their places."""
    shown = [line for note in error.notes for line in note.splitlines() if line.strip()][1:MAX_MESSAGE_LINES]
    causes = [cause for cause in error.causes if not cause[0].startswith(ELSEWHERE)]
    for relation, kind, message, place in causes[:MAX_REASONS]:
        text = f"{kind}: {message.strip().partition(chr(10))[0]}" if message.strip() else kind
        if place or text not in incident.summary:
            shown.append(f"{relation} {text}{f' ({place})' if place else ''}")
    if len(causes) > MAX_REASONS:
        shown.append(f"… {_count(len(causes) - MAX_REASONS, 'more member')}")
    return shown


def _others(incident: Incident, width: int) -> Iterator[str]:
    secondary, stopped = incident.secondary, incident.stopped
    if incident.finished_count:
        yield f"{_count(incident.finished_count, 'worker')} had finished before"
    failed_count = incident.failed_count if incident.report_count else len(secondary)
    stopped_count = incident.stopped_count if incident.report_count else len(stopped)
    ends = (
        (stopped_count, "stopped because of it"),
        (failed_count, "failed after it"),
        (incident.kept_count, "kept running"),
    )
    counts = ", ".join(f"{_count(number, 'other')} {end}" for number, end in ends if number)
    if not counts:
        return
    yield cut(f"{counts}{_on_nodes(incident)}", width)
    groups = _grouped(secondary)
    shown = groups if len(groups) <= MAX_GROUPS else groups[: MAX_GROUPS - 1]
    for group in shown:
        yield _listing("secondary failures", group, group[0].summary, width)
    if len(groups) > len(shown):
        rest = [worker for group in groups[len(shown) :] for worker in group]
        yield _listing("secondary failures", rest, f"{len(groups) - len(shown)} other kinds of failure", width)
    if failed_count > len(secondary):
        yield f"  secondary failures: {_count(failed_count - len(secondary), 'more rank')}"
    if incident.stopped_ranks:
        rows = (rank for low, high in incident.stopped_ranks for rank in range(low, high + 1))
        yield cut(f"  stopped by the launcher: {'ranks' if stopped_count > 1 else 'rank'} {rank_ranges(rows)}", width)
    elif stopped:
        yield _listing("stopped by the launcher", stopped, "", width)


def _absent(incident: Incident, width: int) -> Iterator[str]:
    """Yield the line about nodes that were left out, with details of the first."""
    for node in incident.absent[:1]:
        reason = f"{node.by} refused: {node.reason}" if node.refused else f"by {node.by}: {node.reason}"
        end = iso_time(node.until_ns) if node.until_ns else "its next decision"
        until = f"asked again by {end}" if node.refused else f"until {end}"
        more = "".join(f", {other.node_id}" for other in incident.absent[1:MAX_NODES])
        yield cut(f"Left out: {node.node_id}{more}; {node.node_id} {until}, {reason}", width)


def _on_nodes(incident: Incident) -> str:
    """Return the names of the nodes if there are several."""
    if incident.report_count < 2:
        return ""
    names = [node.node_id for node in incident.nodes[:MAX_NODES]]
    more = incident.report_count - len(names)
    return f", on {incident.report_count} nodes: {', '.join(names)}{f' and {more} more' if more else ''}"


def _grouped(workers: Sequence[FailedWorker]) -> list[list[FailedWorker]]:
    """Return workers grouped by equal summary; numbers in it (ports, pids, addresses) differ between ranks."""
    groups: dict[str, list[FailedWorker]] = {}
    for worker in workers:
        groups.setdefault(_VARYING.sub("#", worker.summary), []).append(worker)
    return list(groups.values())


def _listing(what: str, workers: Sequence[FailedWorker], story: str, width: int) -> str:
    noun = "rank" if len(workers) == 1 else "ranks"
    # A long list of ranks must not hide the summary.
    numbers = cut(rank_ranges(worker.exit.global_rank for worker in workers), width // 2)
    line = f"  {what}: {noun} {numbers}"
    return cut(f"{line}: {story}" if story else line, width)


def _logs(incident: Incident) -> Iterator[str]:
    """Yield the first worker's log files, uncut for copying; if there are none, the option that keeps them."""
    paths = () if incident.first is None else incident.first.log_paths
    title = f"Logs on {incident.node_id}:" if incident.report_count > 1 else "Logs:"
    for index, path in enumerate(paths[:MAX_LOG_PATHS]):
        yield f"{title if index == 0 else ' ' * len(title)} {path}"
    if not paths and incident.failure_class is FailureClass.EXIT and incident.first and not incident.first.error:
        yield f"{title} none, what it printed last is not kept. Try: --tee 3"


def _decision(decision: Decision) -> str:
    text = type(decision).__name__.lower()
    if isinstance(decision, Restart) and decision.delay_s > 0:
        text += f" in {duration_text(decision.delay_s)}"
    reason = "" if isinstance(decision, Ignore) else decision.reason
    details = "; ".join(part for part in (reason, decision.rule) if part)
    return f"{text} ({details})" if details else text


def _where(incident: Incident, *, there: bool = False) -> str:
    """Return the place in parentheses, with the node if there are several; `there`: the line already names the node."""
    if incident.elsewhere_rank is not None:
        return f" (on {incident.host})"
    if incident.first is None:
        return ""
    parts = _elsewhere_in(incident.first) or [place_of(_frames(incident.first))]
    text = ", ".join(part for part in parts if part and part not in incident.summary)
    if incident.report_count > 1 and not there:
        text = f"{text} on {incident.node_id}".lstrip()
    return f" ({text})" if text else ""


def _elsewhere_in(worker: FailedWorker) -> list[str]:
    """Return place and process of an exception that a subprocess passed on; empty if it is the worker's own."""
    causes = () if worker.error is None else worker.error.causes
    if not causes or not causes[0][0].startswith(ELSEWHERE):
        return []
    relation, _, _, place = causes[0]
    return [causes[-1][3] or place, relation]


def _frames(worker: FailedWorker) -> tuple[Frame, ...]:
    return () if worker.error is None else worker.error.frames


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _wrapped(text: str, width: int, count: int) -> Iterator[str]:
    """Yield `text` in at most `count` lines, broken at blanks if possible; the middle of a longer text is left out."""
    whole = text
    while len(lines := list(_broken(text, width))) > count:
        text = shortened(whole, min(len(text) - 1, count * width))
    yield from lines


def _broken(text: str, width: int) -> Iterator[str]:
    margin = ""
    while text:
        room = width - len(margin)
        if len(text) <= room:
            yield margin + text
            return
        end = text.rfind(" ", 1, room + 1)
        end = room if end < 0 else end
        yield margin + text[:end].rstrip()
        text, margin = text[end:].lstrip(), "  "
