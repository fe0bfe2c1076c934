"""One cell of the table of stacks: a training script under a launcher, with one fault, and what came of it."""

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from elastic_core.api import SYSTEM_CLOCK, WaitBudget
from ports import free_port

SCRIPTS = Path(__file__).with_name("scripts")
BIN = Path(sys.executable).parent
STACKS = ("ddp", "fsdp2", "accelerate", "lightning", "transformers", "deepspeed", "torchft", "async_save")
FAULTS = ("plain", "crash", "worker", "agent")
"""What happens at step 7: nothing, rank 1 raises, rank 1 is killed, the agent of rank 1 is killed."""
LAUNCHERS = ("elastic", "torchrun")
FIXED = frozenset({"deepspeed"})
"""Stacks that can't load what another number of ranks has saved: a node that is lost is started again."""
LIMIT_S = 120.0
QUIET_S = 75.0
"""A run without a new step or line for so long is stuck; torchrun needs 45 to go on without a node that is lost."""
AT = 7


@dataclass
class Result:
    """What came of a run: `ended`, `failed` or `stuck`."""

    stack: str
    fault: str
    launcher: str
    outcome: str
    code: int | None
    seconds: float
    resumed_at: int | None = None
    """The step at which training went on after the fault; None: it had none, or never went on."""
    cause: str = ""
    """The launcher's own line about the fault."""
    left: list[str] = field(default_factory=list)
    """Processes of the run that outlived it."""

    def record(self) -> dict[str, object]:
        """Return it for the file of results."""
        return asdict(self)


