"""The options for debugging, and those that only exist for compatibility with torchrun."""

from typing import Final

from elastic_core.option_spec import RunOption
from elastic_core.options.choices import Choices, Draft, Section, section
from elastic_core.options.readers import hooks_off_and_named, integer

DEBUGGING: Final = section(
    Section.DEBUGGING,
    RunOption(
        name="dry_run",
        type="bool",
        help="Start nothing: show the settings that differ from the defaults, with the origin of each, and each "
        "worker's command and environment.",
        env="",
    ),
    RunOption(name="verbose", type="bool", help="With --dry-run: show all settings.", short="v", env=""),
    RunOption(
        name="debug_rank",
        type="int",
        help="Connect the terminal to this local rank, so that pdb works there. Time limits are off.",
        least=0,
        field="workers.debug_rank",
    ),
    RunOption(
        name="no_worker_hooks",
        type="bool",
        help="Do not record uncaught exceptions inside the workers' interpreters.",
        field="workers.worker_hooks",
    ),
    RunOption(
        name="plugin",
        metavar="no:NAME",
        help="no:NAME disables the installed agent hook NAME. NAME:K=V sets an option of a hook, such as "
        "fail_closed=true of a health gate, which then rejects the start if the gate itself fails. module:Class adds "
        "a hook that is not installed.",
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
        help="Poll interval for rendezvous handlers that do not notify the agent of waiting nodes. Workers are not "
        "polled: the agent notices their exit at once.",
        default=0.1,
        above=0,
        torch=True,
        field="nodes.monitor_interval_s",
        read=Choices.value,
    ),
    RunOption(
        name="start_method",
        metavar="METHOD",
        help="How processes start that run a function, such as with --run-path: spawn, fork or forkserver.",
        default="spawn",
        choices=("spawn", "fork", "forkserver"),
        torch=True,
    ),
    RunOption(
        name="run_path",
        type="bool",
        help="Run SCRIPT as a function (by runpy), in a process started by --start-method.",
        torch=True,
    ),
    RunOption(
        name="print_completion",
        metavar="SHELL",
        help="Print the completion script of a shell, as 'elastic completion' does, and exit.",
        choices=("bash", "zsh", "fish", "tcsh"),
        env="",
        torch=True,
    ),
)


def take_debugging(draft: Draft, nproc: int) -> None:
    """Set the fields for debugging."""
    draft.settle(COMPATIBILITY)
    choices = draft.choices
    rank = choices.text("debug_rank")
    draft.take("debug_rank", None if rank is None else integer(choices, "debug_rank", most=nproc - 1))
    draft.take("no_worker_hooks", not choices.flag("no_worker_hooks"))
    off, named = hooks_off_and_named(choices)
    draft.take("plugin", off)
    draft.set("hooks", named, choices.origin("plugin"))
