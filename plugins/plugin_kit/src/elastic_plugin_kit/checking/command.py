"""Ask an installed plugin for every promise of its interface, on a live server where it has one."""

import json
import os
import posix
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, NoReturn

import click

from elastic_core.api import ConfigError, PluginError
from elastic_core.api.commands import echo, echo_json, run_option

if TYPE_CHECKING:
    from elastic_plugin_kit.checking.session import Check
    from elastic_plugin_kit.checking.subject import Subject

api_version = 1

_HELP: Final = """\
Run the conformance kit against a plugin: NAME is one that is installed, or module:Class.

A rendezvous backend is asked at its live server, in runs that nobody else has; what only the plugin's own tests could
do (pause or empty the server) is skipped, with the reason. Exit code 0: it keeps all that could be asked; 1: it does
not.
"""
_EPILOG: Final = """\b
Examples:
  elastic plugins check redis --rdzv-endpoint localhost:6379
  elastic plugins check my-policy --policy-conf pause=2
  elastic plugins check my_package.hook:MyHook --hook-conf path=/tmp/diary
  elastic plugins check ACME_JOB --variable ACME_JOB=1207 --variable ACME_NODES=4
"""


def _check(
    name: str,
    kind: str | None,
    rdzv_endpoint: str | None,
    rdzv_conf: str | None,
    policy_conf: tuple[str, ...],
    hook_conf: tuple[str, ...],
    most_nodes: int,
    no_budget: bool,
    variable: tuple[str, ...],
    reads_files: bool,
    only: str,
    as_json: bool,
) -> int:
    with no_exit():  # else this command ended where the plugin did, as if all were well
        from elastic_plugin_kit.checking.subject import Subject, find

        conf = _pairs([part for text in (rdzv_conf or "", *policy_conf, *hook_conf) for part in text.split(",")])
        subject = Subject(find(name, kind), endpoint=rdzv_endpoint or "", conf=conf, variables=_pairs(variable))
        subject.reach()
        try:
            from elastic_plugin_kit.checking.session import run_checks
        except ModuleNotFoundError as err:
            if err.name != "pytest":
                raise
            raise ConfigError(
                "the kit runs by pytest, which is not installed", hint="pip install 'pytest>=8'"
            ) from None
        table = _Table(subject.label, shown=not as_json)
        try:
            table.known = _faults_of_loading(subject)
            checks = table.known + run_checks(
                subject,
                only=only,
                most_nodes=most_nodes,
                keeps_budget=not no_budget,
                reads_files=reads_files,
                on_begin=table.begin,
                on_check=table.add,
            )
        finally:
            table.close()
    unasked = table.count - len(checks)
    counts = {outcome: sum(check.outcome == outcome for check in checks) for outcome in ("passed", "failed", "skipped")}
    kept = counts["passed"] > 0 and not counts["failed"]
    if as_json:
        entry = subject.entry
        about = {"plugin": entry.name, "kind": subject.kind, "distribution": entry.distribution}
        rows = [asdict(check) for check in checks]
        echo_json(json.dumps({**about, "version": entry.version, "kept": kept, **counts, "checks": rows}, indent=2))
    else:
        told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count) or "nothing was checked"
        told += f", {unasked} not asked: too many have not ended" if unasked else ""
        asked = "what was asked" if only else "every promise that could be asked"
        verdict = f"keeps {asked}" if kept else "does not keep its promises"
        echo(f"{subject.label} {verdict}: {told}")
    return 0 if kept else 1


@contextmanager
def no_exit() -> Iterator[None]:
    """Have `os._exit` raise where a plugin calls it in this process; in those that it forks it stays what it is."""
    own, real = os.getpid(), os._exit

    def refuse(status: int) -> NoReturn:
        if os.getpid() != own:
            real(status)
        raise AssertionError(f"it called os._exit({status}), which ends an agent without a verdict")

    os._exit = posix._exit = refuse
    try:
        yield
    finally:
        os._exit = posix._exit = real


def _faults_of_loading(subject: "Subject") -> "list[Check]":
    """Return why a run would refuse the plugin, as a check; lines about methods that nothing calls go to stderr."""
    from elastic_plugin_kit.checking.session import Check

    try:
        for line in subject.loaded():
            echo(f"elastic: {line}", err=True)
    except PluginError as err:
        detail = err.what.partition("): ")[2] or err.what
        return [Check(name="a run loads it", promise="Else a run is over here.", outcome="failed", detail=detail)]
    return []


def _pairs(parts: Iterable[str]) -> dict[str, str]:
    pairs = {}
    for part in filter(None, (part.strip() for part in parts)):
        key, sign, text = part.partition("=")
        if not sign:
            raise ConfigError(f"{part!r} is no KEY=VALUE", hint=f"{part}=VALUE")
        pairs[key] = text
    return pairs


class _Table:
    """Prints a line for each check as it ends, past what pytest captures."""

    def __init__(self, label: str, *, shown: bool) -> None:
        self._label = label
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace") if shown else None
        self._width = 0
        self.count = 0
        self.known: list[Check] = []
        """What is known before the kit runs."""

    def begin(self, count: int, width: int) -> None:
        """Say what is to come."""
        self.count = count + len(self.known)
        self._width = max(width, *(len(check.name) for check in self.known), 0)
        self._write(f"{self._label}: {self.count} check{'s' if self.count != 1 else ''}")
        for check in self.known:
            self.add(check)

    def add(self, check: "Check") -> None:
        """Print one."""
        detail = check.detail if check.outcome != "failed" or check.detail else check.promise
        self._write(f"{check.outcome:7}  {check.name:{self._width}}  {detail}".rstrip())

    def _write(self, line: str) -> None:
        if self._out is not None:
            self._out.write("".join(sign if sign.isprintable() else "?" for sign in line) + "\n")
            self._out.flush()

    def close(self) -> None:
        """Let the descriptor go."""
        if self._out is not None:
            self._out.close()


command = click.Command(
    "check",
    callback=_check,
    params=[
        click.Argument(["name"]),
        click.Option(["--kind"], metavar="KIND", help="rendezvous, failure, hook, environment or command."),
        run_option("rdzv_endpoint", help_text="Where the backend's live server is."),
        run_option("rdzv_conf", help_text="Options of the backend, KEY=VALUE,…"),
        run_option("policy_conf", help_text="Options of the policy, KEY=VALUE,…"),
        click.Option(
            ["--hook-conf"],
            metavar="K=V",
            multiple=True,
            help="Options of the hook, KEY=VALUE,…, which a run has behind -p NAME:",
        ),
        click.Option(
            ["--most-nodes"],
            type=click.IntRange(min=1),
            default=1,
            metavar="N",
            help="How many nodes a handler can bring together here; 1 skips the checks of several. A store needs none.",
        ),
        click.Option(
            ["--variable"],
            metavar="NAME=VALUE",
            multiple=True,
            help="A variable where the environment shows; without any, those of this process.",
        ),
        click.Option(["--reads-files"], is_flag=True, help="The environment reads files, by intention."),
        click.Option(["--no-budget"], is_flag=True, help="The policy does not count by --max-restarts, by intention."),
        click.Option(["--only"], metavar="TEXT", default="", help="Run the checks whose names have this in them."),
        click.Option(["--json", "as_json"], is_flag=True, help="Write one JSON object, for programs."),
    ],
    help=_HELP,
    epilog=_EPILOG,
)
