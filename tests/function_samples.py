"""Functions for workers to call."""

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path


def add(left, right=1):
    return left + right


def describe(*args):
    print("to stdout", flush=True)
    print("to stderr", file=sys.stderr, flush=True)
    return {
        "args": args,
        "pid": os.getpid(),
        "sid": os.getsid(0),
        "rank": os.environ.get("RANK"),
        "home": os.environ.get("ELASTIC_TEST_ONLY_OURS"),
        "threads": threading.active_count(),
        "argv": sys.argv,
        "cpus": os.sched_getaffinity(0),
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "stdin": os.fstat(0).st_rdev,
        "main": sys.modules["__main__"].__name__,
        "children": len(multiprocessing.active_children()),
        "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
    }


def fail(text):
    raise ValueError(text)


def leave(code):
    sys.exit(code)


def leave_as_another_user(code):
    os.setresuid(4321, 4321, 4321)
    os._exit(code)


def die(signum):
    os.kill(os.getpid(), signum)
    threading.Event().wait(60)


def big(count):
    return bytes(count)


def lock():
    return threading.Lock()


def return_then_hang(path):
    def hang():
        Path(path).write_text("hanging")
        threading.Event().wait(60)

    atexit.register(hang)
    return "done"


def note_the_end(ended, go):
    """Return at once, or once the file `go` is there; `ended` is written when the process ends."""
    if ended:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        atexit.register(Path(ended).touch)
    while go and not Path(go).exists():
        threading.Event().wait(0.01)


def fail_after(go):
    note_the_end("", go)
    if go:
        sys.exit(3)


def raise_and_linger(path):
    """Raise, and be busy in an exit handler from then on; without a path, once the file `WAIT_FOR` is there."""
    while not path and not Path(os.environ["WAIT_FOR"]).exists():
        threading.Event().wait(0.01)
    if path:
        atexit.register(threading.Event().wait, 60)
        atexit.register(Path(path).touch)
    raise ValueError("as it is")


def return_then_abort():
    atexit.register(os.abort)
    return "done"


def return_with_a_child_that_stays(path):
    """The child holds every descriptor of the worker for longer than the worker lives."""
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path(path).write_text(str(os.getpid()))
        threading.Event().wait(60)
    while not Path(path).exists():
        threading.Event().wait(0.01)
    return "done"


def sleep_and_tell(path):
    Path(path).write_text(str(os.getpid()))
    threading.Event().wait(60)


def put(queue, value):
    queue.put(value)


def run_program():
    return subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, check=True).stdout


class Refuses:
    """Can be pickled, and not loaded again."""

    def __reduce__(self):
        return refuse, ()


def refuse():
    raise ValueError("not in this process")


def refusing():
    return Refuses()


class _Killed:
    def __reduce__(self):
        print("returning, no line's end", end="", flush=True)
        print("and on stderr", end="", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def killed_while_it_returns():
    return _Killed()


def doubled(tensor):
    tensor *= 2
    return tensor
