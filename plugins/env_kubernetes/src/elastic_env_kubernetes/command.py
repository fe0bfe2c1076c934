"""Write manifests of runs for Kubernetes, apply them, and show their pods."""

import importlib
from typing import Any, Final

import click

from elastic_core.api import PluginError

api_version = 1

_COMMANDS: Final = {
    "render": ("elastic_env_kubernetes.render_command", "Write the manifest of a run."),
    "apply": ("elastic_env_kubernetes.cluster.apply_command", "Send a manifest to the API server."),
    "status": ("elastic_env_kubernetes.cluster.status_command", "Show the state of a run and its pods."),
    "logs": ("elastic_env_kubernetes.cluster.logs_command", "Show the logs of a run's pods."),
    "delete": ("elastic_env_kubernetes.cluster.delete_command", "Delete a run, its pods and its Services."),
}
"""Module (its attribute `command` is the click command) and help line of each."""
_EXTRA: Final = ("lightkube", "httpx2", "yaml")
"""The modules of the extra `cli`, which a pod does not need."""
_HELP: Final = """\
Write the manifest of a run for Kubernetes, apply it, show its pods and their logs, delete it.

\b
  elastic k8s render bert-7 --image registry.example/train:1 --nnodes 4 --gpus 8 -- train.py --epochs 10
"""


class _Group(click.Group):
    """Commands that are imported when they are used, and need the extra."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of typical use."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command.

        Raises:
            PluginError: the extra is not installed.
        """
        if cmd_name not in _COMMANDS:
            return None
        try:
            command: Any = importlib.import_module(_COMMANDS[cmd_name][0]).command
        except ModuleNotFoundError as err:
            if (err.name or "").partition(".")[0] not in _EXTRA:
                raise
            hint = "pip install -r sets/kubernetes.txt, in a checkout of elastic-core"
            raise PluginError(f"elastic k8s needs {err.name}, of the extra 'cli'", hint=hint) from err
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])


command = _Group("k8s", help=_HELP)
