"""Check before a run whether this node is ready for it; each problem is one line with its remedy."""

import os
from collections.abc import Mapping, Sequence
from typing import Final

import click

from elastic_core.api import ConfigError, ElasticError, Record, duration_s
from elastic_core.api.commands import chosen_store, echo, echo_json, line_painter, proposed_values, run_option
from elastic_doctor.checks import OWN, examine, installed_checks
from elastic_doctor.findings import Asked, Finding, Level, NodeFindings
from elastic_doctor.meeting import Meeting, meet
from elastic_doctor.software import facts

api_version = 1

_FAILED: Final = 1
_PAINT_FINDING: Final = line_painter(r"(?:(?P<green>ok)|(?P<yellow>warn)|(?P<red>fail)) ")
_PAINT_COUNTS: Final = line_painter(
    r".*: (?:0 fail|(?P<red>\d+ fail)), (?:0 warn|(?P<yellow>\d+ warn)), (?P<green>\d+ ok)"
)
_AUTO: Final = 0
"""Number of nodes and endpoint from the environment."""
_OF_STORE: Final = ("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf")


class DoctorDocument(Record, frozen=True, kw_only=True):
    """The output of `--json`."""

    schema_version: int = 1
    failed: bool
    nodes: tuple[NodeFindings, ...]
    together: tuple[Finding, ...] = ()


def _doctor(
    target: str | None,
    run: str | None,
    workers: int | None,
    nnodes: int,
    node_id: str | None,
    log_dir: str | None,
    run_dir: str | None,
    agent_port: int,
    master_port: int,
    time_limit: float,
    quiet: bool,
    as_json: bool,
    **options: str | None,
) -> int:
    given = {dest: text for dest, text in options.items() if text is not None}
    named = [name for name in (target, run, given.get("rdzv_id")) if name is not None]
    if len(set(named)) > 1:
        what = f"{' and '.join(map(repr, named))} name two runs; expected one"
        raise click.UsageError(what, click.get_current_context())
    if named:
        given["rdzv_id"] = named[0]
    environ = dict(os.environ)
    if nnodes == _AUTO:
        proposed = proposed_values(given, environ)
        nnodes, node_id = _nodes_of(proposed, environ), node_id or proposed.get("node_id")
        if nnodes > 1:
            given = {dest: proposed[dest] for dest in _OF_STORE if dest in proposed} | given
    asked = Asked(
        environ=environ,
        store=chosen_store(given, environ),
        node_count=nnodes,
        worker_count=workers,
        log_dir=log_dir or environ.get("PET_LOG_DIR", ""),
        run_dir=run_dir or environ.get("PET_RUN_DIR", ""),
        agent_port=agent_port,
        master_port=master_port,
    )
    if nnodes > 1 and asked.store is None:
        raise click.UsageError(
            "--nnodes: no store is named; expected --rdzv-backend and --rdzv-endpoint, where the nodes meet",
            click.get_current_context(),
        )
    brought, broken = installed_checks()
    found = (*examine(asked, {**brought, **OWN}, limit_s=time_limit), *broken)
    own = NodeFindings(node=node_id or os.uname().nodename, findings=found, facts=facts(asked) if nnodes > 1 else {})
    if nnodes > 1:
        meeting = _met(asked, own, nnodes, time_limit)
    else:
        failed = any(finding.level is Level.FAIL for finding in found)
        meeting = Meeting(failed=failed, leader=True, nodes=(own,))
    if as_json:
        document = DoctorDocument(failed=meeting.failed, nodes=meeting.nodes, together=meeting.together)
        echo_json(document)
    elif meeting.leader:
        _show(meeting, quiet=quiet)
    elif not quiet:
        counts = _counts(own.findings)
        echo(f"node {own.node}: {counts}; the first node shows what all have found", painter=_PAINT_COUNTS)
    return _FAILED if meeting.failed else 0


def _node_count(value: object) -> int:
    """Read `--nnodes`."""
    text = str(value).strip()
    if text == "auto":
        return _AUTO
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise click.BadParameter(f"{value!r}; expected a number from 1 up, or auto")
    return int(text)


def _nodes_of(proposed: Mapping[str, str], environ: Mapping[str, str]) -> int:
    """Return the maximum of nodes in the run."""
    text = environ.get("PET_NNODES") or proposed.get("nnodes") or ("1" if proposed else "")
    count = text.rpartition(":")[2].strip()
    if not (count.isascii() and count.isdecimal() and int(count) > 0):
        what = f"{text!r} is no number of nodes" if text else "nothing here says how many nodes the run has"
        raise ConfigError(f"--nnodes auto: {what}", hint="--nnodes N")
    return int(count)


def _met(asked: Asked, own: NodeFindings, nnodes: int, limit_s: float) -> Meeting:
    assert asked.store is not None
    try:
        return meet(
            asked.store,
            own,
            nnodes,
            limit_s=limit_s,
            agent_port=asked.agent_port,
            master_port=asked.master_port,
        )
    except (ElasticError, OSError) as err:
        what = err.what if isinstance(err, ElasticError) else f"a port can't be had ({err.strerror})"
        remedy = err.hint if isinstance(err, ElasticError) else "other ports"
        finding = Finding(check="nodes", level=Level.FAIL, what=what, remedy=remedy)
        return Meeting(failed=True, leader=True, nodes=(own,), together=(finding,))


