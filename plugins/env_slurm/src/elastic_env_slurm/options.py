"""The flag of `elastic run` that this distribution brings."""

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
    default_note="preempted, in a job of Slurm",
    help="How a run ends that Slurm has stopped, so that its job begins again: 'preempted' waits for that where Slurm "
    "does it by itself after a preemption, 'auto' also asks for it, at the time limit, too, and 'off' just ends. "
    "'auto' does not ask after an attempt that was out of time and in which no worker made a step or saved.",
)

REQUEUE_LIMIT: Final = RunOption(
    name="requeue_limit",
    hook="elastic_env_slurm.requeue:Requeue",
    heading="Slurm",
    type="int",
    metavar="N",
    least=0,
    default_note="no limit",
    help="How often --requeue auto may have a job begun again; what Slurm does by itself counts, too. Given, also "
    "an attempt of which the agent can observe no steps is followed by another one: its script calls neither "
    "should_stop(step=n) nor heartbeat.",
)
