"""Runs whose scripts write when each thing happened, and what the report of such a run has to show.

Truth is written by the workers (`TRUTH`, a module beside each script) and by the test for what it does itself. All
clocks are those of this host. An event whose time the script cannot know exactly has a begin and an end, and a figure
may lie anywhere between.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from elastic_core.api.tools import duration_text
from elastic_report.ledger.states import LedgerState as S
from patience import patience
from support import wait_for

SLACK_S: Final = 0.2
"""What an agent may take to notice something, and a worker between two lines."""
TRUTH = """
import json, os, pathlib, signal, sys, time
env = os.environ
_file = open(pathlib.Path(__file__).with_name("truth.jsonl"), "a", buffering=1)
rank, restart, node = int(env["RANK"]), int(env["TORCHELASTIC_RESTART_COUNT"]), env.get("ELASTIC_NODE_ID", "")
place, count = pathlib.Path(__file__).parent, int(env["ELASTIC_ROUND"])

def note(what, **more):
    now = {"s": time.monotonic(), "ns": time.time_ns()}
    line = {"what": what, "rank": rank, "restart": restart, "round": count, "node": node}
    _file.write(json.dumps(line | now | more) + chr(10))

def stop(signum, frame):
    note("stop signal")
    time.sleep(STOP_S)
    note("exit")
    os._exit(0)

