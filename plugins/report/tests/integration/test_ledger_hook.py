"""The hook `ledger`: nothing in the first half second, one wake-up a minute, and what it writes, publishes, offers."""

import json
import subprocess
import sys
import threading

import pytest
from msgspec.structs import replace

from elastic_core.api import SYSTEM_CLOCK, AgentStarted, AgentStopped, HookSettings, WorkersStarted, WorkersStarting
from elastic_core.api.feed import Answer, ChosenOption, RunEvent
from elastic_core.api.tools import AgentIdentity
from elastic_core.rundir.run_records import RunRecord
from elastic_plugin_kit import AgentHookConformance, FakeRun, ManualClock, sample_feed, sample_round
from elastic_report.ledger import writer as writer_module
from elastic_report.ledger.attempts import attempts_before, high_step_of
from elastic_report.ledger.document import LEDGER_FILE, Alive, Begin, Progress, RoundLine, Span, WorkerLine
from elastic_report.ledger.hook import BEGIN_AFTER_S, LedgerHook
from elastic_report.ledger.reading import decode_ledger, read_ledger
from elastic_report.ledger.recorder import SOON_S, TICK_S, TOPIC, Recorder, begin_line
from elastic_report.ledger.states import LedgerState as S
from elastic_report.ledger.totals import totals_of
from support import wait_for

START_NS = 1_700_000_000_000_000_000
BEGIN = Begin(run_id="bert-7", node_id="n0", host="h", incarnation="x", pid=1, started_s=0.0, started_ns=START_NS)
SETTINGS = HookSettings(name="ledger", run_id="bert 7", node_id="n0", run_dir="", backend="local", own_process=False)


class Case:
    """A recorder with a clock of the test's, and a fake run."""

    def __init__(self, place):
        self.clock = ManualClock()
        self.run = FakeRun()
        self.place = place
        self.run.directory = str(place / "run")
        self.run.record_directory = str(place / "record")
        (place / "run").mkdir()
        (place / "record").mkdir()
        self.requests = []
        self.workers = {}
        self.run.offered["planned-stops-progress"] = self.answer
        self.recorder = Recorder(BEGIN, self.run, clock=self.clock)

    def answer(self, parameters):
        self.requests.append(dict(parameters))
        return Answer(content=json.dumps({"workers": self.workers}))

    def wait(self, seconds):
        """Let time pass, with the timers that are due."""
        end_s = self.clock.monotonic_s() + seconds
        while due := [each for each in self.run.timers if each.at_s <= end_s and not each.cancelled]:
            timer = min(due, key=lambda each: each.at_s)
            self.clock.advance(timer.at_s - self.clock.monotonic_s())
            self.run.pass_time(timer.at_s - self.run.now_s)
        self.clock.advance(end_s - self.clock.monotonic_s())
        self.run.pass_time(end_s - self.run.now_s)

    def add(self, name, values=None):
        now_s = self.clock.monotonic_s()
        event = RunEvent(name=name, at_s=now_s, at_ns=START_NS + round(now_s * 1e9), values=values or {})
        self.recorder.observe((event,))

    def step(self, state, event="X", **values):
        self.add("step", {"event": event, "state": state, "state_reason": "", "entered": True, "phases": ()} | values)

    def begin_round(self, index=0, workers=1):
        round_ = sample_round(index=index, local_world_size=workers)
        self.step("preparing", "RoundFormed", round=round_)
        self.add("round_joined", {"round": round_, "members": ()})
        self.add("workers_started", {"round": round_, "pids": tuple(range(7, 7 + workers))})
        self.step("running")

    @property
    def timers(self):
        return [each for each in self.run.timers if not each.cancelled]

    def live(self):
        content = json.loads(self.recorder.answer(lines=True))
        return content, decode_ledger(content["lines"].encode(), where="here")

    def file(self):
        return self.place / "run" / LEDGER_FILE

    def written(self):
        """Whether no write is due. The end of a run waits for that with a time limit, which a busy disk may exceed."""
        return not self.recorder._file._writing


@pytest.fixture
def case(tmp_path):
    return Case(tmp_path)


