"""The nodes of a step: which of them have lost their agent, and which one reports for all that are left. Pure."""

from collections.abc import Mapping

from elastic_core.api.rendezvous import RoundChange, RoundEnded
from elastic_env_slurm.environment import SlurmEnvironment
from elastic_env_slurm.node_list import node_names


class StepNodes:
    """The nodes of the step that this agent is in.

    Args:
        environ: The environment of this agent.
        run_id: The run's id.
        submitted: `elastic slurm submit` has made the job: its run has a name, and no node of another job joins it.
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
        """Take a change of the round's members, and return whether agents are lost that nothing starts again.

        An agent that was told to leave is not lost. Where nodes of other jobs may join, one of them may take its place.
        """
        lost = isinstance(change, RoundEnded) and not change.planned and self._closed
        self.lost = change.lost if lost and isinstance(change, RoundEnded) else ()
        return bool(self.lost)

    def take_end(self) -> None:
        """Take the end of an agent whose run can't go on without the node that kept its store."""
        self.lost = self.lost or (tuple(self._names[:1]) if self._closed else ())

    @property
    def speaks(self) -> bool:
        """Whether this node is the first one that has an agent."""
        left = [name for name in self._names if name not in self.lost]
        return self._own == left[0] if self.lost and left else self._is_first
