"""The options of `elastic run` from this distribution."""

from typing import Final

from elastic_core.api import RunOption

AUTO: Final = "auto"
PREEMPTED: Final = "preempted"
OFF: Final = "off"

REQUEUE: Final = RunOption(
    name="requeue",
    hook="elastic_env_slurm.requeue:Requeue",
    heading="Slurm",
    choices=(AUTO, PREEMPTED, OFF),
    default_note="preempted, in a Slurm job",
    help="What a run does when Slurm stops it. preempted: wait for the requeue that Slurm itself does after a "
    "preemption. auto: also request a requeue, at the time limit too, except after an attempt that ran out of time "
    "without a step or a save of any worker. off: end.",
)

REQUEUE_LIMIT: Final = RunOption(
    name="requeue_limit",
    hook="elastic_env_slurm.requeue:Requeue",
    heading="Slurm",
    type="int",
    least=0,
    default_note="no limit",
    help="How often --requeue auto may requeue a job, counting requeues by Slurm itself. If the limit is given, an "
    "attempt without observable steps (the script calls neither should_stop(step=n) nor heartbeat) is requeued too.",
)
