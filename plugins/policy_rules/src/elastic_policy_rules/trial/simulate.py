"""`elastic policy simulate`: the decisions about recorded failures, with reasons, without a job."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from elastic_core.api import (
    ConfigError,
    Decision,
    ElasticError,
    Failure,
    FailureHandler,
    Ignore,
    PluginError,
    Record,
    Restart,
    Stop,
    encode_json,
)
from elastic_core.api.commands import checked_decision, chosen_policy, echo, echo_json
from elastic_policy_rules.trial.options import policy_parameters
from elastic_policy_rules.trial.trace import read_trace


class Simulated(Record, frozen=True, kw_only=True):
    """One failure of the trace, with the decision and its reason."""

    number: int
    failure: Failure
    decision: Decision
    why: tuple[str, ...] = ()


def simulate(policy: FailureHandler, failures: Sequence[Failure], *, name: str) -> list[Simulated]:
    """Return a policy's decisions about failures in order, each with the earlier ones, until it ends the run.

    Raises:
        PluginError: the policy raised, or its result is invalid.
    """
    history: list[Failure] = []
    found: list[Simulated] = []
    for number, failure in enumerate(failures, 1):
        decision, why = _ask(policy, failure, tuple(history), f"policy {name!r} about failure {number}")
        found.append(Simulated(number=number, failure=failure, decision=decision, why=why))
        if isinstance(decision, Stop):
            break
        history.append(replace(failure, decision=decision, log_tail=""))
    return found


def _ask(
    policy: FailureHandler, failure: Failure, history: tuple[Failure, ...], title: str
) -> tuple[Decision, tuple[str, ...]]:
    try:
        answer: object = policy.decide(failure, history)
        why = tuple(str(line) for line in policy.explain(failure, history))
    except ElasticError:
        raise
    except Exception as err:
        told = " ".join(f"{type(err).__name__}: {err}".split())
        hint = "ELASTIC_DEBUG=1 shows where; in a run the built-in policy would decide in its place"
        raise PluginError(f"{title}: it raised {told}", hint=hint) from err
    decision, fault = checked_decision(answer)
    if decision is None:
        raise PluginError(f"{title}: it {fault}", hint="in a run the built-in policy would decide in its place")
    return decision, why


def _simulate(file: str | None, trace: str, as_json: bool, **given: str | tuple[str, ...] | None) -> int:
    name, policy, warnings = chosen_policy(given, file=file)
    failures = read_trace(_content(trace), trace)
    found = simulate(policy, failures, name=name)
    for line in warnings:
        echo(line, err=True)
    if as_json:
        echo_json(json.dumps([_as_json(one) for one in found], indent=2))
        return 0
    for one in found:
        echo(*_as_text(one))
    echo(_ending(found, len(failures)))
    return 0


def _content(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as err:
        told = err.strerror if isinstance(err, OSError) else str(err)
        raise ConfigError(f"--trace {path!r} can't be read: {told}", hint="a file of failures, or - for stdin") from err


def _as_json(one: Simulated) -> dict[str, Any]:
    failure = json.loads(encode_json(replace(one.failure, decision=None)))
    decision = json.loads(encode_json(one.decision))
    return {"number": one.number, "failure": failure, "decision": decision, "why": list(one.why)}


def _as_text(one: Simulated) -> list[str]:
    failure = one.failure
    rank = "" if failure.global_rank is None else f"rank {failure.global_rank} "
    node = f"on {failure.node_id} " if failure.node_id else ""
    head = f"{one.number}. {failure.at_s:g} s, {rank}{node}up {failure.uptime_s:g} s: {failure.summary}"
    return [head, f"   {_told(one.decision)}", *(f"     {line}" for line in one.why)]


def _told(decision: Decision) -> str:
    rule = f" ({decision.rule})" if decision.rule else ""
    match decision:
        case Restart(delay_s=delay_s, exclude_nodes=nodes):
            when = f"in {delay_s:g} s" if delay_s > 0 else "now"
            without = f" without {', '.join(nodes)}" if nodes else ""
            return f"-> restart {when}{without}{rule}"
        case Stop(outcome=outcome, reason=reason):
            return f"-> stop as {outcome}: {reason}{rule}"
        case Ignore():
            return f"-> ignore: the others run on{rule}"


def _ending(found: Sequence[Simulated], count: int) -> str:
    left = count - len(found)
    if not isinstance(found[-1].decision, Stop):
        return f"{count} failures, and the run goes on" if count != 1 else "1 failure, and the run goes on"
    end = f"the run ends as {found[-1].decision.outcome} at failure {len(found)} of {count}"
    return f"{end}; {left} more would not have come" if left else end


command = click.Command(
    "simulate",
    short_help="Show the decision of a policy about each failure, and why.",
    callback=_simulate,
    params=[
        *policy_parameters(),
        click.Option(
            ["--trace"],
            required=True,
            metavar="FILE",
            help="Failures, oldest first: JSON lines, each a Failure record or the content of an incident.json; -: "
            "standard input.",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print a JSON array."),
    ],
    help="Show the decision of the rule FILE, or of --policy NAME, about each failure of a trace, and why.",
)