class Cell:
    """A run in a folder of its own."""

    def __init__(self, stack: str, fault: str, launcher: str, folder: Path, *, redis: str) -> None:
        self.stack, self.fault, self.launcher, self.folder = stack, fault, launcher, folder
        self._redis, self._id = redis, uuid.uuid4().hex
        self._port = free_port()
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._beside: list[subprocess.Popen[bytes]] = []
        self._variables: dict[str, str] = {}

    def run(self) -> Result:
        """Run it, and end whatever is left of it."""
        began_s = SYSTEM_CLOCK.monotonic_s()
        try:
            self._start_all()
            outcome = self._watch(began_s)
            took_s = SYSTEM_CLOCK.monotonic_s() - began_s
            codes = [agent.poll() for name, agent in self._agents.items() if name != "killed"]
            left = self._left() if outcome == "over" else []
        finally:
            self._end_all()
        code = max((abs(code) for code in codes if code is not None), default=None)
        whole = all(self._steps(rank)[-1:] == [self._count - 1] for rank in self._ranks())
        if outcome == "over":
            outcome = "ended" if code == 0 and whole else "failed"
        cause, resumed = self._cause(), self._resumed_at()
        return Result(self.stack, self.fault, self.launcher, outcome, code, round(took_s), resumed, cause, left)

    # --- starting

    @property
    def _count(self) -> int:
        return int(self._variables.get("CELL_STEPS", "20"))

    def _start_all(self) -> None:
        if self.stack == "torchft":
            self._start_torchft()
        elif self.fault == "agent":
            for name in "ab":
                self._start_node(name)
        elif self.launcher == "elastic":
            self._start("a", "--nproc-per-node", "2", "--omp-threads", "1")
        else:
            self._start("a", "--standalone", "--nproc-per-node", "2")

    def _start_node(self, name: str) -> None:
        nodes = "2" if self.stack in FIXED else "1:2"
        words = ["--nnodes", nodes, "--nproc-per-node", "1", "--rdzv-id", f"cell-{self._id}"]
        if self.launcher == "elastic":
            words += ["--rdzv-backend", "redis", "--rdzv-endpoint", self._redis, "--rdzv-conf", "lease_ttl=2"]
            words += ["--node-id", name, "--omp-threads", "1"]
        else:
            words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self._port}"]
            words += ["--rdzv-conf", f"is_host={int(name == 'a')}"]  # on one host both would be, whoever is first
        self._start(name, *words)

    def _start_torchft(self) -> None:
        if self.fault != "plain":
            self._variables["CELL_STEPS"] = "200"  # so that the other group is still there
        self._variables["TORCHFT_LIGHTHOUSE"] = f"http://127.0.0.1:{self._port}"
        words = ["--bind", f"127.0.0.1:{self._port}", "--min_replicas", "1", "--join_timeout_ms", "5000"]
        self._beside.append(self._spawn([str(BIN / "torchft_lighthouse"), *words], "lighthouse", {}))
        for rank, name in enumerate("ab"):
            store = "--agent-store" if self.launcher == "elastic" else "--standalone"
            self._start(name, store, "--nproc-per-node", "1", CELL_RANK=str(rank))

    def _start(self, name: str, *words: str, **variables: str) -> None:
        command = [str(BIN / "elastic"), "run"] if self.launcher == "elastic" else [str(BIN / "torchrun")]
        line = [*command, *words, "--max-restarts", "2", str(SCRIPTS / f"train_{self.stack}.py")]
        self._agents[name] = self._spawn(line, name, variables)

    def _spawn(self, line: list[str], name: str, variables: dict[str, str]) -> subprocess.Popen[bytes]:
        dropped = ("PET_", "ELASTIC_", "TORCHELASTIC_", "PYTEST", "MASTER_", "TESTS_")
        inherited = {key: text for key, text in os.environ.items() if not key.startswith(dropped)}
        own = {
            "CELL_ID": self._id,
            "CELL_FOLDER": str(self.folder),
            "CELL_FAULT": self.fault,
            "PYTHONPATH": str(SCRIPTS),
            "OMP_NUM_THREADS": "1",
            "XDG_RUNTIME_DIR": str(self.folder),
            "TORCH_EXTENSIONS_DIR": str(Path(sys.prefix) / "torch_extensions"),  # what DeepSpeed builds, once
            "HF_HUB_OFFLINE": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",  # DeepSpeed looks for ninja
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            environment = inherited | own | self._variables | variables
            return subprocess.Popen(line, cwd=self.folder, env=environment, stdout=log, stderr=log)

    # --- watching

    def _watch(self, began_s: float) -> str:
        seen, seen_s, due = b"", SYSTEM_CLOCK.monotonic_s(), self.fault == "agent"
        while any(agent.poll() is None for agent in self._agents.values()):
            WaitBudget().sleep(0.1)
            now_s, found = SYSTEM_CLOCK.monotonic_s(), self._told()
            if found != seen:
                seen, seen_s = found, now_s
            if due and self._steps(1)[-1:] >= [AT]:
                due = False
                self._lose_a_node()
            if now_s - began_s > LIMIT_S or now_s - seen_s > QUIET_S:
                return "stuck"
        return "over"

    def _told(self) -> bytes:
        files = [*self.folder.glob("steps-*"), *self.folder.glob("*.log")]
        return repr(sorted((file.name, file.stat().st_size) for file in files)).encode()

    def _lose_a_node(self) -> None:
        """Kill the agent whose worker has rank 1; of torchrun's two the one that hosts no store."""
        workers = {told["pid"]: _parent(told["pid"]) for told in self._lines(1)}
        parents = set(workers.values())
        name = "b" if self.launcher == "torchrun" or self.stack == "torchft" else ""
        name = name or next(name for name, agent in self._agents.items() if agent.pid in parents)
        victim = self._agents.pop(name)
        victim.kill()
        victim.wait()
        self._agents["killed"] = victim
        if self.launcher == "torchrun":  # its workers live on: they go, as a lost node's would be gone
            for pid in (told["pid"] for rank in (0, 1) for told in self._lines(rank)):
                if pid in self._marked() and _parent(pid) not in {agent.pid for agent in self._agents.values()}:
                    _kill(pid)
        if self.stack in FIXED:
            self._start_node(name)

    # --- what came of it

    def _ranks(self) -> list[int]:
        return [0] if self.fault == "agent" else [0, 1]

    def _lines(self, rank: int) -> list[dict[str, int]]:
        file = self.folder / f"steps-{rank}"
        whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]

    def _steps(self, rank: int) -> list[int]:
        return [told["step"] for told in self._lines(rank)]

    def _resumed_at(self) -> int | None:
        lines = self._lines(1 if self.stack == "torchft" and self.fault != "agent" else 0)
        again = [after["step"] for before, after in pairwise(lines) if after["pid"] != before["pid"]]
        return again[0] if again and self.fault != "plain" else None

    def _cause(self) -> str:
        ours = r"^elastic: (?:.*: )?(rank \d+ failed: .*|round \d+ is over: .*|\S+ (?:is )?lost.*)$"
        theirs = r"^.*(failed \(exitcode: .*\) local_rank: .*?)(?: of binary: .*)?$"  # whose path is this machine's
        text = "\n".join(file.read_text(errors="replace") for file in sorted(self.folder.glob("?.log")))
        found = re.search(ours if self.launcher == "elastic" else theirs, text, re.M)
        return found[1].replace(str(SCRIPTS) + "/", "") if found else ""

    # --- the end

    def _marked(self) -> dict[int, str]:
        mark, found = f"CELL_ID={self._id}".encode(), {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in {each.pid for each in self._beside}:
                with suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                        found[int(entry.name)] = words.decode(errors="replace").strip()
        return found

    def _left(self) -> list[str]:
        """Return what is still there some seconds after the end."""
        end_s = SYSTEM_CLOCK.monotonic_s() + 5.0
        while (left := self._marked()) and SYSTEM_CLOCK.monotonic_s() < end_s:
            WaitBudget().sleep(0.1)
        return sorted(left.values())

    def _end_all(self) -> None:
        for process in (*self._agents.values(), *self._beside):
            _kill(process.pid)
            process.wait()
        while left := self._marked():
            for pid in left:
                _kill(pid)
            WaitBudget().sleep(0.05)


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
