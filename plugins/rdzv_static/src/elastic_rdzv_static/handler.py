"""The `static` backend: each node has its rank and the address of rank 0 from options; the nodes do not communicate."""

import socket
from collections.abc import Sequence
from typing import ClassVar, Final

from elastic_backend_net.endpoint import Address, resolve
from elastic_core.api import (
    API_VERSION,
    ConfigError,
    OptionSpec,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousSettings,
    WaitBudget,
)
from elastic_core.api.stores import BackendUnavailableError, is_loopback

DEFAULT_PORT = 29500
"""As in torch."""
_LOOPBACK: Final = "127.0.0.1"
_LOOK_UP_S: Final = 5.0


class StaticRendezvous(RendezvousHandler):
    """Forms the same round of `--nnodes` nodes each time, at once, from the node's options.

    The behaviour is that of torch's static backend. The world has `--nnodes` nodes (its maximum), it is never closed,
    no node ever waits, and a node that restarts its workers does so alone. Every node is assumed to have as many
    workers as this one. Two things differ. The worker of rank 0 hosts the workers' store at the endpoint, not its
    agent. The workers of its node reach it by loopback if the endpoint's name resolves to no address of that node.

    Threading: as the base class; nothing blocks except `watch`, and the resolution of a name on node 0.

    Raises:
        ConfigError: this node has no rank, a rank that the world does not have, or the endpoint can't be used.
    """

    api_version: ClassVar[int] = API_VERSION
    options: ClassVar[Sequence[OptionSpec]] = (
        OptionSpec(name="rank", type="int", help="rank of this node if --node-rank is not given"),
    )

    def __init__(self, settings: RendezvousSettings) -> None:
        """Check this node's options."""
        super().__init__(settings)
        self._node_rank = _node_rank(settings)
        self._address, self._port = _endpoint(settings)
        self._token = 0
        self._past = None if self._node_rank == 0 else ""
        """Why the address does not lead to this node, which is node 0; empty: it does. None: not looked up yet."""
        self._told = settings.max_nodes == 1

    def next_rendezvous(self) -> RendezvousInfo:
        """Return this node's place, the same each time, with a token higher than the last one's."""
        self.wait.check()
        if self._past is None:
            self._past = _leads_past(self._address, self.wait)
        self._token += 1
        return RendezvousInfo(
            rank=self._node_rank,
            world_size=self.settings.max_nodes,
            round_token=self._token,
            master_addr=_LOOPBACK if self._past else self._address,
            master_port=self._port,
        )

    def watch(self, timeout_s: float) -> None:
        """Log once where the workers meet, and sleep: no change is ever reported."""
        if not self._told:
            self._told = True
            line = _meeting(self._node_rank, self.settings.max_nodes, self._address, self._port)
            self.services.notice(f"{line}; {self._past}, so its workers connect to {_LOOPBACK}" if self._past else line)
        self.wait.sleep(timeout_s)


def _meeting(node_rank: int, node_count: int, address: str, port: int) -> str:
    """Return where this node's workers meet the others. Agents wait for no other node, so no other line shows it."""
    others = "node 0" if node_rank else "node 1" if node_count == 2 else f"nodes 1 to {node_count - 1}"
    where = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    line = f"static: node {node_rank} of {node_count}; workers meet at {where} and wait there for {others}"
    if address == "localhost" or is_loopback(address):
        line += "; nodes on other hosts can't reach that address. Try: --master-addr with a name or address of node 0"
    return line


def _leads_past(host: str, wait: WaitBudget) -> str:
    """Return why a name or an address does not resolve to this node; empty if it does."""
    try:
        found = resolve(host, 0, wait=wait, timeout_s=_LOOK_UP_S)
    except BackendUnavailableError as error:
        return f"this node {error.what}"
    if any(map(_is_own, found)):
        return ""
    return f"{host!r} leads to {', '.join(address.ip for address in found)}, no address of this node"


def _is_own(address: Address) -> bool:
    with socket.socket(address.family, socket.SOCK_STREAM) as sock:
        try:
            sock.bind(address.sockaddr)
        except OSError:
            return False
    return True


def _node_rank(settings: RendezvousSettings) -> int:
    """Return this node's rank: `--node-rank`, or the option `rank`. Two different values are an error."""
    option = settings.options.get("rank")
    given = {int(rank) for rank in (settings.node_rank, option) if rank is not None}
    highest = settings.max_nodes - 1
    if not given:
        raise ConfigError(
            f"rendezvous backend 'static': no rank is given for this node; expected 0 to {highest}",
            hint="--node-rank N",
        )
    if len(given) > 1:
        raise ConfigError(
            f"--node-rank: {settings.node_rank}, and rank={option} in --rdzv-conf; expected one rank",
            hint="--node-rank alone, a different one on each node",
        )
    rank = given.pop()
    if not 0 <= rank <= highest:
        raise ConfigError(
            f"--node-rank: {rank}; expected 0 to {highest} in a run of {settings.max_nodes} nodes",
            hint="another --node-rank, a different one on each node, or a higher --nnodes",
        )
    return rank


def _endpoint(settings: RendezvousSettings) -> tuple[str, int]:
    """Return host and port of rank 0: the endpoint's, else the master address and port."""
    endpoint = settings.endpoint.strip()
    if not endpoint:
        if not settings.master_addr and settings.max_nodes > 1:
            raise ConfigError(
                f"rendezvous backend 'static': no address is given for node 0 of {settings.max_nodes}",
                hint=f"--master-addr HOST --master-port PORT (default {DEFAULT_PORT}), the same on every node",
            )
        return settings.master_addr or "127.0.0.1", settings.master_port or DEFAULT_PORT
    host, port = _split(endpoint)
    if not host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
        raise ConfigError(
            f"rendezvous endpoint: {endpoint!r}; expected a host and a port from 1 to 65535",
            hint=f"HOST:{DEFAULT_PORT}, the same on every node",
        )
    return host, int(port)


def _split(endpoint: str) -> tuple[str, str]:
    """Return host and port as written; an IPv6 address with a port is in brackets."""
    bracketed = endpoint.startswith("[")
    if endpoint.endswith("]") or (not bracketed and endpoint.count(":") != 1):
        return endpoint.strip("[]"), str(DEFAULT_PORT)
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), port