def test_progress_is_read_once_soon_then_each_minute_and_only_while_workers_run(case):
    case.wait(3600)
    assert case.timers == []
    case.step("joining")
    case.wait(3600)
    assert case.timers == []
    case.begin_round()
    soon, timer = case.timers
    assert soon.at_s == case.run.now_s + SOON_S
    assert timer.period_s == TICK_S == 60.0
    case.workers = {0: {"alive_s": 7205, "first_step": 1, "first_step_s": 7210, "step": 400, "step_s": 7790}}
    before = len(case.requests)
    case.wait(SOON_S)
    assert len(case.requests) - before == 1
    case.wait(590)
    assert len(case.requests) - before == 11
    _, ledger = case.live()
    assert sum(isinstance(line, Alive) for line in ledger.lines) == 12
    assert [line.step for line in ledger.lines if isinstance(line, Progress)] == [400] * 11
    case.step("stopping")
    case.step("gating", "WorkersStopped")
    before = len(case.requests)
    case.wait(3600)
    assert (case.timers, len(case.requests) - before) == ([], 0)


def test_fields_are_published_when_the_state_changes(case):
    case.step("joining")
    case.wait(5)
    case.begin_round()
    case.workers = {0: {"alive_s": 6, "first_step": 1, "first_step_s": 15, "step": 400, "step_s": 165}}
    case.wait(200)
    wait_for(lambda: case.run.fields.get("state") == "productive")
    case.recorder.publish()  # the thread that writes may have done so while the test's time went on
    fields = case.run.fields
    assert fields["goodput"] == pytest.approx(190 / 205, abs=0.001)
    assert (fields["rendezvous_s"], fields["starting_s"], fields["step"]) == (5.0, 10.0, 400)
    assert fields["steps_per_s"] == pytest.approx(399 / 150, rel=0.01)
    assert "goodput_at_most" not in fields
    parts = ("rendezvous_s", "starting_s", "productive_s")
    assert fields["present_s"] == sum(value for name, value in fields.items() if name in parts)
    assert all(isinstance(value, str | int | float) for value in fields.values())


def test_metrics_are_recorded_when_they_change(case):
    case.wait(5)
    case.begin_round()
    case.workers = {0: {"alive_s": 6, "first_step": 1, "first_step_s": 15, "step": 400, "step_s": 165}}
    case.wait(60)
    case.add("agent_stopped", {"outcome": "succeeded", "exit_code": 0, "reason": ""})
    values = {values["name"]: values["value"] for name, values in case.run.events if name == "metric"}
    assert values == {
        'elastic_goodput_ratio{formula="google"}': pytest.approx(50 / 65, abs=0.001),
        'elastic_goodput_ratio{formula="nvidia"}': 1.0,
        'elastic_lost_seconds_total{cause="rendezvous"}': 5.0,
        'elastic_lost_seconds_total{cause="starting"}': 10.0,
    }
    count = len(case.run.events)
    case.recorder.publish()
    assert len(case.run.events) == count


def test_a_live_ledger_has_the_workers_that_run_and_the_state_now(case):
    case.wait(5)
    case.begin_round(workers=2)
    case.wait(95)
    content, ledger = case.live()
    assert (content["state"], content["present_s"]) == ("productive", 100.0)
    assert [line.end_s for line in ledger.lines if isinstance(line, WorkerLine)] == [None, None]
    assert totals_of(ledger).states == {S.RENDEZVOUS: 5.0, S.PRODUCTIVE: 95.0}
    assert ledger.end is None


def test_nodes_agree_on_the_highest_step_and_workers_pages_get_it(case):
    case.begin_round()
    assert case.run.stated == {TOPIC: 0}
    case.add("agreed", {"topic": TOPIC, "value": 0})
    assert {} in case.requests or case.requests == []
    case.workers = {0: {"alive_s": 1, "first_step": 0, "first_step_s": 1, "step": 41, "step_s": 2}}
    case.wait(10)
    case.step("stopping")
    case.step("gating", "WorkersStopped")
    case.begin_round(1)
    assert case.run.stated == {TOPIC: 42}
    assert case.requests[-1] == {"above": "41"}
    case.add("agreed", {"topic": TOPIC, "value": 101})
    assert case.requests[-1] == {"above": "100"}
    case.workers = {0: {"first_step": 38, "first_step_s": 12, "step": 140, "step_s": 19, "above_s": 17}}
    case.wait(10)
    case.step("leaving")
    _, ledger = case.live()
    assert [line.high_step for line in ledger.lines if isinstance(line, RoundLine)] == [None, 41]
    assert totals_of(ledger).states[S.REDONE] == 5.0


