"""A rendezvous backend for schedulers that tell each node its place by environment variables.

Kubeflow's PyTorchJob, Slurm (`SLURM_NODEID`, `SLURM_NNODES`) and many cluster scripts do.
"""

import os
from collections.abc import Sequence
from typing import ClassVar

from elastic_core.api import ConfigError, OptionSpec, RendezvousHandler, RendezvousInfo, RendezvousSettings


class EnvironmentRendezvous(RendezvousHandler):
    """Forms the round that the environment describes; the same one after each failure of this node."""

    api_version: ClassVar[int] = 1
    options: ClassVar[Sequence[OptionSpec]] = (
        OptionSpec(name="rank_var", default="NODE_RANK", help="variable with this node's rank"),
        OptionSpec(name="nodes_var", default="NNODES", help="variable with the number of nodes"),
        OptionSpec(name="addr_var", default="MASTER_ADDR", help="variable with the address of node 0"),
        OptionSpec(name="port_var", default="MASTER_PORT", help="variable with a free port on node 0"),
    )

    def __init__(self, settings: RendezvousSettings) -> None:
        """Read the environment once: every mistake in it ends the run before anything starts."""
        super().__init__(settings)
        self._nodes = self._number("nodes_var", least=settings.min_nodes, most=settings.max_nodes)
        self._rank = self._number("rank_var", least=0, most=self._nodes - 1)
        self._address = self._text("addr_var")
        self._port = self._number("port_var", least=1, most=65535)
        self._token = 0

    def next_rendezvous(self) -> RendezvousInfo:
        """Return this node's place, at once."""
        self.wait.check()
        self._token += 1
        return RendezvousInfo(
            rank=self._rank,
            world_size=self._nodes,
            round_token=self._token,
            master_addr=self._address,
            master_port=self._port,
        )

    def watch(self, timeout_s: float) -> None:
        """Sleep: an environment never changes."""
        self.wait.sleep(timeout_s)

    def _text(self, option: str) -> str:
        variable = self.settings.option(option, str)
        value = os.environ.get(variable, "")
        if not value:
            raise ConfigError(
                f"rendezvous backend 'env' needs the variable {variable}, which is not set",
                hint=f"export {variable}=…, or --rdzv-conf {option}=NAME for a variable of another name",
            )
        return value

    def _number(self, option: str, *, least: int, most: int) -> int:
        text = self._text(option)
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
            variable = self.settings.option(option, str)
            raise ConfigError(
                f"rendezvous backend 'env': {variable}={text!r} is not a whole number from {least} to {most}",
                hint="the same --nnodes on every node" if option == "nodes_var" else f"another {variable}",
            )
        return int(text)
