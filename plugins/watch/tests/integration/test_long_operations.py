"""Operations of real workers that take longer than `--hang-timeout` and are no hang, and limits that still find one."""

import os
import signal
import subprocess

import pytest

from patience import patience
from support import wait_for

STEPS = """
import os, pathlib, sys, time
from elastic_train import saving, should_stop
rank = int(os.environ["RANK"])
"""


STEPS_TO_THE_END = (
    STEPS
    + """
step, left = 0, 15
should_stop(step=0)
os.write(1, b"%d\\n" % os.getpid())
while left:  # for a while after the test has finished with them
    step += 1
    should_stop(step=step)
    time.sleep(0.1)
    left -= pathlib.Path("finish").exists()
"""
)


def stepping(agent):
    """The processes of both workers, which have made steps."""
    return list(map(int, wait_for(lambda: agent.out.count("\n") == 2 and agent.out.split())))


def finish(agent):
    (agent.out_path.parent / "finish").touch()


def test_should_stop_is_a_sign_of_life_and_its_steps_name_the_rank_behind(elastic, script):
    text = STEPS + (
        "def began(one):\n"
        "    return pathlib.Path(f'began-{one}')\n"
        "began(rank).touch()\n"
        "while not began(1 - rank).exists():  # one may be started long before the other\n"
        "    time.sleep(0.01)\n"
        "for step in range(40):\n"
        "    should_stop(step=step)\n"
        "    while rank == 1 and step == 3:\n"
        "        time.sleep(0.01)\n"
        "    if step < 4 or rank == 1:\n"
        "        time.sleep(0.05)\n"
        "    else:\n"
        "        while True:\n"
        "            time.sleep(0.01)\n"
    )
    agent = elastic("--nproc-per-node", "2", "--hang-timeout", "2", script(text))
    assert agent.wait(60) == 1
    assert agent.incident()["failure_class"] == "hang"
    assert "rank 1 has not reached step 4 (at 3 for " in agent.incident()["summary"]


def test_steps_of_should_stop_are_enough_without_any_output(elastic, script):
    timeout_s = patience(1)
    text = STEPS + f"for step in range({round(60 * timeout_s)}):\n    should_stop(step=step)\n    time.sleep(0.05)\n"
    agent = elastic("--nproc-per-node", "2", "--hang-timeout", f"{timeout_s:g}", script(text))
    assert agent.wait(60) == 0
    assert "late" not in agent.err
    assert "has not reached" not in agent.err


def test_a_save_that_takes_longer_than_the_limit_is_no_hang(elastic, script):
    text = STEPS + (
        "def wait_for(name):\n"
        "    while not pathlib.Path(name).exists():\n"
        "        time.sleep(0.01)\n"
        "if rank == 1:  # which may have been started long before the other\n"
        "    wait_for('saving')\n"
        "should_stop(step=1)\n"
        "if rank == 0:\n"
        "    with saving():\n"
        "        pathlib.Path('saving').touch()\n"
        "        time.sleep(4)\n"
        "    pathlib.Path('saved').touch()\n"
        "wait_for('saved')  # the others wait for it\n"
        "should_stop(step=2)\n"
    )
    agent = elastic("--nproc-per-node", "2", "--hang-timeout", "1", script(text))
    assert agent.wait(60) == 0, agent.err
    assert "no heartbeat" not in agent.err


def test_a_section_of_the_script_limits_a_save_that_hangs(elastic, script):
    text = STEPS + (
        "from elastic_core.worker import section\n"
        "should_stop(step=1)\n"
        "with section('checkpoint', limit_s=1.5), saving():\n"
        "    time.sleep(60)\n"
    )
    agent = elastic("--hang-timeout", "1", script(text))
    assert agent.wait(60) == 1
    assert "section 'checkpoint' is over its limit" in agent.incident()["summary"]


