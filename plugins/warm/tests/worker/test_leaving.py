"""How a function without torch is left: what its worker reports, what delays that, and what keeps no process."""

import os
import signal
import socket
from pathlib import Path

import pytest

import elastic_warm
from elastic_core.api import ConfigError
from fake_agent import WAIT_S, marked
from support import wait_for

PROGRAM = """
import os, signal, socket, subprocess, sys, threading, time
from pathlib import Path
import elastic_warm as warm
from elastic_warm import worker

folder = Path(os.environ["TEST_FOLDER"])
forever = threading.Event()

def say(*words):
    print(*words, flush=True)

def until(name):
    while not (folder / name).exists():
        threading.Event().wait(0.005)

{functions}

@warm.rounds
def train(argument):
    number = int(os.environ["ELASTIC_ROUND"])
    act(number, argument)
    return "result"

say("result", train("argument"))
"""


def program(functions):
    return PROGRAM.replace("{functions}", functions)


def begun(agent, functions, **environment):
    """Start one worker, and wait until its function says that it is here."""
    (worker,) = agent.begin(program(functions), 1, **environment)
    marked(worker, 0, "here")
    return worker


def test_the_function_returns_and_its_result_with_it(agent):
    worker = begun(agent, "def act(number, argument): say('here', argument)")
    worker.expect("returned", round=0)
    assert worker.process.wait(WAIT_S) == 0
    assert worker.lines(0) == ["here argument", "result result"]


def test_a_step_is_reported_once_a_round(agent):
    worker = begun(
        agent,
        "def act(number, argument):\n"
        "    for _ in range(3): worker.stepped(); warm.should_stop()\n"
        "    say('here'); number or forever.wait()",
    )
    agent.leave(worker, 0)
    worker.expect("left", round=0)
    agent.place(worker, 1, 0, 1)
    worker.expect("returned", round=1)
    assert [message["round"] for message in worker.seen if message["kind"] == "stepped"] == [0, 1]


def test_the_cost_of_commits_is_reported_once_a_second(agent):
    worker = begun(
        agent,
        "def act(number, argument):\n"
        "    for step in range(100): worker.committed(ms=1.5, bytes=1000, step=step)\n"
        "    say('here')",
    )
    worker.expect("returned", round=0)
    reports = [message for message in worker.seen if message["kind"] == "state"]
    assert reports[0] == {"kind": "state", "commit_ms": 1.5, "bytes": 1000, "step": 0}
    assert len(reports) < 50


@pytest.mark.parametrize(
    "wait",
    [
        "forever.wait()",
        "time.sleep(600)",
        "lock = threading.Lock(); lock.acquire(); lock.acquire()",
        "signal.pause()",
        "socket.create_server(('127.0.0.1', 0)).accept()",
        "os.read(os.pipe()[0], 1)",
        "exec('while True: pass')",
    ],
)
def test_python_code_and_system_calls_are_left(agent, wait):
    worker = begun(agent, f"def act(number, argument):\n    say('here')\n    {wait}")
    agent.leave(worker, 0)
    assert not worker.expect("left", round=0)["held"]


def test_code_that_catches_everything_is_interrupted_again(agent):
    worker = begun(
        agent,
        "def act(number, argument):\n"
        "    say('here')\n"
        "    for _ in range(3):\n"
        "        try: forever.wait()\n"
        "        except BaseException: pass\n"
        "    forever.wait()",
    )
    agent.leave(worker, 0)
    worker.expect("left", round=0)


def test_a_function_that_returns_because_the_round_is_over_has_left(agent):
    worker = begun(
        agent,
        "def act(number, argument):\n"
        "    if number: return\n"
        "    with warm.protected():\n"
        "        say('here')\n"
        "        while not warm.should_stop(): threading.Event().wait(0.005)\n"
        "        signal.signal(worker._kept._interrupter.signum, signal.SIG_IGN)\n"
        "        worker._kept._interrupter._wanted = False",
    )
    agent.leave(worker, 0)
    worker.expect("left", round=0)
    agent.place(worker, 1, 0, 1)
    worker.expect("returned", round=1)


