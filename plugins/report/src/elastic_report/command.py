"""The command `elastic report`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import click
import msgspec

from elastic_core.api import ConfigError
from elastic_core.api.commands import echo, echo_json
from elastic_core.api.tools import replace_file
from elastic_report.sources.options import complete_run, run_of, run_params, store_params

if TYPE_CHECKING:
    from elastic_report.model import Report

api_version = 1

STDOUT: Final = "-"
_MOST_NAME: Final = 150
"""The most characters of a file's name that are made from a run's id."""


def _report(
    targets: tuple[str, ...],
    run: str | None,
    output: str | None,
    trace: str | None,
    as_json: bool,
    as_markdown: bool,
    **options: str | None,
) -> int:
    shown = [
        name
        for name, wanted in (
            ("--json", as_json),
            ("--markdown", as_markdown),
            ("--output -", output == STDOUT),
            ("--trace -", trace == STDOUT),
        )
        if wanted
    ]
    if len(shown) > 1:
        raise click.UsageError(
            f"{shown[0]} and {shown[1]} both print on stdout; expected one of them", click.get_current_context()
        )
    report = _read(targets, run, options)
    if trace is not None:
        _write_trace(report, trace)
    if as_json:
        echo_json(report)
    elif as_markdown:
        from elastic_report.markdown import markdown

        echo(*markdown(report).rstrip("\n").split("\n"))
    if output is not None or not (shown or trace is not None):
        _write_page(report, output, quiet=bool(shown))
    for line in report.missing:
        echo(f"missing: {line}", err=True)
    return 0


def _read(targets: tuple[str, ...], run: str | None, options: dict[str, str | None]) -> "Report":
    from elastic_report.combining.combine import combine
    from elastic_report.sources.choosing import read_run

    if len(targets) < 2:
        target = run_of(targets[0] if targets else None, run, options)
        targets = () if target is None else (target,)
    elif run is not None:
        what = f"{len(targets)} directories and --run {run!r} name several runs; expected one"
        raise click.UsageError(what, click.get_current_context())
    return combine(read_run(targets, options))


def _write_page(report: "Report", output: str | None, *, quiet: bool) -> None:
    from elastic_report.page import render

    page = render(report)
    if output == STDOUT:
        sys.stdout.write(page)
        return
    path = Path(output) if output is not None else Path(f"{quoted(report.run.run_id)}.html")
    _write(path, page.encode("utf-8", "replace"), "-o")
    echo(report.run.sentence, report.account.sentence, f"report: {path}", err=quiet)


def _write_trace(report: "Report", path: str) -> None:
    from elastic_report.trace import trace

    document: dict[str, Any] = trace(report)
    content = msgspec.json.encode(document)
    if path == STDOUT:
        echo_json(content.decode())
        return
    _write(Path(path), content + b"\n", "--trace")
    echo(f"trace: {path}", err=True)


def _write(path: Path, content: bytes, option: str) -> None:
    try:
        if path.exists() and not path.is_file():  # a device or a pipe is written, and not replaced
            path.write_bytes(content)
        else:
            replace_file(path, content)
    except OSError as err:
        raise ConfigError(
            f"{option} {str(path)!r} can't be written ({err.strerror or err})", hint=f"{option} FILE in another folder"
        ) from err


def quoted(run_id: str) -> str:
    """Return a run id as the name of a file: signs that are special in a path, a shell or a URL are quoted by `%XX`."""
    name = quote(run_id.encode("utf-8", "surrogateescape"), safe="-_.@:+,=")[:_MOST_NAME]
    first = {".": "%2E", "-": "%2D"}.get(name[:1])  # neither a hidden file nor an option
    return f"{first}{name[1:]}" if first else name or "run"


_HELP = """\
Show where the time of a run went: write a page with its result, time ledger, timeline and incidents.

RUN is a run id, a number of 'elastic runs', or a run directory on this machine; without RUN, this user's last run on
this machine. Several directories, or a folder with run directories below it, are those of a run's nodes. With the
--rdzv options, or PET_RDZV_BACKEND in the environment, the run (RUN, or --rdzv-id) is read from its store too, and its
running agents are asked. RUN may be a Slurm job number. The page is one HTML file that needs no network.
"""
_EPILOG = """\b
Examples:
  elastic report                       # the last run: writes its page into this folder
  elastic report bert-7 -o night.html
  elastic report --markdown bert-7     # ten lines for a ticket
  elastic report collected/node-*      # run directories from several nodes
  elastic report --trace bert-7.json --rdzv-backend redis --rdzv-endpoint redis.example:6379 bert-7

Exit codes: 0; 2 usage, or no such run; 3 plugin; 4 the store cannot be reached or read.
"""

command = click.Command(
    "report",
    callback=_report,
    params=[
        click.Argument(["targets"], metavar="[RUN]...", nargs=-1, shell_complete=complete_run),
        *run_params(),
        *store_params(),
        click.Option(
            ["-o", "--output"],
            metavar="FILE",
            type=click.Path(dir_okay=False, allow_dash=True),
            help="Where to write the page; '-' is stdout.  [default: <run id>.html in this folder, unless --trace, "
            "--json or --markdown is given]",
        ),
        click.Option(
            ["--trace"],
            metavar="FILE",
            type=click.Path(dir_okay=False, allow_dash=True),
            help="Write a trace for Perfetto (ui.perfetto.dev) or chrome://tracing; '-' is stdout.",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print all data as JSON on one line."),
        click.Option(["--markdown", "as_markdown"], is_flag=True, help="Print a summary for a ticket."),
    ],
    help=_HELP,
    epilog=_EPILOG,
)
