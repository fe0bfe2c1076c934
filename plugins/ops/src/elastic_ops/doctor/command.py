"""Look whether this node is fit for a run, before one starts: each finding in a line, with its remedy."""

import os
from collections.abc import Sequence
from typing import Final

import click

from elastic_core.api import Record, chosen_store, echo, echo_json, run_option
from elastic_ops.doctor.checks import OWN, examine, installed_checks
from elastic_ops.doctor.findings import Asked, Finding, Level
from elastic_ops.run_target import duration, store_params

api_version = 1

_FAILED: Final = 1


class NodeFindings(Record, frozen=True, kw_only=True):
    """What was found on one node."""

    node: str
    findings: tuple[Finding, ...]


class DoctorDocument(Record, frozen=True, kw_only=True):
    """What `--json` writes."""

    schema_version: int = 1
    failed: bool
    nodes: tuple[NodeFindings, ...]


def _doctor(
    workers: int | None,
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
    environ = dict(os.environ)
    asked = Asked(
        environ=environ,
        store=chosen_store(given, environ),
        worker_count=workers,
        log_dir=log_dir or environ.get("PET_LOG_DIR", ""),
        run_dir=run_dir or environ.get("PET_RUN_DIR", ""),
        agent_port=agent_port,
        master_port=master_port,
    )
    brought, broken = installed_checks()
    findings = [*examine(asked, {**brought, **OWN}, limit_s=time_limit), *broken]
    own = NodeFindings(node=os.uname().nodename, findings=tuple(findings))
    failed = any(finding.level is Level.FAIL for finding in findings)
    if as_json:
        echo_json(DoctorDocument(failed=failed, nodes=(own,)))
    else:
        echo(*_lines(findings, quiet=quiet))
        if not quiet:
            echo(f"node {own.node}: {_counts(findings)}")
    return _FAILED if failed else 0


def _lines(findings: Sequence[Finding], *, quiet: bool) -> list[str]:
    shown = [finding for finding in findings if not quiet or finding.level is not Level.OK]
    width = max((len(finding.check) for finding in shown), default=0)
    return [f"{each.level:<4}  {each.check:<{width}}  {_sentence(each)}" for each in shown]


def _sentence(finding: Finding) -> str:
    what = " ".join(finding.what.split())
    return f"{what}. Try: {' '.join(finding.remedy.split())}" if finding.remedy else what


def _counts(findings: Sequence[Finding]) -> str:
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    return f"{counts[Level.FAIL]} fail, {counts[Level.WARN]} warn, {counts[Level.OK]} ok"


_HELP = """\
Look whether this node is fit for a run: limits, shared memory, disks, versions, GPUs, network, variables.

With the --rdzv options of the run also whether its store is reached and lets us in, and by which address others would
reach this node. Nothing is changed, torch is not imported, and no terminal is needed: a Slurm prolog or an init
container can do so before each run.
"""
_EPILOG = """\b
Examples:
  elastic doctor
  elastic doctor --nproc-per-node 8 --log-dir /shared/logs
  elastic doctor --quiet --rdzv-backend redis --rdzv-endpoint redis.example:6379 --rdzv-id bert-7
  srun --ntasks-per-node 1 elastic doctor --quiet --time-limit 10

Exit codes: 0 nothing that fails a run; 1 something does; 2 usage.
"""
_PORT = click.IntRange(0, 65535)

command = click.Command(
    "doctor",
    callback=_doctor,
    params=[
        *store_params(),
        click.Option(
            ["--nproc-per-node", "workers"], type=click.IntRange(1), metavar="N", help="How many workers it is to have."
        ),
        run_option("log_dir", help_text="Where workers' logs are to go.  [PET_LOG_DIR]"),
        run_option("run_dir", help_text="Where the run directory is to be.  [PET_RUN_DIR]"),
        click.Option(
            ["--agent-port"], type=_PORT, default=0, metavar="PORT", help="The UDP port that the agent is to have."
        ),
        click.Option(["--master-port"], type=_PORT, default=0, metavar="PORT", help="The port that rank 0 is to have."),
        click.Option(
            ["--time-limit"],
            type=duration(),
            default="20",
            metavar="TIME",
            help="How long all checks may take.  [default: 20]",
        ),
        click.Option(["-q", "--quiet"], is_flag=True, help="Show what warns or fails, and nothing else."),
        click.Option(["--json", "as_json"], is_flag=True, help="Write JSON for programs."),
    ],
    help=_HELP,
    epilog=_EPILOG,
)