def test_a_protected_block_is_completed(agent):
    worker = begun(
        agent,
        "def act(number, argument):\n"
        "    with warm.protected(), warm.protected():\n"
        "        say('here')\n"
        "        until('go_on')\n"
        "        while not warm.worker._kept._leave: forever.wait(0.001)\n"  # it has arrived, whatever was first
        "        (folder / 'saved').write_text('whole')\n"
        "    say('never')",
    )
    agent.leave(worker, 0)
    (agent.folder / "go_on").touch()
    worker.expect("left", round=0)
    assert (agent.folder / "saved").read_text() == "whole"
    assert worker.lines(0) == ["here"]


def test_a_protected_block_of_another_thread_is_completed_before_the_groups_end(agent):
    functions = (
        "from elastic_warm.groups import Generation\n"
        "destroy = Generation.destroy\n"
        "Generation.destroy = lambda *args: say('groups end') or destroy(*args)\n"
        "def save():\n    with warm.protected(): say('here'); until('left'); say('saved')\n"
        "def act(number, argument):\n"
        "    try: threading.Thread(target=save).start(); forever.wait()\n"
        "    finally: (folder / 'left').touch()"
    )
    worker = begun(agent, functions)
    agent.leave(worker, 0)
    worker.expect("left", round=0)
    assert worker.lines(0) == ["here", "saved", "groups end"]


def test_a_protected_block_is_interrupted_before_the_limit(agent):
    worker = begun(agent, "def act(number, argument):\n    with warm.protected():\n        say('here'); forever.wait()")
    agent.leave(worker, 0, within_s=0.2)
    worker.expect("left", round=0)


def test_an_import_is_completed(agent):
    (agent.folder / "slow.py").write_text(
        "from threading import Event\nfrom pathlib import Path\nprint('here', flush=True)\n"
        f"while not Path({str(agent.folder / 'go_on')!r}).exists(): Event().wait(0.005)\n"
    )
    worker = begun(agent, "def act(number, argument):\n    import slow\n    say(number); number or forever.wait()")
    agent.leave(worker, 0)
    (agent.folder / "go_on").touch()
    worker.expect("left", round=0)
    agent.place(worker, 1, 0, 1)
    assert worker.process.wait(WAIT_S) == 0  # the result is printed after `returned`
    assert worker.lines(1) == ["1", "result result"]


def test_tasks_are_left_though_they_are_in_a_group(agent):
    functions = (
        "import asyncio\n"
        "async def spin():\n    say('here')\n    while True: pass\n"
        "async def tasks():\n    async with asyncio.TaskGroup() as group: group.create_task(spin())\n"
        "def act(number, argument): number or asyncio.run(tasks())"
    )
    worker = begun(agent, functions)
    agent.leave(worker, 0)
    worker.expect("left", round=0)
    agent.place(worker, 1, 0, 1)
    worker.expect("returned", round=1)


def test_a_handler_of_the_script_in_the_signal_s_place_is_not_called(agent):
    worker = begun(
        agent,
        "def act(number, argument):\n"
        "    signal.signal(worker._kept._interrupter.signum, lambda *_: say('called'))\n"
        "    say('here')\n"
        "    while True: threading.Event().wait(0.01)",
    )
    for number in range(3):
        marked(worker, number, "here")
        agent.leave(worker, number)
        worker.expect("left", round=number)
        agent.place(worker, number + 1, 0, 1)
    assert "called" not in worker.output()


def test_a_signal_that_the_script_handles_before_is_left_to_it(agent):
    functions = (
        "from elastic_warm.leaving import FIRST_BELOW_RTMAX\n"
        "signal.signal(signal.SIGRTMAX - FIRST_BELOW_RTMAX, lambda *_: say('called'))\n"
        "def act(number, argument):\n    say('here'); forever.wait()"
    )
    worker = begun(agent, functions)
    agent.leave(worker, 0)
    worker.expect("left", round=0)
    assert "called" not in worker.output()


# --- errors

LOST = "ConnectionResetError(104, 'Connection reset by peer')"


def test_a_peer_s_error_is_held_until_the_agent_asks(agent):
    worker = begun(agent, f"def act(number, argument):\n    say('here')\n    if number == 0: raise {LOST}")
    assert "reset by peer" in worker.expect("held", round=0)["error"]
    agent.leave(worker, 0)
    assert "reset by peer" in worker.expect("left", round=0)["held"]
    agent.place(worker, 1, 0, 1)
    worker.expect("returned", round=1)
    assert worker.process.wait(WAIT_S) == 0


