"""The environment of a pod of an Indexed Job or a JobSet: options of a run from its variables."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

from elastic_core.api import ConfigError, Environment, Proposal, duration_s
from elastic_env_kubernetes.variables import (
    FIRST_POD,
    GPUS,
    GRACE_PERIOD,
    INDEX,
    JOB_UID,
    MARGIN_S,
    NNODES,
    POD_IP,
    POD_NAME,
    PORT,
    RUN,
    SPARES,
)

_NUMBER: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_NNODES: Final = re.compile(r"([0-9]{1,9})(?::([0-9]{1,9}))?", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}", re.ASCII)
"""Forms that Kubernetes allows for an object's name, a host with its port, and an address."""
_UID_SHOWN: Final = 8
"""Characters of the uid in a run id: two Jobs of one name, as in two namespaces, must not share a store."""
_LEAST_GRACE_S: Final = 1
_CONNECT_S: Final = "600"
"""How long pods wait for pod 0 and its store: as long as for each other, which is `--join-timeout`'s default."""
_SHOWN: Final = 40
"""Characters of a malformed value in its error."""


class _Nodes(NamedTuple):
    """The maximum of nodes of a run, as text and number, and its source."""

    text: str
    most: int
    source: str


class Kubernetes(Environment):
    """A pod of an Indexed Job or a JobSet."""

    api_version: ClassVar[int] = 1
    title: ClassVar[str] = "Kubernetes"

    def propose(self, given: Mapping[str, str]) -> Sequence[Proposal]:
        """Return the proposals from the pod's variables; those for several nodes only if there are several."""
        index = self._number(INDEX)
        if index is None:
            raise _odd(INDEX, self.variables[INDEX][:_SHOWN], "a pod's index", f"--environment none, or unset {INDEX}")
        notices: list[str] = []
        proposals = [*self._node(), *self._stops(given, notices)]
        nodes = self._nodes(given, index)
        if nodes is None:
            if not given.get("standalone") and "nnodes" not in given:
                notices.append(
                    f"pod {index} trains alone: no variable says how many nodes the run has. Try: --nnodes N, or "
                    f"{NNODES} in the manifest, as elastic k8s render writes it"
                )
        elif not given.get("standalone"):
            proposals += self._several(given, nodes, index, notices)
        self.notices = notices
        return proposals

    # --- how many, and which

    def _nodes(self, given: Mapping[str, str], index: int) -> _Nodes | None:
        """Return the number of nodes. `None` if it is not known, or has a form that is not known here."""
        text, spares = self.variables.get(NNODES, "").strip(), self._number(SPARES) or 0
        most = _most(text)
        if text and not most:
            raise _odd(NNODES, text[:_SHOWN], "N or MIN:MAX", f"{NNODES}=4, or 2:8")
        if text and index >= most + spares:
            raise ConfigError(
                f"this is pod {index} ({INDEX}), and the manifest's run has {most + spares} ({NNODES}={text}"
                f"{f', {SPARES}={spares}' if spares else ''})",
                hint=f"as many completions as nodes and spares, or {SPARES} for what is beyond",
            )
        if "nnodes" in given:
            most = _most(given["nnodes"])
            return _Nodes(given["nnodes"], most, "--nnodes") if most else None  # else it is refused by its reader
        return _Nodes(text, most, NNODES) if text else None

    def _several(self, given: Mapping[str, str], nodes: _Nodes, index: int, notices: list[str]) -> Iterator[Proposal]:
        stated = self.variables.get(NNODES, "").strip()
        if stated:
            yield Proposal(
                option="nnodes",
                value=stated,
                reason=NNODES,
                contradiction=f"nnodes is {nodes.text!r}, and the manifest says {stated} ({NNODES}). Try: no --nnodes",
            )
        if nodes.most == 1:
            return
        if index < nodes.most:
            yield Proposal(
                option="node_rank",
                value=str(index),
                reason=INDEX,
                contradiction=f"node rank {given.get('node_rank')!r} in pod {index} ({INDEX}). Try: no --node-rank",
            )
        yield from self._meeting(given, index, notices)

    # --- where they meet

    def _meeting(self, given: Mapping[str, str], index: int, notices: list[str]) -> Iterator[Proposal]:
        name = self._job_name(index)
        run = self._text(RUN) or name
        uid = self._text(JOB_UID)
        parts = {RUN if self._text(RUN) else "HOSTNAME": run, JOB_UID: uid[:_UID_SHOWN]}
        known = {variable: text for variable, text in parts.items() if text}
        if known:
            yield Proposal(option="rdzv_id", value="-".join(known.values()), reason=" and ".join(known))
        if given.get("rdzv_backend", "" if "master_addr" in given else "c10d") != "c10d":
            return  # a TrainJob of Kubeflow's says where node 0 is, for torch's own 'static'
        yield Proposal(option="rdzv_backend", value="c10d", reason="pod 0 hosts the store: no other was named")
        if "rdzv_endpoint" not in given:  # known here: pod 0's name may not lead to pod 0 yet when that begins
            yield Proposal(option="rdzv_conf", value=f"is_host={str(index == 0).lower()}", reason=INDEX)
            yield Proposal(
                option="connect_timeout", value=_CONNECT_S, reason="pod 0 may come late: its image is pulled"
            )
        first = self._text(FIRST_POD)
        if first:
            yield Proposal(option="rdzv_endpoint", value=first, reason=FIRST_POD)
        elif name:
            endpoint = f"{name}-0.{name}:{PORT}"
            yield Proposal(option="rdzv_endpoint", value=endpoint, reason="HOSTNAME, and a Service with the Job's name")
        elif "rdzv_endpoint" not in given:
            notices.append(f"no variable says where pod 0 is. Try: {FIRST_POD} in the manifest, or --rdzv-endpoint")

    def _job_name(self, index: int) -> str:
        """Return the name of the Job, whose pods' host names end with their index; empty if they do not."""
        name, dash, last = self._text("HOSTNAME").rpartition("-")
        return name if dash and last == str(index) else ""

    # --- this node

    def _node(self) -> Iterator[Proposal]:
        for variable in (POD_NAME, "HOSTNAME"):
            if name := self._text(variable):
                yield Proposal(option="node_id", value=name, reason=variable)
                break
        if address := self._text(POD_IP):
            yield Proposal(option="local_addr", value=address, reason=POD_IP)
        if gpus := self._number(GPUS):
            yield Proposal(option="nproc_per_node", value=str(gpus), reason=GPUS)

    def _stops(self, given: Mapping[str, str], notices: list[str]) -> Iterator[Proposal]:
        """Propose a grace period of workers that ends before the pod's, with time to save."""
        grace_s = self._number(GRACE_PERIOD)
        if grace_s is None:
            return
        room_s = grace_s - MARGIN_S
        save_s = duration_s(self.variables.get("PET_SAVE_TIMEOUT") or given.get("save_timeout", ""))
        # Without a time to save of its own, a stop that is held takes the grace period twice.
        fitting_s = room_s - save_s if save_s is not None else room_s / 2
        yield Proposal(option="shutdown_timeout", value=f"{max(fitting_s, _LEAST_GRACE_S):g}", reason=GRACE_PERIOD)
        stop_s = duration_s(given.get("shutdown_timeout", "")) or max(fitting_s, _LEAST_GRACE_S)
        needed_s = stop_s + (stop_s if save_s is None else save_s) + MARGIN_S
        if needed_s > grace_s:
            notices.append(
                f"a stop may take {needed_s:g} s, and the pod is killed after {grace_s} s ({GRACE_PERIOD}). Try: "
                f"terminationGracePeriodSeconds {needed_s:g}, or a shorter --shutdown-timeout or --save-timeout"
            )

    def _text(self, variable: str) -> str:
        """Return a variable's name, address or uid; empty if it is not set.

        Raises:
            ConfigError: it has another form.
        """
        text = self.variables.get(variable, "").strip()
        if text and not _NAME.fullmatch(text):
            raise _odd(variable, text[:_SHOWN], "letters, digits, dashes and dots", f"unset {variable}")
        return text

    def _number(self, variable: str) -> int | None:
        """Return a variable's number. `None` if it is not set, or if `INDEX` is not a number.

        Raises:
            ConfigError: it is not a number.
        """
        text = self.variables.get(variable, "").strip()
        if _NUMBER.fullmatch(text):
            return int(text)
        if text and variable != INDEX:
            raise _odd(variable, text[:_SHOWN], "a number", "the manifest of elastic k8s render")
        return None


def _most(text: str) -> int:
    """Return the MAX of `N` or `MIN:MAX`; 0 for another form."""
    match = _NNODES.fullmatch(text.strip())
    if match is None:
        return 0
    least, most = int(match[1]), int(match[2] or match[1])
    return most if 1 <= least <= most else 0


def _odd(variable: str, text: str, needed: str, hint: str) -> ConfigError:
    return ConfigError(f"{variable} {text!r} in this pod; expected {needed}", hint=hint)
