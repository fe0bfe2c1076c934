"""Eight workers print as fast as they can to a console that is slower: bounded memory, nothing lost, no line torn."""

import os
import re
import threading
import time
from pathlib import Path

from support import wait_for

WORKERS, LINES = 8, 60_000
MOST_GROWTH_KIB = 8 << 10
"""Far below the 60 MB that the workers print, above the 1 MiB that may wait and what chunks in flight take."""

PRINTS = f"""
import os, pathlib, sys, time
folder, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
(folder / f"ready{{rank}}").touch()
while not (folder / "go").exists():
    time.sleep(0.005)
for n in range({LINES}):
    print(rank, n, "x" * (n % 240))
"""


def memory_kib(pid, name):
    """Return a line of the process's status, None when it has ended."""
    try:
        match = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if match is None else int(match[1])


def settled_kib(pid):
    """Return what an agent takes that has loaded what it needs when a worker fails: nothing more for a second."""
    found, since_s = 0, time.monotonic()

    def unchanged():
        nonlocal found, since_s
        now_kib = memory_kib(pid, "VmRSS")
        if now_kib != found:
            found, since_s = now_kib, time.monotonic()
        return time.monotonic() - since_s > 1.0

    wait_for(unchanged, what="an agent that loads nothing any more")
    return found


def test_a_flood_is_bounded_and_exact(elastic, script, tmp_path):
    read_fd, write_fd = os.pipe()
    logs = tmp_path / "logs"
    filters = ("--duplicate-stdout-filters", " 777 , 59999 ")
    agent = elastic(
        *("--nproc-per-node", WORKERS, "-t", "1", "--log-dir", logs, *filters, script(PRINTS), tmp_path),
        stdout=write_fd,
    )
    os.close(write_fd)
    wait_for(lambda: len(list(tmp_path.glob("ready*"))) == WORKERS)
    before_kib, most_kib = settled_kib(agent.pid), 0
    (tmp_path / "go").touch()
    pause, chunks = threading.Event(), []
    with open(read_fd, "rb", buffering=0) as console:
        while chunk := console.read(1 << 16):
            chunks.append(chunk)
            if len(chunks) % 8 == 0:
                pause.wait(0.005)  # a reader slower than the workers
            if len(chunks) % 64 == 0:
                most_kib = max(most_kib, memory_kib(agent.pid, "VmHWM") or 0)
    assert agent.wait() == 0
    assert 0 < most_kib - before_kib < MOST_GROWTH_KIB

    expected = [f"{n} {'x' * (n % 240)}\n" for n in range(LINES)]
    by_rank = {rank: [] for rank in range(WORKERS)}
    for line in b"".join(chunks).decode().splitlines(keepends=True):
        by_rank[int(line[8])].append(line)
    for rank, lines in by_rank.items():
        assert lines == [f"[default{rank}]:{rank} {line}" for line in expected]
        (file,) = logs.glob(f"*/attempt_0/{rank}/stdout.log")
        assert file.read_text() == "".join(f"{rank} {line}" for line in expected)
    (filtered,) = logs.glob("*/attempt_0/filtered_stdout.log")
    kept = [f"[default{rank}]:{rank} {expected[n]}" for rank in range(WORKERS) for n in (777, 59_999)]
    assert sorted(filtered.read_text().splitlines(keepends=True)) == sorted(kept)
