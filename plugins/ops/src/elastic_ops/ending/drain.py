"""Have nodes leave their run, from any host that reaches its store; the others go on."""

import click

from elastic_ops.ending import on_host
from elastic_ops.ending.in_store import StoreEnding
from elastic_ops.ending.options import ending_params
from elastic_ops.run_target import complete_run, store_asked

api_version = 1


def _drain(
    nodes: tuple[str, ...],
    run: str | None,
    deadline: float | None,
    timeout: float,
    user: str | None,
    **options: str | None,
) -> int:
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


_HELP = """\
Have nodes leave their run, as SIGTERM to their agents does: workers save, the agents end with 143, the others go on.

NODE is a node's id as `elastic status` shows it; its host's name or address will do where only one node has it. The run
is that of the --rdzv options, or one on this host.
"""
_EPILOG = """\b
Examples:
  elastic drain node3 --rdzv-backend redis --rdzv-endpoint redis.example:6379 --rdzv-id bert-7
  elastic drain node3 node4 --run bert-7 --rdzv-backend c10d --rdzv-endpoint node0:29400 --deadline 2m
  elastic drain "$(hostname)"

Exit codes: 0 they have left; 1 not in time, the order stands; 2 usage, or there is no such run or node; 3 plugin; 4 the
store can't be reached, or refuses us.
"""

command = click.Command(
    "drain",
    callback=_drain,
    params=[
        click.Argument(["nodes"], metavar="NODE...", nargs=-1, required=True),
        click.Option(["--run"], metavar="RUN", shell_complete=complete_run, help="Which run, by id or directory."),
        *ending_params(),
    ],
    help=_HELP,
    epilog=_EPILOG,
)