def test_a_peer_s_error_is_raised_if_the_agent_does_not_ask(agent):
    worker = begun(agent, f"def act(number, argument):\n    say('here')\n    raise {LOST}", TRAINING_WARM_TIMEOUT="0.2")
    worker.expect("held", round=0)
    assert worker.process.wait(WAIT_S) == 1
    assert "ConnectionResetError" in worker.output()


def test_an_own_error_is_raised(agent):
    worker = begun(agent, "def act(number, argument):\n    say('here')\n    raise ValueError('own')")
    assert worker.process.wait(WAIT_S) == 1
    assert "ValueError: own" in worker.output()
    assert not [message for message in worker.seen if message["kind"] in ("held", "left", "returned")]


def test_an_own_error_while_the_round_ends_is_raised_and_reported(agent):
    worker = begun(
        agent,
        "def act(number, argument):\n"
        "    with warm.protected():\n"
        "        say('here')\n"
        "        while not warm.should_stop(): threading.Event().wait(0.005)\n"
        "        raise ValueError('own')",
    )
    agent.leave(worker, 0)
    assert "ValueError" in worker.expect("stays", round=0)["reason"]
    assert worker.process.wait(WAIT_S) == 1


# --- what is left behind


@pytest.mark.parametrize(
    ("start", "named"),
    [
        ("threading.Thread(target=forever.wait, name='loader', daemon=True).start()", "thread 'loader' still runs"),
        ("import _thread; _thread.start_new_thread(forever.wait, ())", "a thread of module"),
        ("subprocess.Popen(['sleep', '600'])", "(sleep 600)"),
        ("os.fork() or forever.wait()", "child process"),
    ],
)
def test_what_the_function_leaves_behind_is_named(agent, start, named):
    worker = begun(
        agent, f"def act(number, argument):\n    {start}\n    say('here'); forever.wait()", TRAINING_WARM_TIMEOUT="0.2"
    )
    agent.leave(worker, 0, within_s=0.3)
    assert named in worker.expect("stays", round=0)["reason"]
    assert worker.process.wait(WAIT_S) != 0


def test_what_ends_within_the_limit_does_not_count(agent):
    functions = (
        "def later():\n    until('go_on')\n"
        "def act(number, argument):\n"
        "    threading.Thread(target=later).start()\n"
        "    subprocess.Popen(['sh', '-c', f'until [ -e {folder}/go_on ]; do sleep 0.01; done'])\n"
        "    say('here'); number or forever.wait()"
    )
    worker = begun(agent, functions)
    agent.leave(worker, 0)
    (agent.folder / "go_on").touch()
    worker.expect("left", round=0)
    agent.place(worker, 1, 0, 1)
    worker.expect("returned", round=1)


def test_what_was_there_before_stays(agent):
    functions = (
        "threading.Thread(target=forever.wait, daemon=True).start()\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "def act(number, argument):\n    say('here', child.poll()); number or forever.wait()"
    )
    worker = begun(agent, functions)
    agent.leave(worker, 0)
    worker.expect("left", round=0)
    agent.place(worker, 1, 0, 1)
    worker.expect("returned", round=1)
    assert worker.lines(1)[0] == "here None"


def test_sockets_of_the_script_are_left_alone(agent):
    """Of any kind: from before the function and from within, watched by a loop, and with the port of the store's."""
    functions = (
        "import select\n"
        "pairs, polls = [], []\n"
        "def connect(server):\n"
        "    own = socket.create_connection(server.getsockname())\n"
        "    return server, own, server.accept()[0]\n"
        "def watch(sockets):\n"
        "    polls.append(select.epoll())\n"
        "    for each in sockets: polls[-1].register(each.fileno(), select.EPOLLIN)\n"
        "pairs.append(connect(socket.create_server(('127.0.0.1', 0))))\n"
        "watch(pairs[-1])\n"
        "def act(number, argument):\n"
        "    pairs.append(connect(socket.create_server(('127.0.0.1', 0))))\n"
        "    watch(pairs[-1])\n"
        "    server = socket.create_server(('127.0.0.2', int(os.environ['MASTER_PORT'])), reuse_port=True)\n"
        "    pairs.append(connect(server))\n"
        "    server.close()\n"
        "    for _, own, other in pairs:\n"
        "        own.sendall(b'x'); assert other.recv(1) == b'x'\n"
        "    say('here'); number == 2 or forever.wait()"
    )
    worker = begun(agent, functions)
    for number in range(2):
        agent.leave(worker, number)
        worker.expect("left", round=number)
        agent.new_port()
        agent.place(worker, number + 1, 0, 1)
    worker.expect("returned", round=2)


