"""The guard: nothing that workers started outlives a killed agent; nothing else is touched."""

import os
import secrets
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from elastic_core.agent.guard.guardian import Guardian
from elastic_core.processes.sweep import is_alive
from elastic_core.system.reactor import Reactor
from patience import Deadline, kept, patience
from proc_kit import state_of
from support import Lines, processes_with, wait_for
from time_limits import GUARD_S

AGENT = """
import os, subprocess, sys
from elastic_core.agent.guard.guardian import Guardian
from elastic_core.logger import Logger
from elastic_core.processes.sweep import become_subreaper
from elastic_core.system.reactor import Reactor

incarnation, mode, *workers = sys.argv[1:]
reactor = Reactor()
guardian = Guardian(reactor, incarnation=incarnation, log=Logger(print))
guardian.start()
if mode == "subreaper":
    assert become_subreaper()
started = [
    subprocess.Popen([sys.executable, worker], env={**os.environ, "ELASTIC_INCARNATION": incarnation},
                     start_new_session=True)
    for worker in workers
]
guardian.note_workers(process.pid for process in started)
if mode == "fork" and os.fork() == 0:
    os.read(0, 1)  # keeps the guard's pipe open until the test ends, as a fork in a user's own process may
    os._exit(0)
print("guard", guardian.pid, flush=True)
if mode == "dismiss":
    guardian.dismiss()
    sys.exit()
while True:
    reactor.turn()
"""

HEAD = """
import os, signal, subprocess, sys, threading, time

def here(name):  # tells the test that this process exists
    path = os.path.join({folder!r}, f"{name}.{os.getpid()}")
    open(path + ".new", "w").close()
    os.rename(path + ".new", path)

def linger():
    time.sleep(60)
    os._exit(0)

"""

STUBBORN = """
for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(signum, signal.SIG_IGN)
os.chdir("/")
if os.fork() == 0:
    here("child")
    linger()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        here("daemon")
        linger()
    os._exit(0)
if os.fork() == 0:
    here("stopped")
    os.kill(os.getpid(), signal.SIGSTOP)
    linger()
touch = os.path.join({folder!r}, "bare")
subprocess.Popen(["/bin/sh", "-c", f": > {touch}.$$; exec sleep 60"], env={})  # shows no environment
here("worker")
linger()
"""


