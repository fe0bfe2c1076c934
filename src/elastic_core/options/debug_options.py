"""The options for debugging, and those that are torchrun's alone."""

from functools import partial
from typing import Final

from elastic_core.options.option import Draft, OptionRow, Section, row
from elastic_core.options.values import hooks_off_and_named, integer, seconds

DEBUGGING: Final[tuple[OptionRow, ...]] = (
    row(
        Section.DEBUGGING,
        "dry-run",
        None,
        "Show the resolved configuration with the origin of each value, and each worker's command and environment; "
        "start nothing.",
        env=False,
    ),
    row(
        Section.DEBUGGING,
        "debug-rank",
        "N",
        "Give the terminal to this local rank, so that pdb works in it; time limits are off.",
        field="workers.debug_rank",
    ),
    row(
        Section.DEBUGGING,
        "no-worker-hooks",
        None,
        "Don't let our hook in the worker's interpreter record uncaught exceptions.",
        field="workers.worker_hooks",
    ),
    row(
        Section.DEBUGGING,
        "plugin",
        "no:NAME",
        "Leave out the installed agent hook NAME. Also NAME:K=V, an option of a hook (fail_closed=true of a health "
        "gate: it refuses where it is broken), and module:Class, one that need not be installed (repeatable).",
        short="p",
        many=True,
        env=False,
        field="disabled_plugins",
    ),
)

COMPATIBILITY: Final[tuple[OptionRow, ...]] = (
    row(
        Section.COMPATIBILITY,
        "monitor-interval",
        "SECONDS",
        "Matters only for rendezvous handlers without push, which are asked that often whether nodes wait; workers are "
        "never polled, their end is known at once.",
        default="0.1",
        torch=True,
        field="nodes.monitor_interval_s",
        read=partial(seconds, above_zero=True),
    ),
    row(
        Section.COMPATIBILITY,
        "start-method",
        "METHOD",
        "How processes begin that run a function, as with --run-path: spawn, fork or forkserver.",
        default="spawn",
        torch=True,
        choices=("spawn", "fork", "forkserver"),
    ),
    row(
        Section.COMPATIBILITY,
        "run-path",
        None,
        "Run the script as a function (by runpy), in a process begun as --start-method says.",
        torch=True,
    ),
    row(
        Section.COMPATIBILITY,
        "print-completion",
        "SHELL",
        "Print the completion script of a shell, as elastic completion does, and start nothing.",
        torch=True,
        env=False,
        choices=("bash", "zsh", "fish", "tcsh"),
    ),
)


def take_debugging(draft: Draft, nproc: int) -> None:
    """Settle what helps to look into a run."""
    draft.settle(COMPATIBILITY)
    choices = draft.choices
    rank = choices.text("debug_rank")
    draft.take("debug_rank", None if rank is None else integer(choices, "debug_rank", at_least=0, at_most=nproc - 1))
    draft.take("no_worker_hooks", not choices.flag("no_worker_hooks"))
    off, named = hooks_off_and_named(choices)
    draft.take("plugin", off)
    draft.set("hooks", named, choices.origin("plugin"))