# --- the agent


def test_the_process_ends_with_the_run(agent):
    worker = begun(agent, "import atexit\natexit.register(say, 'at exit')\ndef act(*_): say('here'); forever.wait()")
    agent.leave(worker, 0)
    worker.expect("left", round=0)
    worker.send("end")
    assert worker.process.wait(WAIT_S) == 0
    assert "result" not in worker.output()


def test_the_process_ends_with_its_agent_while_it_waits(agent):
    worker = begun(agent, "def act(*_): say('here'); forever.wait()")
    agent.leave(worker, 0)
    worker.expect("left", round=0)
    worker.connection.shutdown(socket.SHUT_RDWR)
    assert worker.process.wait(WAIT_S) == 1


def test_the_function_goes_on_if_the_connection_is_lost(agent):
    worker = begun(agent, "def act(*_): say('here'); until('go_on')")
    worker.connection.sendall(b"no message\n")
    worker.expect("gone")
    (agent.folder / "go_on").touch()
    assert worker.process.wait(WAIT_S) == 0


@pytest.mark.parametrize("message", [{"kind": "what"}, {"kind": "leave", "round": 7}, {"kind": "place?"}])
def test_unknown_messages_are_ignored(agent, message):
    worker = begun(agent, "def act(*_): say('here'); until('go_on')")
    worker.send(**message)
    (agent.folder / "go_on").touch()
    worker.expect("returned", round=0)
    assert worker.process.wait(WAIT_S) == 0


def test_a_request_after_the_function_has_returned_is_refused(agent):
    worker = begun(agent, "import atexit\natexit.register(until, 'go_on')\ndef act(*_): say('here')")
    worker.expect("returned", round=0)
    agent.leave(worker, 0)
    assert "ended" in worker.expect("stays", round=0)["reason"]
    (agent.folder / "go_on").touch()
    assert worker.process.wait(WAIT_S) == 0


def test_a_worker_that_holds_the_interpreter_does_not_leave(agent):
    hold = "import ctypes\ndef act(*_): say('here'); ctypes.PyDLL(None).sleep(600)"
    worker = begun(agent, hold)
    wait_for(lambda: Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S")
    agent.leave(worker, 0, within_s=0.1)
    os.kill(worker.pid, signal.SIGTERM)  # as the agent does when the limit is over
    assert worker.process.wait(WAIT_S) == -signal.SIGTERM
    with pytest.raises(AssertionError, match="ended before"):
        worker.expect("left")


def test_a_child_holds_no_connection(agent):
    worker = begun(
        agent, "def act(*_):\n    if os.fork() == 0: until('go_on'); os._exit(0)\n    say('here'); forever.wait()"
    )
    os.kill(worker.pid, signal.SIGKILL)
    worker.expect("gone")
    (agent.folder / "go_on").touch()


# --- without an agent that keeps workers


@pytest.mark.parametrize("train", ["async def train(): pass", "def train(): yield", "async def train(): yield"])
def test_a_function_whose_call_returns_before_it_trains_is_an_error(train):
    names = {}
    exec(train, names)
    with pytest.raises(ConfigError, match=r"a call of 'train' returns before it trains.*Try: .*asyncio\.run"):
        elastic_warm.rounds(names["train"])


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"RANK": "0"}, "keeps no workers"),
        ({"RANK": "1"}, ""),
        ({}, ""),
        ({"RANK": "0", "TRAINING_WARM_SOCKET": "/nowhere"}, "No such file"),
    ],
)
def test_the_function_is_called_once_under_another_launcher(agent, variables, line):
    script = program("def act(*_): warm.should_stop(); worker.stepped(); say('here')\n")
    environment = {"TRAINING_WARM_SOCKET": "", "RANK": "", **variables}
    (worker,) = agent.start(script, 0, 1, **environment)
    assert worker.process.wait(WAIT_S) == 0
    assert worker.lines(0) == ["here", "result result"]
    said = worker.lines(0, "err")
    assert (len(said) == 1 and line in said[0]) if line else not said
