"""Slurm as an environment: proposals for a run from a job's variables, without requests to Slurm."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final

from elastic_core.api import ConfigError, Environment, Proposal
from elastic_env_slurm.node_list import node_names

FIRST_PORT: Final = 21_000
_PORTS: Final = 7919
"""The number of ports: they are below those that kernels assign by themselves. The number is prime, so that jobs that
run on a node at the same time have different ports.
"""
_STEPS: Final = 31
_AT_HEAD: Final = ("c10d", "static")
"""Backends whose endpoint is a port of the first node."""
_MEETING: Final = frozenset({"rdzv_endpoint", "master_addr", "node_rank"})
"""Options that show that the user assigns each agent its place in a run."""
_ONE_A_NODE: Final = re.compile(r"1(\(x\d+\))?", re.ASCII)
_JOB: Final = re.compile(r"(\d+)(?:_\d+)?(?:\+\d+)?(?:\.\d+)?", re.ASCII)


class SlurmEnvironment(Environment):
    """A Slurm job: `srun elastic run train.py` is the whole command of a run on all nodes of its step."""

    api_version: ClassVar[int] = 1
    title: ClassVar[str] = "Slurm"

    def __init__(self, variables: Mapping[str, str]) -> None:
        """Keep the variables."""
        super().__init__(variables)
        self._lines: list[str] = []

    def propose(self, given: Mapping[str, str]) -> Sequence[Proposal]:
        """Return the proposals from the step. Outside a step, only the run id, since other nodes would not join.

        Raises:
            ConfigError: this is a second agent of its node, the list of nodes can't be read, or `--nnodes` needs more
                nodes than the step has.
        """
        found = list(self._hook())
        if "standalone" not in given:
            found += self._run_id(given)
            found += self._step(given) if self._is_step else self._alone(given)
        self.notices = tuple(self._lines)
        return found

    # --- what every job has

    @property
    def _is_step(self) -> bool:
        """Whether this is a task of `srun`. A command that salloc or a batch script runs by itself is not."""
        return bool(self._text("SLURM_STEP_ID"))

    def _text(self, name: str) -> str:
        return self.variables.get(name, "").strip()

    def _number(self, name: str, least: int) -> int:
        text = self._text(name)
        if not (text.isascii() and text.isdecimal() and int(text) >= least):
            raise ConfigError(
                f"{name}: {text!r}; expected a number, {least} or more, as Slurm sets it", hint="--environment none"
            )
        return int(text)

    def _hook(self) -> Iterator[Proposal]:
        """Propose the hook by which Slurm starts a run again, except in salloc's shell, where Slurm can't."""
        if self._is_step or self._text("SLURM_LOCALID"):
            yield Proposal(option="requeue", value="preempted", reason="SLURM_JOB_ID")

    @property
    def job(self) -> str:
        """The job in Slurm's form: `4711`, or `4711_3` for a task of an array."""
        array, task = self._text("SLURM_ARRAY_JOB_ID"), self._text("SLURM_ARRAY_TASK_ID")
        if array and task:
            return f"{array}_{task}"
        return self._text("SLURM_HET_JOB_ID") or self._text("SLURM_JOB_ID")

    def _run_id(self, given: Mapping[str, str]) -> Iterator[Proposal]:
        run_id, reason = self.job, "SLURM_JOB_ID"
        if self._text("SLURM_ARRAY_JOB_ID") and self._text("SLURM_ARRAY_TASK_ID"):
            reason = "SLURM_ARRAY_JOB_ID, SLURM_ARRAY_TASK_ID"
        if self._is_step:
            run_id, reason = f"{run_id}.{self._text('SLURM_STEP_ID')}", f"{reason}, SLURM_STEP_ID"
        yield Proposal(option="rdzv_id", value=run_id, reason=reason)
        typed = _JOB.fullmatch(given.get("rdzv_id", "").strip())
        if typed and typed[1] not in (self._text("SLURM_JOB_ID"), self.job.partition("_")[0]):
            self._lines.append(
                f"run id {typed[0]!r} looks like that of another job: this is job {self.job}, and would join that "
                "one's run. Try: no --rdzv-id"
            )

    # --- a step

    def _step(self, given: Mapping[str, str]) -> Iterator[Proposal]:
        nodes = self._number("SLURM_STEP_NUM_NODES", 1)
        if self._several_agents(given):
            return
        node = self._text("SLURMD_NODENAME")
        if node:
            yield Proposal(option="node_id", value=node, reason="SLURMD_NODENAME")
        if nodes > 1:
            self._compare_nodes(given, nodes)
            yield Proposal(option="nnodes", value=str(nodes), reason="SLURM_STEP_NUM_NODES")
            yield self._rank()
            yield from self._meeting(given, nodes)

    def _several_agents(self, given: Mapping[str, str]) -> bool:
        """Return whether a node of this step has several agents, in a run with explicit rendezvous options.

        Raises:
            ConfigError: the options are missing. A number of nodes alone is not enough: torchrun's users type
                `--nnodes $SLURM_NNODES`, and each task would be rank 0 of a separate run.
        """
        a_node, local = self._text("SLURM_STEP_TASKS_PER_NODE"), self._text("SLURM_LOCALID")
        if _ONE_A_NODE.fullmatch(a_node or "1") and local in ("", "0"):
            return False
        if "nnodes" in given and _MEETING & set(given):
            return True
        if self._text("SLURM_PROCID") not in ("", "0"):
            raise ConfigError("")  # the step's first task reports it for all
        raise ConfigError(
            f"this step has more than one task per node (SLURM_STEP_TASKS_PER_NODE={a_node}, SLURM_LOCALID={local}), "
            "and one agent starts all workers of its node",
            hint="srun --ntasks-per-node 1, and --nproc-per-node for the number of workers",
        )

    def _compare_nodes(self, given: Mapping[str, str], nodes: int) -> None:
        """Compare the step's nodes with `--nnodes`, which overrides them.

        Raises:
            ConfigError: the run would wait for nodes that can't join.
        """
        fewest, _, most = given.get("nnodes", "").partition(":")
        if not fewest.strip().isdecimal():
            return
        if int(fewest) > nodes:
            line = f"--nnodes {given['nnodes']} in a step of {nodes} nodes (SLURM_STEP_NUM_NODES): "
            if "rdzv_id" not in given:  # no other program knows the name
                raise ConfigError(f"{line}the other nodes can't join", hint=f"--nnodes {nodes}, or leave it out")
            self._lines.append(f"{line}the run waits for nodes that are none of this step's")
        elif (most or fewest).strip().isdecimal() and int(most or fewest) < nodes:
            self._lines.append(
                f"--nnodes {given['nnodes']} in a step of {nodes} nodes (SLURM_STEP_NUM_NODES): the nodes that are too "
                "many wait as spares"
            )

    def _rank(self) -> Proposal:
        rank = self._number("SLURM_NODEID", 0)
        return Proposal(
            option="node_rank",
            value=str(rank),
            reason="SLURM_NODEID",
            contradiction=f"another node rank than Slurm's, {rank} (SLURM_NODEID): a batch script expands it on its "
            "first node. Try: srun elastic run …, without a rank",
        )

    def _meeting(self, given: Mapping[str, str], nodes: int) -> Iterator[Proposal]:
        backend = given.get("rdzv_backend", "").strip()
        if not backend:
            yield Proposal(option="rdzv_backend", value="c10d", reason="a step of several nodes")
        if backend not in ("", *_AT_HEAD) or {"rdzv_endpoint", "master_addr", "master_port"} & set(given):
            return
        value = f"{self._head(nodes)}:{self._port()}"
        yield Proposal(option="rdzv_endpoint", value=value, reason="SLURM_STEP_NODELIST, a port by the job's number")
        if backend != "static":  # which node it is, is known: names that resolve oddly can't mislead
            value = f"is_host={'true' if self._number('SLURM_NODEID', 0) == 0 else 'false'}"
            yield Proposal(option="rdzv_conf", value=value, reason="SLURM_NODEID")

    def _head(self, nodes: int) -> str:
        text = self._text("SLURM_STEP_NODELIST")
        hint = "--rdzv-endpoint HOST:PORT, of a node of this step"
        try:
            names = node_names(text)
        except ValueError as err:
            raise ConfigError(f"SLURM_STEP_NODELIST={text!r}; expected a list of nodes: {err}", hint=hint) from None
        if len(names) != nodes:
            raise ConfigError(
                f"SLURM_STEP_NODELIST={text!r} has {len(names)} of {nodes} nodes (SLURM_STEP_NUM_NODES)", hint=hint
            )
        return names[0]

    def _port(self) -> int:
        step = self._text("SLURM_STEP_ID")
        return FIRST_PORT + (self._number("SLURM_JOB_ID", 0) * _STEPS + int(step if step.isdecimal() else 0)) % _PORTS

    # --- a batch script, or salloc's shell

    def _alone(self, given: Mapping[str, str]) -> Sequence[Proposal]:
        nodes = self._text("SLURM_JOB_NUM_NODES") or "1"
        if nodes != "1" and not {"nnodes", "rdzv_backend"} & set(given):
            self._lines.append(
                f"this run is on one node of a job of {nodes}: srun starts an agent on each. Try: srun elastic run …"
            )
        return ()
