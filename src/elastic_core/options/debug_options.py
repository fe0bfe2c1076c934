"""The options for debugging, and those that are torchrun's alone."""

from typing import Final

from elastic_core.option_spec import RunOption
from elastic_core.options.choices import Choices, Draft, Section, section
from elastic_core.options.readers import hooks_off_and_named, integer

DEBUGGING: Final = section(
    Section.DEBUGGING,
    RunOption(
        name="dry_run",
        type="bool",
        help="Show the resolved configuration with the origin of each value, and each worker's command and "
        "environment; start nothing.",
        env="",
    ),
    RunOption(
        name="debug_rank",
        type="int",
        metavar="N",
        help="Give the terminal to this local rank, so that pdb works in it; time limits are off.",
        least=0,
        field="workers.debug_rank",
    ),
    RunOption(
        name="no_worker_hooks",
        type="bool",
        help="Don't let our hook in the worker's interpreter record uncaught exceptions.",
        field="workers.worker_hooks",
    ),
    RunOption(
        name="plugin",
        metavar="no:NAME",
        help="Leave out the installed agent hook NAME. Also NAME:K=V, an option of a hook (fail_closed=true of a "
        "health gate: it refuses where it is broken), and module:Class, one that need not be installed (repeatable).",
        many=True,
        short="p",
        env="",
        field="disabled_plugins",
    ),
)

COMPATIBILITY: Final = section(
    Section.COMPATIBILITY,
    RunOption(
        name="monitor_interval",
        type="duration",
        metavar="SECONDS",
        help="Matters only for rendezvous handlers without push, which are asked that often whether nodes wait; "
        "workers are never polled, their end is known at once.",
        default=0.1,
        above=0,
        torch=True,
        field="nodes.monitor_interval_s",
        read=Choices.value,
    ),
    RunOption(
        name="start_method",
        metavar="METHOD",
        help="How processes begin that run a function, as with --run-path: spawn, fork or forkserver.",
        default="spawn",
        choices=("spawn", "fork", "forkserver"),
        torch=True,
    ),
    RunOption(
        name="run_path",
        type="bool",
        help="Run the script as a function (by runpy), in a process begun as --start-method says.",
        torch=True,
    ),
    RunOption(
        name="print_completion",
        metavar="SHELL",
        help="Print the completion script of a shell, as elastic completion does, and start nothing.",
        choices=("bash", "zsh", "fish", "tcsh"),
        env="",
        torch=True,
    ),
)


def take_debugging(draft: Draft, nproc: int) -> None:
    """Settle what helps to look into a run."""
    draft.settle(COMPATIBILITY)
    choices = draft.choices
    rank = choices.text("debug_rank")
    draft.take("debug_rank", None if rank is None else integer(choices, "debug_rank", most=nproc - 1))
    draft.take("no_worker_hooks", not choices.flag("no_worker_hooks"))
    off, named = hooks_off_and_named(choices)
    draft.take("plugin", off)
    draft.set("hooks", named, choices.origin("plugin"))
