"""Words that a reader types into the site's search, by the page that should be its first result.

They become entries of the index, which the search ranks above all other matches. Each word of a phrase must be on its
page, so that the page is found by parts of it, too; a test checks that.
"""

from collections.abc import Mapping
from typing import Final

PHRASES: Final[Mapping[str, tuple[str, ...]]] = {
    "howto/troubleshooting": (
        "exit code 137", "exit code 139", "exit code 143", "out of memory", "NCCL timeout", "port in use",
        "connection refused",
    ),
    "howto/several-nodes": ("scale up", "scale down", "join a run", "spare nodes", "node lost", "Redis restarts"),
    "howto/slurm": ("preemption", "time limit", "requeue", "sbatch", "srun"),
    "howto/kubernetes": ("JobSet", "pods"),
    "howto/warm-rounds": ("in-process restart", "keep workers"),
    "howto/save-and-resume": ("resume", "checkpoint", "resume training"),
    "howto/from-torchrun": ("replace torchrun", "move from torchrun"),
    "reference/differences": ("torchrun differences", "differences from torchrun"),
    "howto/checking-nodes": ("check a cluster", "cluster healthy", "doctor"),
    "howto/on-call": ("lost time", "post-mortem", "on call", "why a run failed"),
    "tutorial/report": ("report", "timeline", "Perfetto"),
    "reference/ledger": ("goodput", "badput", "time ledger"),
    "howto/debugging": ("debug rank 0", "breakpoint", "py-spy"),
    "howto/hangs": ("hang", "heartbeat", "stacks"),
    "howto/stragglers": ("straggler", "slow rank", "slow node", "step time"),
    "howto/logs": ("where are the logs", "log files"),
    "howto/operating-a-run": ("drain a node", "stop a run"),
    "howto/policies-and-hooks": ("max restarts", "restart policy"),
    "plugin_authors/coordination_store": ("write a backend",),
}  # fmt: skip


def with_entries(page: str, source: str) -> str:
    """Return the text of a page with its phrases as entries of the index.

    Each is before the first heading with its words, so that a search result leads there; else it is after the title.
    """
    lines = source.split("\n")
    for phrase in PHRASES.get(page, ()):
        entry = f"```{{index}} ! {phrase}\n```\n"
        headings = (n for n, line in enumerate(lines) if line.startswith("##") and phrase.lower() in line.lower())
        if at := next(headings, 0):
            lines[at] = f"{entry}\n{lines[at]}"
        else:
            lines[0] += f"\n\n{entry}"
    return "\n".join(lines)
