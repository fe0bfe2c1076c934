"""Run the conformance kit against an installed plugin, with a live server if it has one."""

import os
from typing import Final

import click

from elastic_core.api.commands import run_option

api_version = 1

_HELP: Final = """\
Run the conformance kit against a plugin. NAME is the name of an installed plugin, or module:Class.

The command calls pytest with the suite of the plugin's interface; options after -- are pytest's. A rendezvous backend
is checked against its live server, in runs of the kit. Checks that only the plugin's own tests can do (pause or empty
the server) are skipped, with the reason. Exit codes: 0 all checks passed; 1 a check failed.
"""
_EPILOG: Final = """\b
Examples:
  elastic plugins check redis --rdzv-endpoint localhost:6379
  elastic plugins check my-policy --policy-conf pause=2
  elastic plugins check my_package.hook:MyHook --hook-conf path=/tmp/diary
  elastic plugins check ACME_JOB --variable ACME_JOB=1207 --variable ACME_NODES=4
  elastic plugins check my-policy -- -k history --pdb --junitxml=check.xml
"""
_ARGUMENTS: Final = (
    *("-c", "/dev/null", "--rootdir=.", "--noconftest", "-p", "no:cacheprovider"),
    *("-o", "tmp_path_retention_policy=failed", "--no-header", "-v", "-rfEs"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # the package of this command; its kits are rewritten
    *("--pyargs", "elastic_plugin_kit.suites"),
)
"""pytest's of each call: the settings of the folder that it is called in don't count, and each check has a line."""
_CODES: Final = {"OK": 0, "USAGE_ERROR": 2, "INTERRUPTED": 130}
"""The exit code for pytest's; 1 for each other one."""


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
    arguments: tuple[str, ...],
) -> int:
    import pytest

    from elastic_plugin_kit.checking.pytest_plugin import Checks
    from elastic_plugin_kit.checking.subject import Subject, find, pairs

    if os.environ.get("PET_RDZV_BACKEND") == name:  # variables of another backend are not meant for this one
        rdzv_endpoint = rdzv_endpoint or os.environ.get("PET_RDZV_ENDPOINT")
        rdzv_conf = rdzv_conf or os.environ.get("PET_RDZV_CONF")
    conf = pairs([part for text in (rdzv_conf or "", *policy_conf, *hook_conf) for part in text.split(",")])
    subject = Subject(find(name, kind), endpoint=rdzv_endpoint or "", conf=conf, variables=pairs(variable))
    subject.reach()
    declared = {"most_nodes": most_nodes, "keeps_budget": not no_budget, "reads_files": reads_files}
    code = pytest.main([*_ARGUMENTS, *arguments], plugins=[Checks(subject, declared)])
    return _CODES.get(pytest.ExitCode(code).name, 1)


command = click.Command(
    "check",
    callback=_check,
    params=[
        click.Argument(["name"]),
        click.Argument(["arguments"], metavar="[-- PYTEST OPTIONS]", nargs=-1, type=click.UNPROCESSED),
        click.Option(["--kind"], metavar="KIND", help="rendezvous, failure, hook, environment or command."),
        run_option(
            "rdzv_endpoint",
            help_text="Address of the backend's live server.  [PET_RDZV_ENDPOINT, if PET_RDZV_BACKEND is NAME]",
        ),
        run_option("rdzv_conf", help_text="Options of the backend.  [PET_RDZV_CONF, likewise]"),
        run_option("policy_conf", help_text="Options of the policy."),
        click.Option(
            ["--hook-conf"],
            metavar="K=V",
            multiple=True,
            help="Options of the hook, as after -p NAME: of a run.",
        ),
        click.Option(
            ["--most-nodes"],
            type=click.IntRange(min=1),
            default=1,
            metavar="N",
            help="Number of nodes that a handler can connect here; 1 skips checks with several. A store needs none.",
        ),
        click.Option(
            ["--variable"],
            metavar="NAME=VALUE",
            multiple=True,
            help="A variable that shows the environment; default: those of this process.",
        ),
        click.Option(["--reads-files"], is_flag=True, help="The environment reads files intentionally."),
        click.Option(["--no-budget"], is_flag=True, help="The policy intentionally does not count by --max-restarts."),
    ],
    help=_HELP,
    epilog=_EPILOG,
)