def test_progress_that_is_overwritten_by_the_next_round_was_read_before(case):
    case.begin_round()
    case.wait(10)
    case.workers = {0: {"alive_s": 3, "first_step": 0, "first_step_s": 4, "step": 9, "step_s": 9}}
    case.recorder.before_start(0)
    case.workers = {}
    case.step("stopping")
    case.step("gating", "WorkersStopped")
    _, ledger = case.live()
    assert [line.last_step for line in ledger.lines if isinstance(line, WorkerLine)] == [9]
    assert totals_of(ledger).states[S.STARTING] == 4.0


def test_the_schedulers_time_is_added_to_the_first_line(case):
    case.wait(10)
    case.add("queued", {"since_ns": START_NS - 60 * 10**9, "job": "slurm 4711"})
    _, ledger = case.live()
    assert (ledger.begin.queued_ns, ledger.begin.job) == (START_NS - 60 * 10**9, "slurm 4711")
    assert totals_of(ledger).states == {S.QUEUED: 60.0, S.RENDEZVOUS: 10.0}


def test_at_the_end_the_file_and_the_incidents_stay_if_the_directory_goes(case):
    (case.place / "run" / "incident-0.json").write_text("{}")
    (case.place / "run" / "other.txt").write_text("x")
    case.wait(3)
    case.recorder.close(3.0, kept=False)
    wait_for(case.written)
    assert sorted(path.name for path in (case.place / "record").iterdir()) == ["incident-0.json", LEDGER_FILE]
    assert totals_of(read_ledger(case.place / "record" / LEDGER_FILE)).present_s == 3.0
    assert not case.file().exists()


def test_if_the_directory_is_kept_both_have_the_file(case):
    case.wait(3)
    case.step("joining")
    wait_for(case.file().exists)
    case.recorder.close(3.0, kept=True)
    wait_for(case.written)
    assert case.file().read_bytes() == (case.place / "record" / LEDGER_FILE).read_bytes()
    assert read_ledger(case.file()).end is not None
    assert case.file().stat().st_mode & 0o777 == 0o600


def test_a_file_that_vanished_is_written_anew(case):
    case.step("joining")
    wait_for(lambda: case.file().exists() and case.written())
    case.file().unlink()
    case.wait(1)
    case.step("refused")
    wait_for(case.file().exists)
    ledger = read_ledger(case.file())
    assert [type(line).__name__ for line in ledger.lines] == ["Span"]


def test_a_disk_that_stalls_blocks_nothing(case, monkeypatch):
    release, began = threading.Event(), threading.Event()

    def stall(path, content):
        began.set()
        release.wait(60)

    monkeypatch.setattr(writer_module, "replace_file", stall)
    case.step("joining")
    assert began.wait(20)
    for _ in range(100):
        case.wait(1)
        case.step("refused")
        case.step("joining")
    assert case.live()[1].torn == 0
    file = case.recorder._file
    file.close(kept=True, within_s=0.1)
    assert file._writing
    release.set()
    wait_for(lambda: not file._writing)


def test_a_disk_that_fails_is_one_line(case):
    case.run.directory = str(case.place / "missing")
    case.step("joining")
    wait_for(lambda: case.run.notices)
    case.wait(1)
    case.step("refused")
    case.recorder.close(2.0, kept=True)
    wait_for(case.written)
    assert case.run.notices == ["the time ledger could not be written (No such file or directory)"]


# --- the hook itself


def hook_with(place):
    hook = LedgerHook(SETTINGS)
    hook.run = FakeRun()
    hook.run.directory, hook.run.record_directory = str(place / "run"), str(place / "record")
    (place / "run").mkdir()
    (place / "record").mkdir()
    return hook


