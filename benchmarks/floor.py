"""The floor: the least that a supervisor must do. It starts workers, watches them by pidfd, restarts them together.

No options, no log files, no plugins, no cleaning up, no word about what happened: whatever a launcher takes beyond this
is the price of what it can do.

    python floor.py WORKERS RESTARTS SCRIPT [ARGS...]
"""

import os
import select
import signal
import sys


def start(workers: int, attempt: int, argv: list[str]) -> dict[int, int]:
    """Start all workers; return pid by pidfd."""
    watched = {}
    base = os.environ | {"WORLD_SIZE": str(workers), "TORCHELASTIC_RESTART_COUNT": str(attempt)}
    for rank in range(workers):
        env = base | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        pid = os.posix_spawn(argv[0], argv, env, setsid=True)
        watched[os.pidfd_open(pid)] = pid
    return watched


def follow(watched: dict[int, int]) -> int:
    """Wait until all have ended; after a failure stop the others. Return the first failure's code."""
    poll = select.poll()
    for fd in watched:
        poll.register(fd, select.POLLIN)
    failed = 0
    while watched:
        for fd, _ in poll.poll():
            code = os.waitstatus_to_exitcode(os.waitpid(watched.pop(fd), 0)[1])
            poll.unregister(fd)
            os.close(fd)
            if code and not failed:
                failed = code
                for pid in watched.values():
                    os.killpg(pid, signal.SIGTERM)
    return failed


def main() -> None:
    """Run to the end and exit with the workers' code."""
    workers, restarts, script = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    for attempt in range(restarts + 1):
        code = follow(start(workers, attempt, [sys.executable, "-u", *script]))
        if not code:
            break
    os._exit(code if code >= 0 else 128 - code)


main()