def _show(meeting: Meeting, *, quiet: bool) -> None:
    """Print the findings; a finding of several nodes is printed once."""
    if len(meeting.nodes) <= 1:
        findings = [*(finding for node in meeting.nodes for finding in node.findings), *meeting.together]
        echo(*_lines([("", finding) for finding in findings], quiet=quiet), painter=_PAINT_FINDING)
        if not quiet:
            echo(f"node {meeting.nodes[0].node}: {_counts(findings)}", painter=_PAINT_COUNTS)
        return
    nodes: dict[Finding, list[str]] = {}
    for node in meeting.nodes:
        for finding in node.findings:
            nodes.setdefault(finding, []).append(node.node)
    rows = [("all", finding) for finding in meeting.together]
    rows += [(_where(names, len(meeting.nodes)), finding) for finding, names in nodes.items()]
    echo(*_lines(rows, quiet=quiet), painter=_PAINT_FINDING)
    if not quiet:
        echo(f"{len(meeting.nodes)} nodes: {_counts([finding for _, finding in rows])}", painter=_PAINT_COUNTS)


def _where(names: Sequence[str], count: int) -> str:
    if len(names) == count:
        return "all"
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _lines(rows: Sequence[tuple[str, Finding]], *, quiet: bool) -> list[str]:
    """Return a line for each finding; of several nodes' findings the worst is first."""
    shown = [(node, each) for node, each in rows if not quiet or each.level is not Level.OK]
    if any(node for node, _ in shown):
        shown.sort(key=lambda row: [Level.FAIL, Level.WARN, Level.OK].index(row[1].level))
    width = max((len(each.check) for _, each in shown), default=0)
    aside = max((len(node) for node, _ in shown), default=0)
    return [
        "  ".join(filter(None, (f"{each.level:<4}", f"{node:<{aside}}", f"{each.check:<{width}}", _sentence(each))))
        for node, each in shown
    ]


def _sentence(finding: Finding) -> str:
    what = " ".join(finding.what.split())
    return f"{what}. Try: {' '.join(finding.remedy.split())}" if finding.remedy else what


def _counts(findings: Sequence[Finding]) -> str:
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    return f"{counts[Level.FAIL]} fail, {counts[Level.WARN]} warn, {counts[Level.OK]} ok"


_HELP = """\
Check whether this node is ready for a run: limits, shared memory, disks, versions, GPUs, network, variables.

With the --rdzv options of the run, also check whether the node can reach and use the store, and at which address other
nodes would reach this node. The command changes nothing, does not import torch, and needs no terminal, so that a Slurm
prolog or an init container can run it. With --nnodes, all nodes of the run execute the command; they meet in the store
and test each other's ports and clocks.
"""
_EPILOG = """\b
Examples:
  elastic doctor
  elastic doctor --nproc-per-node 8 --log-dir /shared/logs
  elastic doctor --quiet --rdzv-backend redis --rdzv-endpoint redis.example:6379 bert-7
  srun --ntasks-per-node 1 elastic doctor --quiet --time-limit 10
  srun --ntasks-per-node 1 elastic doctor --nnodes auto
  elastic doctor --nnodes 4 --rdzv-backend c10d --rdzv-endpoint node0 bert-7

Exit codes: 0 no check failed; 1 a check failed; 2 usage.
"""
_PORT = click.IntRange(0, 65535)
_STORE: Final = {
    "rdzv_backend": "Rendezvous backend of the run (redis, etcd, c10d, …): read the run from its store.",
    "rdzv_endpoint": "Address of the backend, as on the run's nodes.",
    "rdzv_id": "Run id.",
    "rdzv_conf": "Options of the backend, such as password_file=PATH.",
    "connect_timeout": "How long to wait for the backend's server.  [default: 5]",
}


def _time(value: object) -> float:
    read = duration_s(str(value))
    if read is None or read <= 0:
        raise click.BadParameter(f"{value!r}; expected seconds, more than 0, or a time as 30s, 5m or 1h")
    return read


command = click.Command(
    "doctor",
    callback=_doctor,
    params=[
        click.Argument(["target"], metavar="[RUN]", required=False),
        click.Option(["--run"], metavar="RUN", help="The run, as RUN: its id."),
        *(run_option(dest, help_text=f"{text}  [PET_{dest.upper()}]") for dest, text in _STORE.items()),
        click.Option(
            ["--nproc-per-node", "workers"], type=click.IntRange(1), metavar="N", help="Number of workers on this node."
        ),
        click.Option(
            ["--nnodes"],
            type=_node_count,
            default="1",
            metavar="N",
            help="Number of nodes that run this command and meet in the run's store; the first node prints the results "
            "of all. auto: number and store as Slurm or another detected scheduler provides them.",
        ),
        run_option("node_id", help_text="Name of this node in the results.  [default: host name]"),
        run_option("log_dir", help_text="Log directory of the run.  [PET_LOG_DIR]"),
        run_option("run_dir", help_text="Run directory of the run.  [PET_RUN_DIR]"),
        click.Option(["--agent-port"], type=_PORT, default=0, metavar="PORT", help="UDP port of the agent."),
        click.Option(["--master-port"], type=_PORT, default=0, metavar="PORT", help="Port of rank 0."),
        click.Option(
            ["--time-limit"],
            type=_time,
            default="20",
            metavar="TIME",
            help="Time limit of all checks together.  [default: 20]",
        ),
        click.Option(["-q", "--quiet"], is_flag=True, help="Show only warnings and failures."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON."),
    ],
    help=_HELP,
    epilog=_EPILOG,
)
