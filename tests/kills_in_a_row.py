"""Kills of one worker after the other, each as soon as the whole group is ready."""

import os
import random
import re
import signal
import sys

from support import wait_for

KILLS = 25

SCRIPT = """
import os, pathlib, sys, time
{imports}
here, rank = pathlib.Path(os.environ["HERE"]), os.environ["RANK"]
{meets}
path = here / (os.environ["TORCHELASTIC_RESTART_COUNT"] + "." + rank)
part = path.with_name(path.name + ".part")
part.write_text(str(os.getpid()))
part.rename(path)
while not (here / "end").exists():
    time.sleep(0.01)
"""


def survives_kills_in_a_row(elastic, path, folder, *options, workers=2, kills=KILLS, within_s=60.0):
    """Kill a worker, chosen by the session's seed, of each attempt as soon as all are ready; then let the run end.

    Each kill must be one restart that names the killed rank; no worker of an earlier attempt may live beside the next.
    """
    rng = random.Random(f"{os.environ['TESTS_SEED']} kills in a row")
    env = {"HERE": str(folder), "PYTHON_EXEC": sys.executable}  # interpreters of their own, which can be killed
    budget = ("--max-restarts", kills, "--restart-backoff", 0)
    agent = elastic("--nproc-per-node", workers, *budget, *options, path, env=env)
    killed, earlier = [], set()
    for attempt in range(kills + 1):
        files = [folder / f"{attempt}.{rank}" for rank in range(workers)]
        what = f"attempt {attempt} of {workers} workers"
        wait_for(lambda files=files: all(file.exists() for file in files), within_s=within_s, what=what)
        pids = [int(file.read_text()) for file in files]
        assert not any(os.path.exists(f"/proc/{pid}") for pid in earlier - set(pids))
        if attempt < kills:
            killed.append(rng.randrange(workers))
            os.kill(pids[killed[-1]], signal.SIGKILL)
        earlier |= set(pids)
    (folder / "end").touch()
    assert agent.wait(within_s) == 0, agent.err
    restarts = re.findall(r"rank (\d+) failed: killed by SIGKILL \(9\).*; restart (\d+) of", agent.err)
    assert [(int(rank), int(count)) for rank, count in restarts] == [*zip(killed, range(1, kills + 1), strict=True)]
    assert agent.survivors() == []
