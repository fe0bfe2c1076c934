"""Remove nodes from their run, from any host that reaches its store; the other nodes continue."""

import os
from collections.abc import Mapping

import click

from elastic_core.api import ConfigError
from elastic_ops.ending import on_host
from elastic_ops.ending.in_store import StoreEnding
from elastic_ops.ending.options import ending_params
from elastic_ops.jobs import options_of_job
from elastic_ops.run_target import complete_run, names_store, run_of, run_params, store_asked, typed_options

api_version = 1


def _drain(
    words: tuple[str, ...],
    run: str | None,
    deadline: float | None,
    timeout: float,
    user: str | None,
    **options: str | None,
) -> int:
    run, nodes = _read_words(words, run_of(None, run, options), options)
    choice = store_asked(options, run)
    if choice is None:
        on_host.drain(run, nodes, deadline_s=deadline, timeout_s=timeout)
        return 0
    ending = StoreEnding(choice, deadline_s=deadline, timeout_s=timeout, user=user)
    try:
        ending.drain(nodes)
    finally:
        ending.close()
    return 0


def _read_words(
    words: tuple[str, ...], run: str | None, options: Mapping[str, str | None]
) -> tuple[str | None, tuple[str, ...]]:
    """Return the run and the nodes: the first of several words is the run if no option names it.

    If it names a node of this host and no run here, it is a node.

    Raises:
        ConfigError: the run is missing, or the first word names a run and a node.
    """
    first, others = words[0], words[1:]
    if run is not None or options.get("rdzv_id") is not None:
        return run, words
    typed = bool(typed_options(options))
    if others and options_of_job(first, typed_options(options)):
        return first, others
    remembered = os.environ.get("PET_RDZV_ID")
    if remembered and names_store(options):
        return (first, others) if others and first == remembered else (None, words)
    if not others:
        if typed:
            raise ConfigError(f"drain {first!r}: expected RUN and NODE", hint=f"elastic drain RUN {first}")
        return None, words
    is_run, is_node = on_host.found_names(first)
    if typed or not (is_node or is_run):
        return (first, others) if names_store(options) else (None, words)
    if is_run and is_node:
        what = f"drain {first!r}: a run and a node of this host have that name"
        raise ConfigError(what, hint=f"elastic drain --run RUN {' '.join(words)}")
    return (first, others) if is_run else (None, words)


_HELP = """\
Remove nodes from their run, as SIGTERM to their agents does: workers save, the agents exit with 143, and the other
nodes continue.

NODE is a node's id as `elastic status` shows it; its host's name or address will do where only one node has it. RUN is
the id of a run in the store that the --rdzv options name, or the number of a job of Slurm, or the id of a run on this
host, where RUN may be left out.
"""
_EPILOG = """\b
Examples:
  elastic drain --rdzv-backend redis --rdzv-endpoint redis.example:6379 bert-7 node3
  elastic drain --rdzv-backend c10d --rdzv-endpoint node0:29400 --deadline 2m bert-7 node3 node4
  elastic drain "$(hostname)"

Exit codes: 0 the nodes have left; 1 they did not leave in time, and still drain; 2 usage, or no such run or node; 3
plugin; 4 the store cannot be reached, or rejects access.
"""

command = click.Command(
    "drain",
    callback=_drain,
    params=[
        click.Argument(["words"], metavar="[RUN] NODE...", nargs=-1, required=True, shell_complete=complete_run),
        *run_params(),
        *ending_params(),
    ],
    help=_HELP,
    epilog=_EPILOG,
)
