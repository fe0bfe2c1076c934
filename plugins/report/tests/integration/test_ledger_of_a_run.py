"""The ledger of real runs: known times, the page of `elastic status`, metrics, and incidents."""

import json
import os
import subprocess
import sys
import urllib.request

import pytest

from elastic_report.ledger.document import LEDGER_FILE, RoundLine, WorkerLine
from elastic_report.ledger.reading import read_ledger
from elastic_report.ledger.states import LedgerState as S
from elastic_report.ledger.totals import totals_of
from patience import patience
from ports import free_port
from support import wait_for

KNOWN = """
import os, pathlib, time
from elastic_train import restoring, saving, should_stop
again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
def meet(where):  # the least advanced worker counts, and on a busy machine one may start long before the other
    names = [f"{where} {rank} {again}" for rank in range(int(os.environ["WORLD_SIZE"]))]
    pathlib.Path(names[int(os.environ["RANK"])]).touch()
    while not all(map(os.path.exists, names)):
        time.sleep(0.001)
meet("begins")
time.sleep(0.3)
meet("restores")
with restoring():
    time.sleep(0.4)
time.sleep(0.2)
meet("trains")
for step in range(10 if again else 0, 30):
    should_stop(step=step)
    time.sleep(0.05)
    if step == 10 and not again:
        with saving():
            time.sleep(0.6)
    if step == 20 and not again:
        meet("fails")  # the first that fails has the others stopped
        raise ValueError("boom")
"""
WAITS = """
import pathlib, time
from elastic_train import should_stop
pathlib.Path("started").touch()
step = 0
while not pathlib.Path("finish").exists():
    if pathlib.Path("train").exists():
        should_stop(step=step)
        step += 1
    time.sleep(0.05)
"""

FAILS = """
import json, time
from contextlib import suppress
fields = {}
# It begins after half a second. If the workers begin later than that, on a busy machine, it is shown with their times
# after ten seconds.
while not fields.get("ledger", {}).get("starting_s"):
    time.sleep(0.05)
    with suppress(FileNotFoundError), open("run/status.json") as file:
        fields = json.load(file)["hooks"]
raise ValueError("boom")
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "temp").mkdir()
    (tmp_path / "known.py").write_text(KNOWN)
    (tmp_path / "waits.py").write_text(WAITS)
    return tmp_path


def environment(place):
    return {**os.environ, "TMPDIR": str(place / "temp"), "XDG_RUNTIME_DIR": ""}


def elastic(place, *words):
    command = [sys.executable, "-m", "elastic_core", *map(str, words)]
    return subprocess.run(command, env=environment(place), cwd=place, capture_output=True, text=True, timeout=120)


def test_known_times_are_those_of_the_ledger(place):
    ended = elastic(place, "run", "--max-restarts", 1, "--nproc-per-node", 2, "known.py")
    assert ended.returncode == 0, ended.stderr
    (path,) = place.glob(f"temp/elastic-*/index/*/{LEDGER_FILE}")
    ledger = read_ledger(path)
    states = totals_of(ledger).states
    for state, least_s in (
        (S.SAVING, 0.6),
        (S.RESTORING, 0.7),
        (S.REDONE, 0.55),
        (S.PRODUCTIVE, 1.4),
        (S.STARTING, 0.9),
    ):
        assert least_s - 0.05 <= states[state] <= least_s + patience(2.0), (state, states)
    workers = [line for line in ledger.lines if isinstance(line, WorkerLine)]
    assert [(line.first_step, line.last_step) for line in workers] == [(0, 20), (0, 20), (10, 29), (10, 29)]
    assert [[mark[0] for mark in line.marks] for line in workers] == [["restore", "save"]] * 2 + [["restore"]] * 2
    assert [line.high_step for line in ledger.lines if isinstance(line, RoundLine)] == [None, 20]
    assert sorted(each.name for each in path.parent.iterdir()) == ["incident-0.json", "incident.json", LEDGER_FILE]


def test_the_status_of_an_ended_run_has_the_final_figures(place):
    ended = elastic(place, "run", "--max-restarts", 1, "--run-dir", "run", "known.py")
    assert ended.returncode == 0, ended.stderr
    fields = json.loads(elastic(place, "status", "--json", "./run").stdout)["runs"][0]["hooks"]["ledger"]
    states = totals_of(read_ledger(place / "run" / LEDGER_FILE)).states
    for state, seconds in states.items():
        if state is not S.STOPPING:  # the agent goes on leaving
            assert fields[f"{state.value.replace(' ', '_')}_s"] == pytest.approx(seconds, abs=0.06)
    assert fields["step"] == 29


def test_the_status_and_the_metrics_of_a_run_show_where_the_time_goes(place):
    port = free_port()
    words = ["run", "--run-dir", "run", "--metrics-port", str(port), "waits.py"]
    run = subprocess.Popen([sys.executable, "-m", "elastic_core", *words], env=environment(place), cwd=place)
    try:
        wait_for((place / "started").exists)
        wait_for(lambda: "time: " in elastic(place, "status", "./run").stdout)

        def fields_of_starting():
            fields = json.loads(elastic(place, "status", "--json", "./run").stdout)["runs"][0]["hooks"]["ledger"]
            return fields if fields["state"] == "starting" else None

        fields = wait_for(fields_of_starting)
        assert 0 <= fields["goodput"] <= 1

        def shown():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                return answer.read().decode()

        # A state is counted once it is over, at the latest after a minute, or when somebody reads a report. (The
        # rendezvous of one node is over, but it may have taken 0.0 s.)
        (place / "train").touch()
        counted = 'elastic_lost_seconds_total{cause="starting"}'
        wait_for(lambda: elastic(place, "report", "--json", "./run").returncode == 0 and counted in shown())
        text = shown()
        assert 'elastic_goodput_ratio{formula="google"}' in text
        assert 'elastic_goodput_ratio{formula="nvidia"}' in text
        assert "# TYPE elastic_lost_seconds_total counter" in text
        (place / "finish").touch()
        assert run.wait(timeout=60) == 0
    finally:
        run.kill()
        run.wait()
    assert "time: " in elastic(place, "status", "./run").stdout


def test_a_failed_run_says_how_to_get_its_report_and_its_incident_has_the_fields(place):
    (place / "fails.py").write_text(FAILS)
    ended = elastic(place, "run", "--rdzv-id", "my run", "--run-dir", "run", "fails.py")
    assert ended.stderr.count("report: elastic report 'my run'") == 1
    incident = json.loads((place / "run" / "incident.json").read_text())
    fields = incident["hooks"]["ledger"]
    assert fields["state"] in [state.value for state in S]
    assert fields["starting_s"] > 0  # until the ledger has begun; the rendezvous of one node may be rounded to 0.0
    assert fields["rendezvous_s"] + fields["starting_s"] == pytest.approx(fields["present_s"], abs=0.15)
