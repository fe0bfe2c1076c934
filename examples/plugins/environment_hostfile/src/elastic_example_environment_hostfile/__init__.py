"""An environment for a file of hosts, one a line: pdsh, or a loop of ssh, starts `elastic run` on each of them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from elastic_core.api import ConfigError, Environment, Proposal

FILE, HOST, PORT = "HOSTFILE", "HOSTFILE_HOST", "HOSTFILE_PORT"
DEFAULT_PORT = "29500"
MOST_BYTES = 1 << 20


class Hostfile(Environment):
    """Proposes as many nodes as the file has lines, this host's rank among them, and the first host as endpoint.

    A line is a host, optionally with `slots=8`, its number of workers, as for DeepSpeed and Open MPI; `#` begins a
    comment. This host is the line with its name, long or short, or with the value of HOSTFILE_HOST.
    """

    api_version: ClassVar[int] = 1
    title: ClassVar[str] = "Hostfile"

    def propose(self, given: Mapping[str, str]) -> Sequence[Proposal]:
        """Return the proposals for a run on all hosts of the file."""
        path = self.variables[FILE]
        hosts = _read(path)
        names = list(hosts)
        here = self._here(names, path)
        place = str(names.index(here))
        many = f"{path!r} has {len(names)} hosts, and a run with another number waits for nodes, or leaves some out"
        mine = f"this host is line {place} of {path!r}, counted from 0. Try: no --node-rank"
        proposals = [
            Proposal(option="nnodes", value=str(len(names)), reason="hosts in HOSTFILE", contradiction=many),
            Proposal(option="node_id", value=here, reason=f"{HOST if self.variables.get(HOST) else 'host name'}"),
        ]
        if len(names) > 1:
            proposals.append(
                Proposal(option="node_rank", value=place, reason="line in HOSTFILE", contradiction=mine, must=True)
            )
        if len(names) > 1 and given.get("rdzv_backend", "static") == "static":  # other backends have other endpoints
            first = f"[{names[0]}]" if ":" in names[0] else names[0]
            port = self.variables.get(PORT) or DEFAULT_PORT
            proposals += [
                Proposal(option="rdzv_backend", value="static", reason="HOSTFILE"),
                Proposal(option="rdzv_endpoint", value=f"{first}:{port}", reason="first of HOSTFILE"),
            ]
            if "nproc_per_node" not in given and len(set(hosts.values())) > 1:
                raise ConfigError(f"the hosts in {path!r} have different slots", hint="--nproc-per-node N, for all")
        if hosts[here]:
            proposals.append(Proposal(option="nproc_per_node", value=hosts[here], reason="slots in HOSTFILE"))
        return proposals

    def _here(self, names: Sequence[str], path: str) -> str:
        """Return the line that is this host."""
        named = self.variables.get(HOST) or os.uname().nodename
        for name in names:
            if named in {name, name.partition(".")[0]} or named.partition(".")[0] == name:
                return name
        raise ConfigError(f"{path!r} has no host {named!r}, which this is", hint=f"{HOST}=NAME, as the file has it")


def _read(path: str) -> dict[str, str]:
    """Return the hosts of a file in order, each with its slots as text; an empty text means no slots."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            lines = [line.partition("#")[0].split() for line in file.read(MOST_BYTES).splitlines()]
    except (OSError, ValueError) as err:
        why = err.strerror if isinstance(err, OSError) else "not a text"
        raise ConfigError(f"{FILE}={path!r} can't be read: {why}", hint=f"{FILE}=PATH, which this host sees") from err
    hosts: dict[str, str] = {}
    for host, *more in filter(None, lines):
        known = dict(part.partition("=")[::2] for part in more)
        slots = known.get("slots", "")
        if slots and not (slots.isascii() and slots.isdecimal()):
            raise ConfigError(f"{path!r} gives {host!r} slots={slots!r}, which is no number", hint="slots=8")
        if host in hosts:
            raise ConfigError(f"{path!r} has {host!r} twice; an agent is started once on each host", hint="slots=N")
        hosts[host] = slots
    if not hosts:
        raise ConfigError(f"{path!r} has no hosts", hint="one a line")
    return hosts
