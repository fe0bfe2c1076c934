"""A worker without torch that can leave its round: it speaks the protocol from its main thread, and computes nothing.

Files in its working directory steer it: `finish` ends it, `fail.RANK` has it raise an exception. Its argument says what
it does when it is asked to leave: `leave`, `stay`, `hang`, `deaf` (and ignores SIGTERM), `die`, `garbage`; or, after it
has left, `die-kept`, `hang-kept`, `deaf-end`. `after-0` leaves once rank 0 has left and ended. `RANK:what` is for one
local rank. With `no-step` it completes no step.
"""

import array
import atexit
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

LOCAL_RANK = int(os.environ["LOCAL_RANK"])
WHAT = [word.partition(":")[2] or word for word in sys.argv[1:] if word.partition(":")[0] in (str(LOCAL_RANK), word)]
STREAMS = {"stdout": 1, "stderr": 2}


class Agent:
    """The connection to the agent."""

    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(path)
        self.rest, self.fds = b"", []

    def say(self, kind, **more):
        self.sock.sendall(json.dumps({"kind": kind, "round": round_index(), **more}).encode() + b"\n")

    def hear(self, within_s):
        """Return the next message, None if there is none in time."""
        while b"\n" not in self.rest:
            if not select.select([self.sock], [], [], within_s)[0]:
                return None
            data, ancillary, _, _ = self.sock.recvmsg(65536, socket.CMSG_SPACE(16))
            for _, _, content in ancillary:
                self.fds += array.array("i", content[: len(content) - len(content) % 4])
            if not data:
                os._exit(1)  # the agent is gone
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line)

    def place(self):
        """Wait for a place, and take it."""
        while True:
            message = self.hear(60)
            assert message is not None, "no place"
            if message["kind"] == "end":
                if "deaf-end" in WHAT:
                    pause(600)
                sys.exit(0)
            if message["kind"] == "place":
                break
        for name, fd in zip(message["fds"], self.fds, strict=True):
            os.dup2(fd, STREAMS[name])
            os.close(fd)
        self.fds = []
        for name, value in message["variables"].items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        assert message["round"] == round_index()
        self.say("taken")


def pause(seconds):
    select.select([], [], [], seconds)


def round_index():
    return int(os.environ["ELASTIC_ROUND"])


def note(name):
    """Note that something has happened, for the test."""
    with open(f"{name}.{LOCAL_RANK}", "a") as file:
        file.write(f"{os.getpid()} {round_index()}\n")


def has_ended(noted):
    """Return whether the process that has noted this has ended, whether or not it was reaped."""
    try:
        pid = Path(noted).read_text().split()[0]
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return Path(noted).exists()
    except IndexError:  # it is about to be written
        return False


def train(agent):
    """Train until the end of the round; return whether the worker has left it."""
    if agent is not None:
        agent.say("entered")
        if "no-step" not in WHAT:
            agent.say("stepped")
    print(json.dumps({"rank": os.environ["RANK"], "round": round_index(), "pid": os.getpid(), "local": LOCAL_RANK,
                      "world": os.environ["WORLD_SIZE"], "restarts": os.environ["TORCHELASTIC_RESTART_COUNT"],
                      "port": os.environ["MASTER_PORT"]}), flush=True)  # fmt: skip
    print(f"stderr of round {round_index()}", file=sys.stderr, flush=True)
    note("began")
    while True:
        if Path("finish").exists():
            return False
        if (fail := Path(f"fail.{LOCAL_RANK}")).exists():
            fail.unlink()
            raise ValueError("boom")
        message = agent.hear(0.02) if agent is not None else pause(0.02)
        if message is not None and message["kind"] == "leave":
            note("asked")
            if leave(agent):
                return True


def leave(agent):
    if "hang" in WHAT or "deaf" in WHAT:
        pause(600)
    if "die" in WHAT:
        os._exit(3)
    if "stay" in WHAT:
        agent.say("stays", reason="thread 'loader' still runs")
        return False
    if "garbage" in WHAT:
        agent.sock.sendall(b"{nonsense\n")
        pause(600)
    while "after-0" in WHAT and not has_ended("left.0"):
        pause(0.01)
    agent.say("left", ms={"function": 0.5}, held=None)
    note("left")
    if "die-kept" in WHAT:
        os._exit(4)
    if "hang-kept" in WHAT:
        pause(600)
    return True


def main():
    if "deaf" in WHAT:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    atexit.register(note, "exited")
    path = os.environ.get("TRAINING_WARM_SOCKET")
    agent = Agent(path) if path else None
    if agent is not None:
        agent.say("hello", version=1, pid=os.getpid(), local_rank=LOCAL_RANK)
        agent.say("of the future", nonsense=[1])
    while train(agent):
        agent.place()
    if agent is not None:
        agent.say("returned")


main()
