"""Workers of `elastic run` as forks of one interpreter that has imported torch, so that a restart imports nothing.

`start_server` starts the interpreter, once for each process of the tests. `ForkedWorkers` is a hook of the agent
(`-p truth.forked:ForkedWorkers`) that starts workers by it: each is a process, and leads a session, as usual.
The same file, run as a program, is the interpreter.
"""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

IMPORTS: Final = ("torch", "torch.distributed", "torch.utils.data", "torch._dynamo")
"""What the interpreter imports: torch, and what `DistributedDataParallel` imports when it is first built."""
ADDRESS: Final = "TRUTH_FORK_SERVER"
"""The variable with the path of the interpreter's socket."""
AGENT: Final = "TRUTH_AGENT"
"""The variable with the agent's pid, in the worker."""
_START, _REAP = b"s", b"r"
_WORD_BYTES: Final = 8
_RUNS: Final = 1 << 32
"""The exit code of a worker that runs."""


# --- the interpreter


def serve(listener: socket.socket) -> None:
    """Fork workers and report their exit codes on request, until standard input ends. It has one thread."""
    for name in IMPORTS:
        __import__(name)
    os.write(1, b"ready\n")
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)
    children: dict[socket.socket, set[int]] = {}
    while True:
        for key, _ in selector.select():
            if key.fileobj == 0:
                return
            if key.fileobj is listener:
                agent, _ = listener.accept()
                selector.register(agent, selectors.EVENT_READ)
                children[agent] = set()
            elif isinstance(key.fileobj, socket.socket) and not _respond(key.fileobj, children[key.fileobj]):
                selector.unregister(key.fileobj)
                for pid in children.pop(key.fileobj):  # of an agent that was killed
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                key.fileobj.close()


def _respond(agent: socket.socket, pids: set[int]) -> bool:
    """Respond to one request. Return false if the agent has ended."""
    kind, fds, _, _ = socket.recv_fds(agent, 1, 3)
    if not kind:
        return False
    word = _word(agent)
    if kind == _REAP:
        found, status = os.waitpid(word, os.WNOHANG)
        if found:
            pids.discard(word)
        agent.sendall(_encoded(os.waitstatus_to_exitcode(status) if found else _RUNS))
        return True
    request = b""
    while len(request) < word and (part := agent.recv(word - len(request))):
        request += part
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(reader)
        os.close(writer)  # a byte would count as the worker's first output
        argv, environment = json.loads(request.decode("utf-8", "surrogateescape"))
        _become(argv, environment, fds)
    os.close(writer)
    os.read(reader, 1)  # ends when the fork has closed it, too: it leads a session from now on
    for fd in (reader, *fds):
        os.close(fd)
    pids.add(pid)
    agent.sendall(_encoded(pid))
    return True


def _word(peer: socket.socket) -> int:
    content = b""
    while len(content) < _WORD_BYTES and (part := peer.recv(_WORD_BYTES - len(content))):
        content += part
    return int.from_bytes(content, "big", signed=True)


def _encoded(word: int) -> bytes:
    return word.to_bytes(_WORD_BYTES, "big", signed=True)


def _become(argv: list[str], environment: dict[str, str], fds: list[int]) -> NoReturn:
    """Run the script in this process, from the interpreter's start to its end."""
    import atexit
    import threading

    for fd, target in zip(fds, (0, 1, 2)[-len(fds) :], strict=True):
        os.dup2(fd, target)
    sys.stdin = os.fdopen(0, closefd=False)
    os.closerange(3, 256)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, code = argv, 0
    main = sys.modules["__main__"] = ModuleType("__main__")
    try:
        if environment.get("ELASTIC_WORKER_HOOKS") == "1":
            from elastic_core.worker.startup import arm_worker

            arm_worker()
        main.__file__ = str(Path(argv[0]).absolute())
        exec(compile(Path(argv[0]).read_bytes(), main.__file__, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
    except BaseException as error:  # noqa: BLE001  # as an interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    with suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter's own end
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
    sys.exit()


# --- the agent's side

from elastic_core.api import AgentHook, Power  # noqa: E402  # the program above needs none of it
from elastic_core.api.starters import AgentLoop, StartedProcess, WorkerStart, WorkerStarter  # noqa: E402


class ForkedWorkers(AgentHook):
    """Starts each worker as a fork of the interpreter."""

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.STARTS})

    def worker_starter(self, loop: AgentLoop) -> WorkerStarter:
        """Return the starter."""
        return ForkingStarter()


class Forks:
    """Requests forks from the interpreter. It kills those that run when this is closed.

    Args:
        address: The path of the interpreter's socket.
    """

    def __init__(self, address: str) -> None:
        """Connect."""
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(address)

    def start(self, argv: "Sequence[str]", environment: "Mapping[str, str]", streams: "Sequence[int]") -> int:
        """Return the pid of a fork that runs a script.

        Args:
            argv: The script's path and arguments.
            environment: Its variables.
            streams: The descriptors of its standard output and error; of its standard input before them, if given.
        """
        request = json.dumps([argv, dict(environment)]).encode("utf-8", "surrogateescape")
        socket.send_fds(self._server, [_START], streams)
        self._server.sendall(_encoded(len(request)) + request)
        pid = _word(self._server)
        if not pid:
            raise OSError("the interpreter that forks has ended")
        return pid

    def reap(self, pid: int) -> int | None:
        """Return the exit code, once. `None` if the fork runs."""
        self._server.sendall(_REAP + _encoded(pid))
        code = _word(self._server)
        return None if code == _RUNS else code

    def close(self) -> None:
        """Disconnect."""
        self._server.close()


class ForkingStarter(WorkerStarter):
    """Starts workers as forks of the interpreter."""

    def __init__(self) -> None:
        """Connect."""
        self._forks = Forks(os.environ[ADDRESS])

    def start(self, worker: WorkerStart) -> StartedProcess:
        """Return the fork."""
        _python, _unbuffered, *argv = worker.argv
        streams = [own if fd is None else fd for fd, own in ((worker.stdout, 1), (worker.stderr, 2))]
        pid = self._forks.start(argv, {**worker.environment, AGENT: str(os.getpid())}, streams)
        return StartedProcess(pid=pid, reap=lambda: self._forks.reap(pid))

    def close(self) -> None:
        """Disconnect."""
        self._forks.close()


def start_server(folder: Path) -> "Iterator[str]":
    """Start the interpreter and yield the path of its socket."""
    address = str(folder / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        server = subprocess.Popen(
            [sys.executable, "-P", __file__, str(listener.fileno())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[listener.fileno()],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == b"ready\n"
        yield address
    finally:
        server.stdin.close()
        server.stdout.close()
        server.wait()