def test_a_whole_feed_with_events_of_other_versions(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    hook = hook_with(tmp_path)
    hook.on_agent_started(AgentStarted(run_id="bert 7", node_id="n0", run_dir="", pid=1))
    hook.run.pass_time(BEGIN_AFTER_S)
    *events, closed = sample_feed(run_dir=str(tmp_path / "run"))
    for event in events:
        hook.on_run_event(event)
    wait_for(lambda: hook._recorder and not hook._preparing)  # the end waits for it with a time limit
    hook.on_run_event(closed)
    wait_for(lambda: not hook._recorder._file._writing)
    ledger = read_ledger(tmp_path / "record" / LEDGER_FILE)
    assert ledger.end is not None
    assert totals_of(ledger).present_s > 0
    assert [line for line in ledger.lines if isinstance(line, Span)]


def test_it_begins_after_half_a_second_on_a_thread_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    hook = hook_with(tmp_path)
    now_s = SYSTEM_CLOCK.monotonic_s()
    hook.on_agent_started(AgentStarted(run_id="bert 7", node_id="n0", run_dir="", pid=1))
    first = {"node_id": "n0", "pid": 1}
    hook.on_run_event(RunEvent(name="agent_started", at_s=now_s, at_ns=SYSTEM_CLOCK.wall_ns(), values=first))
    hook.run.pass_time(0.49)
    assert hook._recorder is None
    assert [*(tmp_path / "run").iterdir()] == []
    hook.run.pass_time(0.02)
    wait_for((tmp_path / "run" / LEDGER_FILE).exists)
    assert json.loads(hook.run.offered["ledger"]({}).content)["state"] == "rendezvous"


AGE = """
import time
from elastic_report.ledger.facts import process_age_s
age_s = process_age_s()
print(time.monotonic() - age_s)
"""


def test_a_process_that_begins_after_another_one_has_ended_is_not_older():
    for _ in range(5):
        before_s = SYSTEM_CLOCK.monotonic_s()
        ended = subprocess.run([sys.executable, "-c", AGE], capture_output=True, text=True, check=True)
        assert before_s - 0.001 <= float(ended.stdout) <= SYSTEM_CLOCK.monotonic_s()


def test_other_hooks_load_what_their_progress_needs_before_the_run_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    hook = hook_with(tmp_path)
    asked = []

    def progress(parameters):
        asked.append(dict(parameters))
        return Answer(content='{"workers": {}}', content_type="application/json")

    hook.run.offered["heartbeats-progress"] = progress
    hook.on_agent_started(AgentStarted(run_id="bert 7", node_id="n0", run_dir="", pid=1))
    hook.run.pass_time(0.49)
    assert asked == []
    hook.run.pass_time(0.02)
    wait_for(lambda: asked == [{}])


LOADS = """
import sys
import elastic_core.api.feed
before = set(sys.modules)
from elastic_report.ledger.hook import BEGIN_AFTER_S, LedgerHook
print(*sorted(set(sys.modules) - before))
"""


def test_the_start_of_a_run_loads_the_hooks_module_only():
    loaded = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == ["elastic_report", "elastic_report.ledger", "elastic_report.ledger.hook"]


def test_the_printed_command_takes_a_run_id_that_begins_with_a_dash_for_no_option(tmp_path):
    hook = hook_with(tmp_path)
    hook.settings = replace(SETTINGS, run_id="-x y")
    hook.on_workers_started(WorkersStarted(round=sample_round(), pids=(7,)))
    hook.on_agent_stopped(AgentStopped(exit_code=1, reason="", outcome="failed"))
    assert hook.run.notices == ["report: elastic report -- '-x y'"]


@pytest.mark.parametrize(
    ("outcome", "rank", "lines"),
    [("failed", 0, ["report: elastic report 'bert 7'"]), ("failed", 1, []), ("succeeded", 0, []), ("stopped", 0, [])],
)
def test_a_failed_run_prints_how_to_get_its_report(tmp_path, outcome, rank, lines):
    hook = hook_with(tmp_path)
    hook.on_workers_started(WorkersStarted(round=sample_round(node_rank=rank, node_count=2), pids=(7,)))
    hook.on_workers_starting(WorkersStarting(round=sample_round(), restart_count=0))
    hook.on_agent_stopped(AgentStopped(exit_code=1, reason="", outcome=outcome))
    assert hook.run.notices == lines


def test_the_first_line_has_options_versions_and_the_machine(tmp_path):
    run = FakeRun()
    run.chosen = (ChosenOption(name="max_restarts", value="3", origin="flag --max-restarts"),)
    at_ns = SYSTEM_CLOCK.wall_ns()
    first = RunEvent(name="agent_started", at_s=SYSTEM_CLOCK.monotonic_s(), at_ns=at_ns, values={"node_id": "n7"})
    begin = begin_line(SETTINGS, run, first)
    assert begin.node_id == "n7"
    assert begin.started_ns == at_ns
    assert begin.options == (("max_restarts", "3", "flag --max-restarts"),)
    assert {"python", "kernel", "elastic-core"} <= set(begin.versions)
    assert {"processors", "memory"} <= set(begin.machine)


# --- earlier attempts


def record(run_id="bert-7", *, began, ended=0, outcome="", files="", pid=1 << 22):
    agent = AgentIdentity(pid=pid, started_ns=began)
    return RunRecord(
        run_id=run_id, node_id="n", script="", run_dir="", agent=agent, ended_ns=ended, outcome=outcome, files=files
    )


def test_attempts_are_those_since_the_last_success():
    own = AgentIdentity.own(host="h", started_ns=70)
    running = RunRecord(run_id="bert-7", node_id="n", script="", run_dir="", agent=own)
    records = [
        record(began=10, ended=20, outcome="failed"),
        record(began=30, ended=40, outcome="succeeded"),
        record(began=50, ended=60, outcome="failed"),
        record("other", began=51, ended=61, outcome="succeeded"),
        record("bert", began=52, ended=60, outcome="failed"),
        record(began=62),
        running,
        record(began=80, ended=120, outcome="failed"),
    ]
    found = attempts_before(records, "bert-7", began_ns=100)
    assert [each.agent.started_ns for each in found] == [62, 50]


def test_their_highest_step_is_in_their_ledgers(tmp_path):
    lines = [
        b'{"kind":"begin","run_id":"r","node_id":"n","host":"h","incarnation":"","pid":1,"started_s":0,"started_ns":0}',
        b'{"kind":"progress","at_s":1,"step":40}',
        b'{"kind":"worker","local_rank":0,"global_rank":0,"pid":1,"round":0,"begin_s":0,"last_step":44}',
    ]
    (tmp_path / LEDGER_FILE).write_bytes(b"\n".join(lines))
    records = [record(began=1, ended=2, files=str(tmp_path)), record(began=3, ended=4, files=str(tmp_path / "gone"))]
    assert high_step_of(records) == 44
    assert high_step_of(records[1:]) is None


class TestLedgerHook(AgentHookConformance):
    """The kit's checks."""

    @pytest.fixture
    def make_hook(self):
        return lambda run_dir: LedgerHook(HookSettings(name="ledger", run_id="r", run_dir=run_dir))


@pytest.mark.parametrize("kept", [False, True])
def test_a_success_within_half_a_second_has_a_ledger_only_if_its_directory_is_kept(tmp_path, kept):
    hook = LedgerHook(SETTINGS)
    hook.run = FakeRun()
    hook.run.directory, hook.run.record_directory = str(tmp_path), str(tmp_path / "record")
    hook.on_agent_started(AgentStarted(run_id="bert 7", node_id="n0", run_dir=str(tmp_path), pid=7))
    hook.on_run_event(RunEvent(name="agent_started", at_s=1.0, at_ns=START_NS, values={"node_id": "n0", "pid": 7}))
    hook.on_run_event(RunEvent(name="feed_closed", at_s=1.2, at_ns=START_NS, values={"run_dir_kept": kept}))
    if kept:
        wait_for(lambda: not hook._recorder._file._writing)
    assert (tmp_path / LEDGER_FILE).exists() is kept
    assert not list(tmp_path.glob("record/*")) or kept


def test_a_request_without_lines_gets_the_fields_alone(tmp_path):
    case = Case(tmp_path)
    case.begin_round()
    with_lines, fields = (json.loads(case.recorder.answer(lines=lines)) for lines in (True, False))
    assert with_lines.keys() - fields.keys() == {"lines"}
    assert fields["state"] == "starting"