@pytest.fixture
def start(tmp_path):
    """Start an agent with workers; whatever is left of it is ended after the test."""
    agents, marks = [], []

    def start_agent(*bodies, mode="", incarnation=None):
        incarnation = incarnation or secrets.token_hex(8)
        paths = [tmp_path / f"{incarnation}_{number}.py" for number in range(len(bodies))]
        for path, body in zip(paths, bodies, strict=True):
            path.write_text((HEAD + textwrap.dedent(body)).replace("{folder!r}", repr(str(tmp_path))))
        agent = subprocess.Popen(
            [sys.executable, "-c", AGENT, incarnation, mode, *map(str, paths)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        agents.append(agent)
        marks.append(f"ELASTIC_INCARNATION={incarnation}")
        return agent, marks[-1]

    yield start_agent
    for agent in agents:
        agent.kill()
        agent.wait()
        agent.stdin.close()
        agent.stdout.close()
    for mark in marks:
        for pid in processes_with(mark):
            os.kill(pid, signal.SIGKILL)


def present(folder, name):
    """Return the pids of the processes that said they exist, all that there are if `name` is empty."""
    return [int(path.suffix[1:]) for path in folder.glob(f"{name}*.*") if path.suffix[1:].isdigit()]


def guard_of(agent):
    word, pid = agent.stdout.readline().split()
    assert word == "guard"
    return int(pid)


def gone(*pids):
    return not any(map(is_alive, pids))


@pytest.mark.parametrize("mode", ["", "subreaper", "fork"])
def test_nothing_survives_a_killed_agent(start, tmp_path, mode):
    agent, mark = start(STUBBORN, STUBBORN, mode=mode)
    wait_for(lambda: all(len(present(tmp_path, n)) == 2 for n in ("worker", "child", "daemon", "stopped", "bare")))
    family = wait_for(lambda: len(present(tmp_path, "")) == 10 and present(tmp_path, ""))
    wait_for(lambda: len(processes_with(mark)) == 8, what="the ends of those that have started the daemons")
    guard = guard_of(agent)
    began_s = time.monotonic()
    agent.kill()
    wait_for(lambda: gone(*family), within_s=5, what=f"the end of {family}")
    took_s = time.monotonic() - began_s
    assert processes_with(mark) == []
    wait_for(lambda: gone(guard), within_s=5, what="the guard's own end")
    kept(took_s, GUARD_S)


def test_an_agent_killed_while_it_starts_leaves_nothing(start):
    for delay_s in (0.03, 0.06, 0.08, 0.09, 0.1, 0.12):
        agent, mark = start("linger()", "linger()")
        with pytest.raises(subprocess.TimeoutExpired):
            agent.wait(timeout=delay_s)
        agent.kill()
        agent.wait()
        agent.stdout.read()  # ends when the last who inherited it has: a worker that was just being started too
        assert processes_with(mark) == []


def test_who_forks_faster_than_one_can_look_is_caught(start, tmp_path):
    life_s = patience(60)  # where nobody ends them
    chain = f"""
    end_s = time.monotonic() + {life_s}
    while time.monotonic() < end_s:
        if os.fork():  # the child goes on: never the same pid for long
            os._exit(0)
    """
    bomb = f"""
    end_s = time.monotonic() + {life_s}
    for _ in range(3):
        os.fork()
    if os.fork() == 0:  # one of each stays: a look on a busy machine misses those that live for 20 ms
        time.sleep({life_s})
        os._exit(0)
    alive = 0
    while time.monotonic() < end_s:
        if os.fork() == 0:
            time.sleep(0.02)
            os._exit(0)
        alive += 1
        # No more than 20 at a time: a busy machine, on which they end late, would have thousands.
        while alive and os.waitpid(-1, os.WNOHANG if alive < 20 else 0)[0]:
            alive -= 1
    os._exit(0)
    """
    agent, mark = start(chain, bomb)
    wait_for(lambda: len(processes_with(mark)) > 8)
    guard = guard_of(agent)
    agent.kill()
    wait_for(lambda: gone(guard), within_s=10, what="the end of the hunt")
    assert [processes_with(mark) for _ in range(5)] == [[]] * 5


def test_a_worker_that_lives_on_without_its_main_thread_is_found(start, tmp_path):
    headless = """
    import ctypes
    threading.Thread(target=time.sleep, args=(60,)).start()
    here("headless")
    ctypes.CDLL(None).pthread_exit(None)
    """
    agent, _ = start(headless)
    (pid,) = wait_for(lambda: present(tmp_path, "headless"))
    wait_for(lambda: state_of(pid) == "Z")
    assert is_alive(pid)
    guard_of(agent)
    agent.kill()
    wait_for(lambda: gone(pid), within_s=5)


def test_a_worker_that_overwrote_its_environment_is_found(start, tmp_path):
    bare = """
    if "ELASTIC_INCARNATION" in os.environ:
        os.execve(sys.executable, [sys.executable, sys.argv[0]], {})  # as setproctitle leaves it
    if os.fork() == 0:
        if os.fork() == 0:
            here("bare")  # an orphan: nothing but its session tells whose
            linger()
        os._exit(0)
    if os.fork() == 0:
        here("bare")
        linger()
    here("bare")
    linger()
    """
    agent, mark = start(bare)
    pids = wait_for(lambda: len(present(tmp_path, "bare")) == 3 and present(tmp_path, "bare"))
    guard_of(agent)
    assert processes_with(mark) == []
    agent.kill()
    wait_for(lambda: gone(*pids), within_s=5)


def test_strangers_are_left_alone(start, tmp_path):
    agent, mark = start("here('worker'); linger()")
    wait_for(lambda: present(tmp_path, "worker"))
    names = [mark + "0", "X" + mark, "OTHER=" + mark, mark[:-1]]
    strangers = [
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=dict([name.split("=", 1)]))
        for name in names
    ]
    try:
        guard = guard_of(agent)
        agent.kill()
        wait_for(lambda: gone(guard), within_s=5)
        assert [stranger.poll() for stranger in strangers] == [None] * len(names)
        assert gone(*present(tmp_path, "worker"))
    finally:
        for stranger in strangers:
            stranger.kill()
            stranger.wait()


def test_after_a_farewell_nobody_is_killed(start, tmp_path):
    agent, mark = start("here('worker'); linger()", mode="dismiss")
    guard = guard_of(agent)
    assert agent.wait(timeout=patience(20)) == 0
    assert gone(guard)
    wait_for(lambda: present(tmp_path, "worker"))
    assert len(processes_with(mark)) == 1


def test_an_agent_within_a_worker_goes_with_all_of_its_own(start, tmp_path):
    inner = secrets.token_hex(8)
    orphan = tmp_path / "orphan.py"
    orphan.write_text(
        HEAD.replace("{folder!r}", repr(str(tmp_path)))
        + "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        here('orphan')\n        linger()\n"
        + "    os._exit(0)\nhere('inner_worker')\nlinger()\n"
    )
    outer_worker = f"""
    here("inner_agent")
    os.execv(sys.executable, [sys.executable, "-c", {AGENT!r}, {inner!r}, "", {str(orphan)!r}])
    """
    agent, mark = start(outer_worker)
    wait_for(lambda: present(tmp_path, "orphan") and present(tmp_path, "inner_worker"))
    inner_mark = f"ELASTIC_INCARNATION={inner}"
    assert len(processes_with(mark)) == 1
    wait_for(lambda: len(processes_with(inner_mark)) == 2, what="the end of the one that has started the orphan")
    agent.kill()
    wait_for(lambda: not processes_with(mark) and not processes_with(inner_mark), within_s=5)


# --- the guardian's side


@pytest.fixture
def guarded():
    """A guardian in this process, its reactor, and what it said."""
    reactor, notices = Reactor(), Lines()
    guardian = Guardian(reactor, incarnation=secrets.token_hex(8), log=notices)
    guardian.start()
    yield guardian, reactor, notices
    guardian.dismiss()
    reactor.close()


def settled(pid):
    """Whether a guard is up: the last that it does is to open its agent's pidfd."""
    try:
        links = {int(link.name): os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
    except FileNotFoundError:  # one was closed meanwhile: it still imports
        return False
    own = os.readlink("/proc/self/fd/2")
    return sorted(links) == [0, 1, 2, 3, 4] and links[3] == own and "pidfd" in links[4]


def turn_until(reactor, condition, within_s=10.0):
    end = Deadline(within_s)
    while not condition():
        assert not end.passed()
        reactor.turn(0.02)


def test_a_guard_is_alone_with_its_pipe(guarded):
    guardian, _, _ = guarded
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    guardian.dismiss()
    guardian.start()
    os.close(reading)
    os.close(writing)
    home = Path(f"/proc/{guardian.pid}")
    wait_for(lambda: settled(guardian.pid))
    assert os.readlink(home / "cwd") == "/"
    assert (home / "environ").read_bytes() == b""
    assert os.getsid(guardian.pid) == guardian.pid
    assert guardian._incarnation.encode() not in (home / "cmdline").read_bytes()
    sent = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGTSTP)
    for signum in sent:
        os.kill(guardian.pid, signum)
    status = dict(line.split(":\t") for line in (home / "status").read_text().splitlines())
    assert int(status["ShdPnd"], 16) == sum(1 << (signum - 1) for signum in sent), "none reaches it, ever"
    assert len(list((home / "task").iterdir())) == 1
    assert is_alive(guardian.pid)
    loaded = (home / "maps").read_text()
    assert "msgspec" not in loaded
    pss_kib = int((home / "smaps_rollup").read_text().split("Pss:")[1].split()[0])
    assert pss_kib < 10 * 1024


def test_no_worker_inherits_the_guards_pipe(guarded):
    guardian, _, _ = guarded
    pipe = os.readlink(f"/proc/{os.getpid()}/fd/{guardian._pipe}")
    for close_fds in (True, False):
        worker = [sys.executable, "-c", "import os; os.system('ls -l /proc/self/fd')"]
        held = subprocess.run(worker, close_fds=close_fds, capture_output=True, text=True, check=True).stdout
        assert "pipe:" in held
        assert pipe not in held


@pytest.mark.parametrize("pidfds", [True, False])
def test_a_killed_guard_is_followed_by_another(guarded, monkeypatch, pidfds):
    guardian, reactor, notices = guarded
    if not pidfds:
        monkeypatch.setattr(os, "pidfd_open", lambda pid: (_ for _ in ()).throw(OSError(38, "not implemented")))
        guardian.dismiss()
        guardian.start()
    first = guardian.pid
    guardian.note_workers([os.getpid()])
    os.kill(first, signal.SIGKILL)
    turn_until(reactor, lambda: guardian.pid not in (None, first))
    assert guardian.pids() == {guardian.pid}
    assert not Path(f"/proc/{first}").exists()
    assert is_alive(guardian.pid)
    assert notices == []


def test_guards_that_keep_dying_are_given_up_with_one_line(guarded):
    guardian, reactor, notices = guarded
    for _ in range(5):
        victim = guardian.pid
        os.kill(victim, signal.SIGKILL)
        turn_until(reactor, lambda victim=victim: guardian.pid != victim)
    assert guardian.pid is None
    assert guardian.pids() == frozenset()
    assert len(notices) == 1
    assert notices[0].startswith("the guard died 5 times within 10 s")
    guardian.note_workers([1])
    guardian.dismiss()


def test_a_guard_that_does_not_listen_is_replaced(guarded):
    guardian, reactor, _ = guarded
    first = guardian.pid
    os.kill(first, signal.SIGSTOP)
    for _ in range(1000):
        guardian.note_workers(range(10**6, 10**6 + 50))
    turn_until(reactor, lambda: guardian.pid not in (None, first))
    assert not Path(f"/proc/{first}").exists()


def test_dismissing_is_quick_and_leaves_no_process(guarded):
    guardian, _, _ = guarded
    for _ in range(3):  # some of them before the guard is up
        pid = guardian.pid
        began_s = time.monotonic()
        guardian.dismiss()
        took_s = time.monotonic() - began_s
        assert not Path(f"/proc/{pid}").exists()
        kept(took_s, 1)
        guardian.dismiss()
        guardian.start()
    assert guardian.pid is not None


def test_where_no_guard_can_be_started_the_run_goes_on(monkeypatch):
    reactor, notices = Reactor(), Lines()
    guardian = Guardian(reactor, incarnation="x", log=notices)
    for executable in ("", "/nonexistent/python"):
        monkeypatch.setattr(sys, "executable", executable)
        guardian.start()
        guardian.note_workers([1])
        assert guardian.pid is None
    assert [notice.partition(" (")[0] for notice in notices] == ["no guard could be started"] * 2
    guardian.dismiss()
    reactor.close()


def test_a_released_guard_ends_meanwhile_and_is_not_replaced(guarded):
    guardian, reactor, notices = guarded
    pid = guardian.pid
    guardian.release()
    guardian.release()
    wait_for(lambda: not is_alive(pid), what="the guard's end")
    reactor.turn(0.0)
    assert guardian.pid == pid  # not reaped yet, and no other one was started
    guardian.dismiss()
    assert not Path(f"/proc/{pid}").exists()
    assert (guardian.pid, notices) == (None, [])
