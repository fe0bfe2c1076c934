"""What a starter of workers and the server that forks them say to each other: pickled tuples over their own socket.

`("fork", names)` with the descriptors `names` tells of, then those of the call: `orders` is a file that holds
`WorkerOrders`, behind them the call unless the server has it. Answer: `("pid", number)` or `("failed", text)`.
`("reap", pid)`, answered by `("code", exit code or None)`; `("leave", None)`, not answered. A clean server first says
`("ready", None)` or `failed`.
"""

from typing import NamedTuple

MESSAGE_BYTES = 4096
MAX_FDS = 250
"""The kernel takes 253 with one message."""


class WorkerOrders(NamedTuple):
    """What a forked worker must know before its call."""

    local_rank: int
    env: dict[str, str]
    cpus: frozenset[int] | None
