"""Stop a run on all its nodes, from any host that reaches its store."""

import click

from elastic_ops.ending import on_host
from elastic_ops.ending.in_store import StoreEnding
from elastic_ops.ending.options import ending_params
from elastic_ops.run_target import complete_run, run_of, run_params, store_asked

api_version = 1


def _stop(
    target: str | None,
    run: str | None,
    deadline: float | None,
    timeout: float,
    user: str | None,
    **options: str | None,
) -> int:
    target = run_of(target, run, options)
    choice = store_asked(options, target)
    if choice is None:
        on_host.stop(target, deadline_s=deadline, timeout_s=timeout)
        return 0
    ending = StoreEnding(choice, deadline_s=deadline, timeout_s=timeout, user=user)
    try:
        ending.stop()
    finally:
        ending.close()
    return 0


_HELP = """\
Stop a run on all its nodes, as SIGTERM to all its agents does: workers save, and agents exit with 143.

RUN is the id of a run in the store that the --rdzv options name, the id of a run with all nodes on this host, or a
Slurm job number. Nodes that join later also get the result. A second call waits for the same stop.
"""
_EPILOG = """\b
Examples:
  elastic stop bert-7
  elastic stop --rdzv-backend redis --rdzv-endpoint redis.example:6379 bert-7
  elastic stop --rdzv-backend c10d --rdzv-endpoint node0:29400 --deadline 10 bert-7

Exit codes: 0 the run has ended; 1 it did not end in time, and still stops; 2 usage, or no such run; 3 plugin; 4 the
store cannot be reached, or rejects access.
"""

command = click.Command(
    "stop",
    callback=_stop,
    params=[
        click.Argument(["target"], metavar="[RUN]", required=False, shell_complete=complete_run),
        *run_params(),
        *ending_params(),
    ],
    help=_HELP,
    epilog=_EPILOG,
)
