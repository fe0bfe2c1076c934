"""Workers that are started afresh, and the same through a spare or a fork."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from msgspec.structs import replace

from elastic_core.processes.spec import WorkerLaunch
from elastic_core.starters import ReactorLoop
from elastic_core.system.reactor import Reactor
from elastic_standby.forks import ForkServer
from elastic_standby.pool import StandbyPool
from group_kit import start_of
from patience import Deadline, patience
from support import Lines, wait_for

DEADLINE_S = 30.0
MARK = f"test-standby-{os.getpid()}-{time.monotonic_ns()}"

DUMP = """\
kept = sorted(globals())
import ctypes, json, os, signal, sys
main, module = sys.modules["__main__"], globals()
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
print(json.dumps({
    "environment": dict(os.environ), "for C": str(getenv(b"RANK")), "argv": sys.argv, "command": sys.orig_argv,
    "path": sys.path, "folder": os.getcwd(), "executable": sys.executable, "flags": str(sys.flags),
    "names": kept, "main": main.__dict__ is module, "name": __name__, "package": __package__, "doc": __doc__,
    "file": __file__, "cached": module.get("__cached__"), "loader": type(__loader__).__name__,
    "spec": [getattr(__spec__, key, None) for key in ("name", "origin")],
    "loads": getattr(__loader__, "path", ""), "hook": getattr(sys.excepthook, "__qualname__", ""),
    "stdout": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering, sys.stdout.write_through],
    "signals": {str(each): str(signal.getsignal(each)) for each in signal.valid_signals()},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "descriptors": sorted(os.listdir("/proc/self/fd")), "session": os.getsid(0) == os.getpgid(0) == os.getpid(),
    "policy": os.sched_getscheduler(0), "nice": os.nice(0), "threads": len(os.listdir("/proc/self/task")),
    "umask": os.umask(0o22), "stdin": os.fstat(0).st_ino, "cores": sorted(os.sched_getaffinity(0)),
}, indent=1).replace('"%d"' % os.getpid(), '"PID"'))
"""


class Bench:
    """Starts the same worker afresh and through a spare."""

    def __init__(self, folder: Path, imports=()):
        self.folder = folder
        self.taken = itertools.count()
        self.notices = Lines()
        self.reactor = Reactor()
        loop = ReactorLoop(self.reactor, log=self.notices)
        self.pool = StandbyPool(loop, imports=imports, delay_s=0.0)

    def launch(self, *words, round_=0, hooks=True, rank=0, **variables):
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ELASTIC_"))}
        env |= {"MARK": MARK, "RANK": str(round_), "ELASTIC_ROUND": str(round_)}
        if hooks:
            error_file = str(self.folder / f"error.{round_}.json")
            env |= {"ELASTIC_WORKER_HOOKS": "1", "TORCHELASTIC_ERROR_FILE": error_file}
        argv = (sys.executable, "-u", *map(str, words))
        return start_of(WorkerLaunch(local_rank=rank, global_rank=rank, argv=argv, env=env | variables))

    def turn_until(self, condition):
        end = Deadline(DEADLINE_S)
        while not condition():
            assert not end.passed(), self.notices
            self.reactor.turn(0.02)

    def stand_by(self, *launches):
        self.pool.stand_by(launches)
        self.turn_until(lambda: self.pool.ready_count == len(launches))

    def take(self, launch):
        """Return the process and what to call for its end: exit code, stdout, stderr."""
        name = f"spare{next(self.taken)}"
        with (self.folder / f"{name}.out").open("wb") as out, (self.folder / f"{name}.err").open("wb") as err:
            process = self.pool.take(replace(launch, stdout=out.fileno(), stderr=err.fileno()))
        return process, self.end_of(process, name)

    def end_of(self, process, name):
        """Return what to call for a worker's exit code, stdout and stderr."""
        out, err = (self.folder / f"{name}.{stream}" for stream in ("out", "err"))

        def end():
            ended = wait_for(lambda: os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
            assert ended
            code = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
            return code, out.read_text(), err.read_text()

        return end

    def cold(self, launch):
        done = subprocess.run(
            launch.argv,
            env=launch.environment,
            capture_output=True,
            text=True,
            timeout=patience(DEADLINE_S),
            start_new_session=True,
        )
        return done.returncode, done.stdout, done.stderr

    def both(self, *words, **more):
        """Return what a fresh start gives, and what a process gives that was prepared for another round."""
        launch = self.launch(*words, **more)
        self.stand_by(self.launch(*words, **(more | {"round_": 7})))
        _, end = self.take(launch)
        warm = end()
        return self.cold(launch), warm

    def close(self):
        self.pool.close()
        self.reactor.close()


class ForkBench(Bench):
    """Starts the same worker afresh and as a fork. This process must be a subreaper."""

    def __init__(self, folder: Path, imports=("json",)):
        super().__init__(folder)
        self.loop = ReactorLoop(self.reactor, log=self.notices)
        self.imports = imports
        self.ahead = True

    def serve(self, launch):
        """Start a server for workers with the command and environment of a worker."""
        self.pool.close()
        self.pool = ForkServer(
            self.loop,
            command=launch.argv,
            environment=launch.environment,
            marks={"ELASTIC_INCARNATION": "the-tests"},
            imports=self.imports,
            ahead=self.ahead,
        )

    def prepare(self, count):
        """Have so many processes wait, or as many as can."""
        done = []
        self.pool.prepare(count, lambda: done.append(True))
        self.turn_until(lambda: done)

    def stand_by(self, *launches):
        self.serve(launches[0])
        self.prepare(len(launches))
        assert self.pool.waiting_count == len(launches), self.notices

    def take(self, launch):
        name = f"fork{next(self.taken)}"
        with (self.folder / f"{name}.out").open("wb") as out, (self.folder / f"{name}.err").open("wb") as err:
            process = self.pool.start(replace(launch, stdout=out.fileno(), stderr=err.fileno()))
        assert process is not None, self.notices
        return process, self.end_of(process, name)


def lay_out(kind, folder):
    """Write the dump as a program of some kind; return the words of its command."""
    below = folder / "below"
    below.mkdir()
    (below / "train.py").write_text(DUMP)
    if kind == "script":
        return [below / "train.py"]
    if kind == "relative":
        return ["below/train.py"]
    if kind == "link":
        (folder / "linked.py").symlink_to("below/train.py")
        return ["linked.py"]
    (below / "__init__.py").write_text("")
    (below / "__main__.py").write_text(DUMP)
    if kind == "archive":
        import zipfile

        with zipfile.ZipFile(folder / "app.zip", "w") as archive:
            archive.write(below / "__main__.py", "__main__.py")
    return {"folder": ["below"], "archive": ["app.zip"], "module": ["-m", "below.train"], "package": ["-m", "below"]}[
        kind
    ]


NESTED = """
    def outer():
        inner()
    def inner():
        {body}
    outer()
    """
ENDS = {
    "nothing": "pass",
    "exception": NESTED.format(body="raise ValueError('boom')"),
    "chain": """
        try:
            raise KeyError("first")
        except KeyError as error:
            raise RuntimeError("second") from error
        """,
    "syntax": "x = 1\ndef (:\n",
    "undecodable": "x = '\udcff'",
    "exit with a code": NESTED.format(body="raise SystemExit(7)"),
    "exit with a text": "import sys; sys.exit('no data')",
    "exit without": "raise SystemExit",
    "interrupt": NESTED.format(body="raise KeyboardInterrupt"),
    "hook of its own": "import sys\nsys.excepthook = lambda *of: print(len(of), of[2].tb_lineno)\n1 / 0",
    "at exit and threads": """
        import atexit, threading
        atexit.register(print, "at exit")
        said = threading.Event()
        threading.Thread(target=lambda: (said.wait(), said.clear(), said.wait(0.1), print("thread"))).start()
        print("main")
        said.set()
        """,
    "last exception": "import atexit, sys\natexit.register(lambda: print(sys.last_traceback.tb_lineno))\n1 / 0",
    "signal": "import os; os.kill(os.getpid(), 10)",
    "hard": "import os; print('x', end=''); os._exit(9)",
    "child by spawn": """
        import multiprocessing
        def work(x):
            print("child", x, flush=True)
        if __name__ == "__main__":
            process = multiprocessing.get_context("spawn").Process(target=work, args=(5,))
            process.start()
            process.join()
        """,
    "pickle": """
        import pickle
        class Point:
            x = 3
        print(pickle.loads(pickle.dumps(Point())).x, Point.__module__)
        """,
}


def recorded(folder):
    """Return what the hook recorded, but for times."""
    path = folder / "error.0.json"
    if not path.exists():
        return None
    message = json.loads(path.read_text())["message"]
    path.unlink()
    told = {k: v for k, v in message["extraInfo"].items() if k != "pid" and not k.startswith("timestamp")}
    return message["message"], told


def kill_a_worker(agent):
    lines = (json.loads(line[line.index("{") :]) for line in agent.out.splitlines())
    os.kill(next(line["pid"] for line in lines if line["rank"] == "1"), signal.SIGKILL)
