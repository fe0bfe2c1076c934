"""The worker that recorded its exception first is named, whichever worker ends first."""

import pytest

SCRIPT = """
import atexit, os, pathlib, sys, time
here, rank = pathlib.Path(os.environ["HERE"]), os.environ["RANK"]
def wait_for(name):
    while not (here / name).exists():
        time.sleep(0.005)
def hold():  # exit handlers run after the exception was recorded
    (here / "recorded").touch()
    wait_for("never")
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if rank == "1":
        atexit.register(hold)
        raise ValueError("label 11 is not a digit")
    wait_for("recorded")
    {fails}
"""
FAILS = {
    "exception": "raise KeyError('lr')",
    "lost peer": "raise ConnectionResetError('Connection reset by peer')",
    "reason": "sys.exit('no lr')",
    "code": "os._exit(3)",
    "signal": "os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("how", FAILS)
def test_a_recorded_exception_is_the_first_cause_although_its_worker_has_not_ended(elastic, script, tmp_path, how):
    text = SCRIPT.replace("{fails}", FAILS[how])
    agent = elastic("--nproc-per-node", 2, "--max-restarts", 1, script(text), env={"HERE": str(tmp_path)})
    assert agent.wait(60) == 0, agent.err
    assert "rank 1 failed: ValueError: label 11 is not a digit" in agent.err
    assert "has not ended" not in agent.err


def test_the_report_at_the_end_of_the_run_has_both(elastic, script, tmp_path):
    text = SCRIPT.replace("{fails}", FAILS["exception"])
    agent = elastic("--nproc-per-node", 2, "--shutdown-timeout", 0.5, script(text), env={"HERE": str(tmp_path)})
    assert agent.wait(60) == 1, agent.err
    incident = agent.incident()
    assert (incident["first"]["exit"]["global_rank"], incident["exit_code"]) == (1, 1)
    assert [worker["exit"]["global_rank"] for worker in incident["secondary"]] == [0]
