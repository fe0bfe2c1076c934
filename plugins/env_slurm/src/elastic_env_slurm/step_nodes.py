"""The nodes of a step: those that lost their agent, and the one that reports for all remaining ones. Pure."""

from collections.abc import Mapping

from elastic_core.api.rendezvous import RoundChange, RoundEnded
from elastic_env_slurm.environment import SlurmEnvironment
from elastic_env_slurm.node_list import node_names


class StepNodes:
    """The nodes of this agent's step.

    Args:
        environ: The environment of this agent.
        run_id: The run's id.
        submitted: Whether `elastic slurm submit` made the job: its run has a name, and no node of another job joins.
    """

    def __init__(self, environ: Mapping[str, str], run_id: str, *, submitted: bool) -> None:
        self._own = environ.get("SLURMD_NODENAME", "")
        self._is_first = environ.get("SLURM_NODEID", "0").strip() in ("", "0")
        step = environ.get("SLURM_STEP_ID", "").strip()
        try:
            self._names = node_names(environ.get("SLURM_STEP_NODELIST", "")) if step else []
        except ValueError:
            self._names = []
        own_run = run_id == f"{SlurmEnvironment(environ).job}.{step}"
        self._closed = len(self._names) > 1 and (own_run or submitted)
        self.lost: tuple[str, ...] = ()
        """The nodes without which no round was formed since."""

    def take(self, change: RoundChange) -> bool:
        """Apply a change of the round's members. Return whether agents are lost that are not started again.

        An agent that was requested to leave is not lost. If nodes of other jobs may join, one of them may replace it.
        """
        lost = isinstance(change, RoundEnded) and not change.planned and self._closed
        self.lost = change.lost if lost and isinstance(change, RoundEnded) else ()
        return bool(self.lost)

    def take_end(self) -> None:
        """Apply the end of an agent whose run can't continue without the host of its store."""
        self.lost = self.lost or (tuple(self._names[:1]) if self._closed else ())

    @property
    def speaks(self) -> bool:
        """Whether this node is the first one with an agent."""
        left = [name for name in self._names if name not in self.lost]
        return self._own == left[0] if self.lost and left else self._is_first
