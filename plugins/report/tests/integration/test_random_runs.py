"""200 real runs, chosen by a seed: on each node, the sum of the states is the time from its start to its exit."""

import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elastic_report.ledger.document import LEDGER_FILE, RoundLine, Span, WorkerLine
from elastic_report.ledger.reading import read_ledger
from elastic_report.ledger.states import LedgerState as S
from elastic_report.ledger.totals import totals_of
from patience import patience, slowness
from ports import free_port
from support import wait_for

RUNS = int(os.environ.get("LEDGER_RUNS", 200))
AT_ONCE = 6
SLACK_S = 1.0
MEMORY = "/dev/shm"

KINDS = (
    *("good", "crash", "stopped") * 4,
    *("fails", "killed worker", "steps") * 2,
    *("agent killed", "two nodes", "two attempts"),
)
STEPS = """
import os, sys, time
from elastic_train import restoring, saving, should_stop
last, wait_s, crash = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
with restoring():
    time.sleep(wait_s)
for step in range(last // 3 if again else 0, last):
    time.sleep(wait_s)
    if should_stop(step=step):
        break
    if step % 5 == 4:
        with saving():
            time.sleep(wait_s)
    if step == crash and not again:
        raise ValueError("boom")
"""


class Agent:
    """One agent's process, and how long it was there."""

    def __init__(self, place: Path, *words: str, run_id: str, node: str) -> None:
        self.run_id, self.node = run_id, node
        temp = place / node
        temp.mkdir(parents=True, exist_ok=True)
        self.temp = temp
        self.began_s = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "elastic_core", "run", "--rdzv-id", run_id, "--node-id", node, *words],
            env={**os.environ, "TMPDIR": str(temp), "XDG_RUNTIME_DIR": ""},
            cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def signal_after(self, delay_s: float, signum: int) -> None:
        timer = threading.Timer(delay_s, lambda: self.process.poll() is None and self.process.send_signal(signum))
        timer.daemon = True
        timer.start()

    def end(self) -> None:
        _, self.text = self.process.communicate(timeout=120)
        self.present_s = time.monotonic() - self.began_s
        self.code = self.process.returncode

    def ledgers(self) -> list[Path]:
        return sorted(self.temp.glob(f"elastic-*/index/*/{LEDGER_FILE}"))


def sh(text: str) -> list[str]:
    return ["--no-python", "/bin/sh", "-c", text]