def test_steps_of_a_process_that_has_ended_do_not_count(elastic, script):
    """As where a worker runs one program after the other, and the second one reports no steps."""
    timeout_s = patience(1)
    text = STEPS + (
        "if len(sys.argv) > 1:\n"
        "    should_stop(step=1)\n"
        "    sys.exit(0)\n"
        "import subprocess\n"
        "subprocess.run([sys.executable, __file__, 'first'], check=True)\n"
        f"for _ in range({round(30 * timeout_s)}):\n"
        "    print('upload', flush=True)\n"
        "    time.sleep(0.1)\n"
    )
    agent = elastic("--hang-timeout", f"{timeout_s:g}", script(text))
    assert agent.wait(60) == 0, agent.err


def test_workers_that_are_all_stopped_by_a_signal_wait_for_their_continuation(elastic, script):
    timeout_s = patience(1)
    agent = elastic("--nproc-per-node", "2", "--hang-timeout", f"{timeout_s:g}", script(STEPS_TO_THE_END))
    pids = stepping(agent)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: "all workers of this node are stopped by a signal" in agent.err)
    with pytest.raises(subprocess.TimeoutExpired):
        agent.process.wait(3 * timeout_s)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    finish(agent)
    assert agent.wait(60) == 0, agent.err
    assert agent.err.count("stopped by a signal") == 1


@pytest.mark.parametrize("agent_at", [0, 1, 2])
def test_a_suspend_of_the_whole_job_is_no_hang_in_any_order(elastic, script, agent_at):
    """As `scontrol suspend` stops the job's processes one after the other, and continues them in the same order."""
    timeout_s = patience(1)
    agent = elastic("--nproc-per-node", "2", "--hang-timeout", f"{timeout_s:g}", script(STEPS_TO_THE_END))
    pids = stepping(agent)
    order = [*pids[:agent_at], agent.process.pid, *pids[agent_at:]]
    for signum in (signal.SIGSTOP, signal.SIGCONT):
        for pid in order:
            os.kill(pid, signum)
            with pytest.raises(subprocess.TimeoutExpired):
                agent.process.wait(0.3)
        if signum == signal.SIGSTOP:
            with pytest.raises(subprocess.TimeoutExpired):
                agent.process.wait(2 * timeout_s)
    finish(agent)
    assert agent.wait(60) == 0, agent.err
    assert sorted(map(int, agent.out.split())) == sorted(pids)


def test_a_debugger_in_the_interpreter_is_recognised_by_the_stack(elastic, script):
    text = STEPS + (
        "import pdb, socket, threading\n"
        "ours, pdbs = socket.socketpair()\n"
        "def person():\n"
        "    while not pathlib.Path('finish').exists():\n"
        "        time.sleep(0.05)\n"
        "    ours.sendall(b'continue\\n')\n"
        "threading.Thread(target=person).start()\n"
        "should_stop(step=1)\n"
        "pdb.Pdb(stdin=pdbs.makefile(), stdout=open(os.devnull, 'w')).set_trace()\n"
        "should_stop(step=2)\n"
    )
    agent = elastic("--hang-timeout", "1", script(text))
    wait_for(lambda: "the stack of rank 0 shows a debugger: no hang for up to 86400 s" in agent.err)
    with pytest.raises(subprocess.TimeoutExpired):
        agent.process.wait(3)
    finish(agent)
    assert agent.wait(60) == 0, agent.err


def test_auto_learns_a_limit_from_a_run_and_reports_it(elastic, script):
    agent = elastic("--nproc-per-node", "2", "--hang-timeout", "auto", script(STEPS_TO_THE_END))
    wait_for(lambda: "--hang-timeout auto: the limit is 300 s; the longest step took at most " in agent.err)
    finish(agent)
    assert agent.wait(60) == 0, agent.err
    assert "--hang-timeout auto: no limit until workers have reported 20 steps" in agent.err


def test_auto_by_its_variable_leaves_a_script_without_steps_alone(elastic, script):
    agent = elastic(script("import time\ntime.sleep(1.5)\n"), env={"PET_HANG_TIMEOUT": "auto"})
    assert agent.wait(60) == 0, agent.err
    assert agent.err.count("--hang-timeout auto") == 1
