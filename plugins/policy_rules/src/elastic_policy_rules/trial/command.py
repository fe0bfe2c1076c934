"""Check a restart policy or a rule file, or simulate its decisions."""

import click

from elastic_core.api import ConfigError
from elastic_policy_rules.trial.check import command as check
from elastic_policy_rules.trial.simulate import command as simulate

api_version = 1


class _Policy(click.Group):
    """Runs a subcommand, or lists the subcommands."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command."""
        if args[0] not in self.commands and not ctx.resilient_parsing:
            known = ", ".join(self.commands)
            raise ConfigError(
                f"elastic policy has no command {args[0]!r}; it has {known}", hint="elastic policy --help"
            )
        return super().resolve_command(ctx, args)


command = _Policy(
    "policy",
    commands={"check": check, "simulate": simulate},
    help="Try a restart policy without a job: a rule file (rules.yaml), or an installed policy with --policy.",
    subcommand_metavar="COMMAND",
)
