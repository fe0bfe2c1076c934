"""`elastic policy`: try a restart policy out before a run depends on it."""

from elastic_core.cli.command_group import CommandGroup


class _Policy(CommandGroup):
    """Does what a subcommand says."""

    words = "policy "
    commands_of = {  # noqa: RUF012  # a ClassVar in the base
        "check": ("elastic_core.cli.policy_check", "Say what is wrong with a rule file, or with a policy's options."),
        "simulate": ("elastic_core.cli.policy_simulate", "Say what a policy would decide about failures, and why."),
    }


command = _Policy(
    "policy",
    help="Try a restart policy out, with no job: a rule file (rules.yaml), or any installed one with --policy.",
    subcommand_metavar="COMMAND",
)