STOP_S = 0.3
signal.signal(signal.SIGTERM, stop)
_ticks = int(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
_age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - _ticks / os.sysconf("SC_CLK_TCK")
note("born", s=time.monotonic() - _age_s)  # at most a clock tick too early
note("alive")
"""


@dataclass(frozen=True)
class Event:
    """Something that happened in a worker."""

    what: str
    rank: int
    restart: int
    round: int
    node: str
    s: float
    ns: int
    step: int = -1


class Truth:
    """The events of a run, in order of time."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = sorted(events, key=lambda event: event.s)

    def of(self, what: str, **wanted: Any) -> list[Event]:
        """Return the events of this name with these values."""
        return [
            event
            for event in self.events
            if event.what == what and all(getattr(event, name) == value for name, value in wanted.items())
        ]

    def one(self, what: str, **wanted: Any) -> Event:
        """Return the only event of this name with these values."""
        (event,) = self.of(what, **wanted)
        return event

    @property
    def highest_step(self) -> dict[int, int]:
        """The highest step that any worker reported, by round."""
        found: dict[int, int] = {}
        for event in self.of("step"):
            found[event.round] = max(event.step, found.get(event.round, -1))
        return found

    def states(self, round_: int, begin_s: float, end_s: float, *, high: int = -1, node: str = "") -> dict[S, float]:
        """Return the seconds of each state of a node's workers, by the ledger's published definitions."""
        workers = [
            _Course([event for event in self.events if (event.rank, event.round) == (rank, round_)], high)
            for rank in sorted({e.rank for e in self.events if e.round == round_ and (not node or e.node == node)})
        ]
        moments = {begin_s, end_s, *(moment for worker in workers for moment in worker.moments)}
        found: dict[S, float] = {}
        for low_s, high_s in pairwise(sorted(each for each in moments if begin_s <= each <= end_s)):
            states = {worker.state((low_s + high_s) / 2) for worker in workers}
            state = min(states, key=list(S).index)
            found[state] = found.get(state, 0.0) + high_s - low_s
        return found


class _Course:
    """One worker of one round."""

    def __init__(self, events: Sequence[Event], high: int) -> None:
        steps = [event for event in events if event.what == "step"]
        above = [event for event in steps if event.step > high]
        self.first_s = steps[0].s if steps else float("inf")
        self.above_s = above[0].s if above else float("inf")
        self.marks = [
            (state, begin.s, next((e.s for e in events if e.what == f"{word} ended" and e.s > begin.s), float("inf")))
            for word, state in (("save", S.SAVING), ("restore", S.RESTORING))
            for begin in events
            if begin.what == f"{word} begins"
        ]
        self.moments = [self.first_s, self.above_s, *(s for _, low, high in self.marks for s in (low, high))]

    def state(self, at_s: float) -> S:
        for state, low_s, high_s in self.marks:
            if low_s <= at_s < high_s:
                return state
        if at_s < self.first_s:
            return S.STARTING
        return S.REDONE if at_s < self.above_s else S.PRODUCTIVE


@dataclass
class Agent:
    """One `elastic run`: its process, when it began and ended, and what it printed."""

    process: subprocess.Popen[str]
    node: str
    before_s: float
    started_s: float
    ended_s: float = 0.0
    text: str = ""

    def end(self, code: int) -> None:
        """Wait for the end, with this exit code."""
        self.text = self.process.communicate(timeout=120)[1]
        self.ended_s = time.monotonic()
        assert self.process.returncode == code, self.text

    @property
    def present_s(self) -> float:
        """From the start of its process to its end."""
        return self.ended_s - self.before_s


class Place:
    """A folder with scripts, in which runs leave everything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temp = folder / "temp"
        self.temp.mkdir()
        self.agents: list[Agent] = []
        self.script("truth.py", TRUTH)

    def script(self, name: str, text: str) -> None:
        """Write a file."""
        (self.folder / name).write_text(text)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of each command: what a run leaves on the machine is in this folder."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ELASTIC_", "TORCHELASTIC_"))}
        return {**inherited, "TMPDIR": str(self.temp), "XDG_RUNTIME_DIR": "", "TZ": "UTC"}

    def start(self, *words: object, node: str = "n0", **variables: str) -> Agent:
        """Start `elastic run`."""
        before_s = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "elastic_core", "run", "--node-id", node, *map(str, words)],
            cwd=self.folder, env=self.environment | variables, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        agent = Agent(process, node, before_s, time.monotonic())
        self.agents.append(agent)
        return agent

    def run(self, code: int, *words: object, **variables: str) -> Agent:
        """Play a run to its end."""
        agent = self.start(*words, **variables)
        agent.end(code)
        return agent

    def elastic(self, *words: object, code: int = 0) -> str:
        """Return what a command prints on stdout."""
        ended = subprocess.run(
            [sys.executable, "-m", "elastic_core", *map(str, words)],
            env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert ended.returncode == code, (ended.stdout[-2000:], ended.stderr)
        return ended.stdout

    def report(self, *words: object) -> tuple[dict[str, Any], str]:
        """Return a report as JSON and as a page."""
        page = self.folder / "page.html"
        return json.loads(self.elastic("report", "--json", "-o", page, *words)), page.read_text()

    def truth(self) -> Truth:
        """Return what the workers wrote so far."""
        try:
            lines = (self.folder / "truth.jsonl").read_text().splitlines()
        except FileNotFoundError:
            lines = []
        return Truth(Event(**json.loads(line)) for line in lines)

    def until(self, what: str, **wanted: Any) -> Event:
        """Wait until a worker has written an event, and return the first of these."""
        return wait_for(lambda: self.truth().of(what, **wanted), within_s=60, what=what)[0]  # type: ignore[index]

    def close(self) -> None:
        """End what still runs."""
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.process.send_signal(signal.SIGTERM)
                try:
                    agent.process.communicate(timeout=20)
                except subprocess.TimeoutExpired:
                    agent.process.kill()
                    agent.process.communicate()


def of_other_host(value: Any, host: str, wall_s: float, uptime_s: float) -> Any:
    """Return JSON content as another host would have written it, with these differences of its clocks."""
    if isinstance(value, list):
        return [of_other_host(each, host, wall_s, uptime_s) for each in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for name, each in value.items():
        if name in ("host", "boot_id"):
            found[name] = f"{name} of {host}"
        elif name.endswith("_ns") and type(each) is int and each > 10**18:
            found[name] = each + round(wall_s * 1e9)
        elif name in ("at_s", "begin_s", "end_s", "started_s") and each is not None and "kind" in value:
            found[name] = each + uptime_s
        elif name == "marks":
            found[name] = [[kind, begin_s + uptime_s, end_s + uptime_s] for kind, begin_s, end_s in each]
        else:
            found[name] = of_other_host(each, host, wall_s, uptime_s)
    return found


def collect(run_dir: Path, into: Path, *, wall_s: float, uptime_s: float) -> None:
    """Copy a run directory as from another host, with these differences of its wall clock and its monotonic clock."""
    into.mkdir(parents=True)
    for path in run_dir.iterdir():
        if path.suffix in (".json", ".jsonl"):
            parts = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
            moved = [json.dumps(of_other_host(json.loads(part), into.name, wall_s, uptime_s)) for part in parts]
            (into / path.name).write_text("".join(line + "\n" for line in moved))


# --- what a report shows


def check_sums(report: Mapping[str, Any]) -> None:
    """Fail unless each second of each node is in one state, without gaps, and the account has all of them."""
    for lane in report["nodes"]:
        at_s = lane["begin_s"]
        for _, begin_s, end_s, *_ in lane["spans"]:
            assert begin_s == pytest.approx(at_s, abs=1e-6)
            assert end_s >= begin_s
            at_s = end_s
        assert at_s == pytest.approx(lane["end_s"], abs=1e-6)
        assert sum(lane["states"].values()) == pytest.approx(lane["end_s"] - lane["begin_s"], abs=1e-6)
    account = report["account"]
    assert account["present_s"] == pytest.approx(sum(account["states"].values()), abs=1e-6)
    for state, seconds in account["states"].items():
        assert seconds == pytest.approx(sum(lane["states"].get(state, 0.0) for lane in report["nodes"]), abs=1e-6)


def check_near(found: float, low: float, high: float, what: object, slack_s: float = SLACK_S) -> None:
    """Fail unless a figure lies where the truth leaves it open.

    The slack is that of an idle machine: a busy one makes agents, workers and tests late.
    """
    slack_s = patience(slack_s)
    assert low - slack_s <= found <= high + slack_s, f"{what}: {found:.3f} is not in {low:.3f}..{high:.3f}"


def at_s(report: Mapping[str, Any], event: Event) -> float:
    """Return an event's time as the report counts it."""
    return (event.ns - report["run"]["began_ns"]) / 1e9


def seconds_of(text: str) -> float:
    """Return the seconds of a text such as `2 min 5 s`."""
    sizes = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
    found = re.findall(r"([\d.]+) (min|s|h|d)\b", text)
    assert found, text
    return sum(float(number) * sizes[unit] for number, unit in found)


class Shown:
    """The figures of a page as a reader sees them in a browser."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def _rows(self, selector: str) -> list[list[str]]:
        return self.page.evaluate(  # also those of tables that are folded
            "selector => [...document.querySelectorAll(selector)]"
            ".map(row => [...row.children].map(cell => cell.textContent.trim()))",
            selector,
        )

    def _times(self, selector: str) -> list[float]:
        """Return the times of the first `time` element of each row, in seconds since the Unix epoch."""
        return self.page.evaluate(
            "selector => [...document.querySelectorAll(selector)]"
            ".map(row => Date.parse(row.querySelector('time').dateTime) / 1000)",
            selector,
        )

    @property
    def states(self) -> dict[str, str]:
        """The ledger's table: the time of each state."""
        return {row[0]: row[1] for row in self._rows("#ledger-table tbody tr")}

    @property
    def present_s(self) -> float:
        return seconds_of(self._rows("#ledger-table tfoot tr")[0][1])

    @property
    def events(self) -> list[tuple[float, str, str]]:
        """The timeline's table: time since the Unix epoch, name without its sign, text."""
        rows, times = self._rows("#events tbody tr"), self._times("#events tbody tr")
        return [(at, re.sub(r"^\W+", "", row[2]), row[5]) for at, row in zip(times, rows, strict=True)]

    @property
    def rounds(self) -> list[list[str]]:
        return self._rows("#rounds tbody tr")

    def incident(self, number: int) -> dict[str, str]:
        """Return an incident's figures by their names, and its time as `at`."""
        article = f"#incident-{number}"
        cells = self._rows(f"{article} .spans > div")
        return dict(cells) | {"at": str(self._times(article)[0])}

    def text_of(self, selector: str) -> str:
        return self.page.evaluate("selector => document.querySelector(selector).textContent", selector)

    @property
    def text(self) -> str:
        return self.text_of("body")


def check_page(shown: Shown, report: Mapping[str, Any]) -> None:
    """Fail unless the page's tables show the JSON's figures."""
    account = report["account"]
    unknown = account["redone_bound_s"] >= 1
    for state, seconds in account["states"].items():
        if not (unknown and state in ("productive", "redone")):
            assert shown.states[state] == duration_text(seconds) or seconds < 0.0005, state
    assert shown.present_s == pytest.approx(account["present_s"], rel=0.01)
    rows = [row for row in shown.rounds if row]
    assert len(rows) == len(report["rounds"])
    began_s = report["run"]["began_ns"] / 1e9
    expected = sorted((began_s + event["at_s"], event["text"]) for event in report["events"])
    for (_, _, text), event in zip(shown.events, report["events"], strict=True):
        number = f" incident {event['incident']}" if event["incident"] else ""
        assert text == event["text"] + number
    assert [at for at, _, _ in shown.events] == pytest.approx([at for at, _ in expected], abs=0.002)
