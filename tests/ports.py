"""Ports of servers and nodes of tests: no two tests that run side by side get the same, nor does one get one twice."""

import os
import random
import socket
from contextlib import ExitStack, suppress

_FIRST, _END = 11_000, 21_000
"""Below what Linux takes for outgoing connections, torch's defaults (29400, 29500), and what jobs of Slurm get by their
numbers."""
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
"""Each worker of a session has its own share. A server that is stopped finds its port free when it starts again."""
_DRAW = random.SystemRandom()
"""Not the module's own generator: tests seed that, and two sessions would then take the same ports."""
_given: set[int] = set()


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ports on which nobody listens just now, and which nobody else is given meanwhile."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    share = range(_FIRST + _WORKER, _END, _WORKERS)
    with ExitStack() as held:
        found: list[int] = []
        while len(found) < count:
            if len(_given) > len(share) // 2:  # a long session: those that were given first are free again
                _given.clear()
            port = _DRAW.choice(share)
            sock = held.enter_context(socket.socket(family))
            with suppress(OSError):
                if port not in _given:
                    sock.bind((host, port))
                    found.append(port)
                    _given.add(port)
        return found


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port on which nobody listens just now, and which nobody else is given meanwhile."""
    return free_ports(1, host)[0]
