"""One interpreter that imports torch, and forks for each test program that needs it: torch's import is paid once.

`torch_python` (a fixture) is a program that stands in for `python`: `torch_python train.py`, `-c CODE`, `-m MODULE`. It
asks the server for a child that has torch already, hands its standard streams, folder, environment and arguments over,
passes signals on, and ends as the child ends; if the program is killed, the server kills the child. Given to an agent
as `PYTHON_EXEC`, its workers start so: a folder whose conftest imports `elastic_with_torch` has that for all its tests.

What such a program can't show: how an interpreter starts and how long it takes to end, what it inherits beside the
standard streams, its pid, and what `/proc` says of it. Tests about that start a real interpreter: `PYTHON_EXEC` is then
`sys.executable`.
"""

import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

from support import Elastic, wait_for

PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

IMPORTS = (
    "torch",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.nn.functional",
    "torch.utils.data",
    "torch._dynamo",
)
"""The modules that the server imports: torch, and the parts that examples, pages and DistributedDataParallel import."""

PROGRAM = """#!{python} -IS
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
for signum in {passed_on!r}:
    if signal.getsignal(signum) is not signal.SIG_IGN:
        signal.signal(signum, lambda signum, frame: server.send(bytes([signum])))
request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode("utf-8", "surrogateescape")
socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2])
server.sendall(request)
status = server.recv(4)
if len(status) < 4:
    sys.exit("the server of torch has gone")
code = int.from_bytes(status, "big", signed=True)
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


def serve(listener: socket.socket) -> None:
    """Fork a child for each connection, until standard input ends; single-threaded, as who forks should be."""
    for name in IMPORTS:
        import_module(name)
    threads = [thread.name for thread in Path("/proc/self/task").iterdir()]
    assert len(threads) == 1, f"threads {threads}: a child would lack those that its modules rely on"
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)
    os.write(1, b"ready\n")
    children: dict[int, tuple[socket.socket, int]] = {}  # by pidfd
    pidfds: dict[socket.socket, int] = {}
    while True:
        for key, _ in selector.select():
            if key.fileobj == 0:
                return
            if key.fileobj is listener:
                client, _ = listener.accept()
                pid = _start(client)
                if pid is None:
                    continue
                pidfd = os.pidfd_open(pid)
                children[pidfd], pidfds[client] = (client, pid), pidfd
                selector.register(client, selectors.EVENT_READ)
                selector.register(pidfd, selectors.EVENT_READ)
            elif isinstance(key.fileobj, socket.socket):
                if key.fileobj in pidfds:  # else its child has ended at the same time
                    _pass_on(key.fileobj, pidfds[key.fileobj], selector)
            elif isinstance(key.fileobj, int):
                client, pid = children.pop(key.fileobj)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with suppress(OSError):
                    client.sendall(code.to_bytes(4, "big", signed=True))
                with suppress(KeyError):
                    selector.unregister(client)
                selector.unregister(key.fileobj)
                os.close(key.fileobj)
                del pidfds[client]
                client.close()


def _pass_on(client: socket.socket, pidfd: int, selector: selectors.BaseSelector) -> None:
    """Send the child the signals that its program got; kill it if the program has gone."""
    try:
        signals = client.recv(64)
    except OSError:
        signals = b""
    if not signals:
        selector.unregister(client)
    for signum in signals or [signal.SIGKILL]:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signum)


def _start(client: socket.socket) -> int | None:
    """Fork the child that a client asks for; return its pid, or None if the client has gone already."""
    head, fds, _, _ = socket.recv_fds(client, 4, 3)
    size, request = int.from_bytes(head, "big"), b""
    while len(request) < size and (part := client.recv(size - len(request))):
        request += part
    if len(head) < 4 or len(request) < size:
        client.close()
        return None
    pid = os.fork()
    if pid == 0:
        argv, folder, environment = json.loads(request.decode("utf-8", "surrogateescape"))
        _become(argv, folder, environment, fds)
    for fd in fds:
        os.close(fd)
    return pid


def _become(argv: list[str], folder: str, environment: dict[str, str], fds: list[int]) -> NoReturn:
    """Be the interpreter that was asked for, in this process, from its start to its end."""
    os.setsid()
    for fd, target in zip(fds, range(3), strict=True):
        os.dup2(fd, target)
    os.closerange(3, 256)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    while argv and argv[0] in ("-u", "-P", "-I"):
        argv.pop(0)
    code = 0
    try:
        for path in environment.get("PYTHONPATH", "").split(os.pathsep):
            if path:
                sys.path.insert(0, path)
        if environment.get("ELASTIC_WORKER_HOOKS") == "1":  # what the package's .pth does when an interpreter starts
            from elastic_core.worker.startup import arm_worker

            arm_worker()
        if argv[0] == "-m":
            sys.argv = argv[1:]
            runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        else:
            _run(argv)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
    except BaseException as error:  # noqa: BLE001  # what an interpreter does with whatever a program raises
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = 1
    _end(code)


def _run(argv: list[str]) -> None:
    """Run `-c CODE …` or `SCRIPT …` as `__main__`, a script under its absolute path, as an interpreter does."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    if argv[0] == "-c":
        sys.argv, name, source = ["-c", *argv[2:]], "<string>", argv[1].encode()
    else:
        path = Path(argv[0]).absolute()
        sys.argv, name, source = argv, str(path), path.read_bytes()
        sys.path.insert(0, str(path.parent))
        main.__file__ = name
    exec(compile(source, name, "exec", dont_inherit=True), main.__dict__)


def _end(code: int) -> NoReturn:
    """End as an interpreter does: threads that are none of a daemon's are waited for, exit handlers run."""
    import atexit
    import threading

    with suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter's own end
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


@pytest.fixture(scope="session")
def torch_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The path of a program that is `python` with torch imported; its server ends with the session."""
    folder = tmp_path_factory.mktemp("torch")
    address, program = str(folder / "s"), folder / "python"
    program.write_text(PROGRAM.format(python=sys.executable, address=address, passed_on=[*map(int, PASSED_ON)]))
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        server = subprocess.Popen(
            [sys.executable, __file__, str(listener.fileno())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[listener.fileno()],
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)},
        )  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        wait_for(lambda: server.poll() is not None or server.stdout.readline(), within_s=60, what="torch's import")  # type: ignore[union-attr]  # it has one
        assert server.poll() is None
        yield str(program)
    finally:
        server.stdin.close()
        server.stdout.close()
        server.wait()


@pytest.fixture(name="elastic")
def elastic_with_torch(elastic: Callable[..., Elastic], torch_python: str) -> Callable[..., Elastic]:
    """Start `elastic` as the fixture of that name does; its workers' interpreters have imported torch already."""

    def start(*args: object, env: dict[str, str] | None = None, **options: object) -> Elastic:
        return elastic(*args, env={"PYTHON_EXEC": torch_python} | (env or {}), **options)

    return start


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