def one(dice: random.Random, place: Path, number: int) -> tuple[str, list[Agent]]:
    """Play one run to its end."""
    kind = dice.choice(KINDS)
    sleep = f"sleep {dice.uniform(0, 0.4):.2f}"
    words = ["--nproc-per-node", str(dice.randint(1, 2))]
    restarts = ["--max-restarts", str(dice.randint(1, 2)), "--restart-backoff", f"{dice.choice([0, 0.1])}"]
    run_id = f"run-{number}"
    crash = f'{sleep}; [ "$TORCHELASTIC_RESTART_COUNT" -ge 1 ] || exit {dice.choice([1, 7])}'

    kept = itertools.count()

    def start(*more: str, node: str = "n0") -> Agent:
        # A kept directory: a success within half a second has no ledger otherwise.
        keep = [] if kind == "agent killed" else ["--run-dir", f"kept-{next(kept)}"]
        return Agent(place / str(number), *words, *keep, *more, run_id=run_id, node=node)

    (place / str(number)).mkdir()
    match kind:
        case "crash":
            agents = [start(*restarts, *sh(crash))]
        case "fails":
            agents = [start(*sh(f"{sleep}; exit 5"))]
        case "killed worker":
            agents = [start(*restarts, *sh(f'{sleep}; [ "$TORCHELASTIC_RESTART_COUNT" -ge 1 ] || kill -9 $$'))]
        case "stopped":
            trap = dice.choice(["", "trap '' TERM; "])
            agents = [start("--shutdown-timeout", "0.5", *sh(f"{trap}: > started; sleep 60"))]
            started = place / str(number) / "started"
            wait_for(lambda: started.exists() or agents[0].process.poll() is not None)
            agents[0].signal_after(dice.uniform(0, 1.2), dice.choice([signal.SIGTERM, signal.SIGINT]))
        case "agent killed":
            agents = [start(*sh("sleep 60"))]
            agents[0].signal_after(dice.uniform(0.3, 2.0), signal.SIGKILL)
        case "steps":
            (place / str(number) / "steps.py").write_text(STEPS)
            last = dice.randint(3, 30)
            crash_at = dice.choice([-1, last // 2])
            agents = [start(*restarts, "steps.py", str(last), f"{dice.uniform(0, 0.02):.3f}", str(crash_at))]
        case "two nodes":
            port = free_port()
            store = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
            agents = [start(*store, *restarts, *sh(dice.choice([sleep, crash])), node=f"n{node}") for node in range(2)]
        case "two attempts":
            first = start(*sh(f"{sleep}; exit 5"))
            first.end()
            second = start(*sh(sleep))
            second.end()
            return kind, [first, second]
        case _:
            agents = [start(*sh(sleep))]
    for agent in agents:
        agent.end()
    return kind, agents


def fault_of(kind: str, agents: list[Agent], index: int) -> str:
    """Return what is wrong with a node's ledger; empty if nothing is."""
    agent = agents[index]
    if kind == "agent killed":
        paths = sorted(agent.temp.glob(f"elastic-*/run-*/{LEDGER_FILE}"))
        if not paths:
            return ""  # it was killed within its first half second
    else:
        paths = agent.ledgers()
        paths = [paths[index]] if kind == "two attempts" and len(paths) > index else paths[-1:]
    if not paths:
        return f"no ledger: {agent.text!r}"
    ledger = read_ledger(paths[0])
    if ledger.torn:
        return f"{ledger.torn} torn lines"
    at_s = ledger.begin.started_s
    for line in ledger.lines:
        if isinstance(line, Span):
            if abs(line.begin_s - at_s) > 1e-9 or line.end_s <= line.begin_s:
                return f"a gap or an overlap at {at_s}: {line}"
            at_s = line.end_s
    totals = totals_of(ledger)
    if kind == "agent killed":
        return "" if ledger.end is None and totals.present_s <= agent.present_s + patience(SLACK_S) else "wrong end"
    if ledger.end is None or ledger.end.exit_code != agent.code:
        return f"its end is {ledger.end}; exit code {agent.code}: {agent.text.decode()!r}"
    if abs(totals.present_s - agent.present_s) > patience(SLACK_S):
        return f"the states are {totals.present_s:.3f} s, the presence {agent.present_s:.3f} s: {totals.states}"
    workers = [line for line in ledger.lines if isinstance(line, WorkerLine)]
    rounds = [line for line in ledger.lines if isinstance(line, RoundLine)]
    if kind in ("good", "crash", "killed worker"):
        if len(workers) != len(rounds) * ledger.begin.local_world_size:
            return f"{len(workers)} workers in {len(rounds)} rounds"
        # On a busy machine, an agent may see the end of a short program together with its start.
        longest_s = max(worker.end_s - worker.begin_s for worker in workers)
        if longest_s > 0.01 and S.PRODUCTIVE not in totals.states:
            return f"a worker ran for {longest_s:.3f} s, and no second is productive: {totals.states}"
    if kind == "crash" and len(rounds) != 2:
        return f"{len(rounds)} rounds"
    if kind == "stopped" and agent.code >= 128 and rounds and S.DRAINED not in totals.states:
        return f"a drain without its state: {totals.states}"
    if kind == "steps" and not (workers[-1].last_step and workers[-1].marks):
        return "a worker's steps or marks are missing"
    return ""


@pytest.mark.timeout(600)
def test_the_states_of_each_node_are_its_presence_in_two_hundred_random_runs(tmp_path):
    seed = int(os.environ.get("LEDGER_SEED", random.randrange(10**6)))
    numbers = random.Random(seed)
    dices = [random.Random(numbers.random()) for _ in range(RUNS)]
    # In memory: while a disk stalls at the end of a run, the agent is present after the last state.
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else tmp_path) as place:
        faults = played(dices, Path(place))
    assert not faults, f"LEDGER_SEED={seed}\n" + "\n".join(faults)


def played(dices: list[random.Random], place: Path) -> list[str]:
    """Play runs, and return what is wrong with their ledgers."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        played = list(pool.map(lambda number: one(dices[number], place, number), range(len(dices))))
    slowness(now=True)  # of a machine with so many runs at once
    return [
        f"run {number} ({kind}), {agents[index].node}: {fault}"
        for number, (kind, agents) in enumerate(played)
        for index in range(len(agents))
        if (fault := fault_of(kind, agents, index))
    ]
