"""A spare: an interpreter that has imported slow modules and waits to become a worker.

The agent runs this file as a script, `python -u spare.py FD IMPORTS SCRIPT|-m MODULE [ARGUMENT ...]`. Through the
socket FD it sends one byte with three descriptors: the environment, the worker's stdout, its stderr. The process then
runs the script as the interpreter itself does, with a fresh `__main__`. Until then it starts no threads, uses no
device, writes to /dev/null, and has only the worker's command and the run's mark. If the socket closes, the agent has
ended, and the process exits silently.

A script can notice two differences: one more frame at the bottom of a live stack, and modules that are loaded before it
imports them (docs/explanation/standby.md).
"""

_GIVEN = dict(globals())  # what this interpreter gives every script's module; before the first name of ours

import os  # noqa: E402  # the line above must come first
import sys  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from types import CodeType, ModuleType, TracebackType
    from typing import Any

READY = b"ready"
FAILED = b"failed "
_MAX_REASON_BYTES = 1000
_DESCRIPTORS = 3


class Program:
    """The worker's program, as on the interpreter's command line after `-u`."""

    def __init__(self, words: list[str]) -> None:
        """Parse the arguments: a script or `-m MODULE`, and its arguments."""
        self.words = words
        self.module = words[1] if words[0] == "-m" else None
        self.arguments = words[1:] if self.module is None else words[2:]
        # As the interpreter does: made absolute, and no link followed.
        self.file = "" if self.module is not None else os.path.join(os.getcwd(), words[0])  # noqa: PTH109, PTH118

    def importer(self) -> object:
        """Return the importer of the script, if it is a directory or an archive. `None` for a plain file."""
        if self.module is not None:
            return None
        import pkgutil

        return pkgutil.get_importer(self.file)

    def first_path(self) -> str:
        """Return the first entry of `sys.path` as Python sets it.

        Source: `_PyPathConfig_ComputeSysPath0` and `main.c`.
        """
        if self.module is not None:
            return os.getcwd()  # noqa: PTH109  # pathlib is not ours to load into a script's interpreter
        if self.importer() is not None:
            return self.file
        return os.path.dirname(os.path.realpath(self.file))  # noqa: PTH120  # as above

    def command(self, executable: str) -> list[str]:
        """Return the command line of a cold start."""
        return [executable, "-u", *self.words]


# --- before the orders


def stand_by(fd: int, imports: list[str], program: Program) -> None:
    """Import, report that, wait for the orders and become the worker. Return when its program is to be run."""
    import socket
    from contextlib import suppress

    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123  # pathlib is not ours to load
        started_with = _entries(file.read())
    os.set_inheritable(fd, False)
    agent = socket.socket(fileno=fd)
    policy = _step_back()
    with_path = not sys.flags.safe_path
    if with_path:
        # Before the imports: what the script's directory hides from them in a cold start, it hides here too.
        sys.path.insert(0, program.first_path())
    reason = _import_all(imports)
    with suppress(OSError):  # the agent is gone: so `_receive` will find
        agent.send(FAILED + reason.encode("utf-8", "replace")[:_MAX_REASON_BYTES] if reason else READY)
    environment = _receive(agent)
    _step_forward(policy)
    _replace_environment(started_with, environment)
    if with_path:
        del sys.path[0]
    sys.argv[:] = program.words if program.module is None else ["-m", *program.arguments]
    executable = sys.orig_argv[0]
    sys.orig_argv[:] = program.command(executable)
    if reason:
        # A module that stopped half-way would fail differently for the script: begin again.
        os.execvp(executable, sys.orig_argv)  # the very command that the agent would have started
    _arm()
    for finder in list(sys.path_importer_cache.values()):
        if finder is not None and hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()
    if with_path:
        sys.path.insert(0, program.first_path())


def _import_all(names: list[str]) -> str:
    """Import these modules, except those not installed. Return why that failed, or an empty text."""
    for name in names:
        try:
            __import__(name)
        except ModuleNotFoundError as error:
            if not error.name or not f"{name}.".startswith(f"{error.name}."):
                return f"import {name}: {error}"
        except Exception as error:  # noqa: BLE001  # whatever it is, the agent tells it
            return f"import {name}: {type(error).__name__}: {error}"
    return ""


def _step_back() -> int | None:
    """Give way to workers while importing. Return the policy to restore, or `None` if it was not changed.

    It uses SCHED_BATCH: from a lower niceness, or from SCHED_IDLE, there is no way back without privileges.
    """
    policy = os.sched_getscheduler(0)
    if policy != os.SCHED_OTHER:
        return None
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError:  # a sandbox
        return None
    return policy


def _step_forward(policy: int | None) -> None:
    if policy is None:
        return
    for tid in os.listdir("/proc/self/task"):  # noqa: PTH208  # threads that libraries started inherited ours
        try:
            os.sched_setscheduler(int(tid), policy, os.sched_param(0))
        except OSError:
            continue  # it has ended


def _replace_environment(started_with: dict[bytes, bytes], ordered: dict[bytes, bytes]) -> None:
    """Set the ordered environment, and keep changes by the interpreter and the imports."""
    now = dict(os.environb)
    os.environ.clear()
    os.environb.update({name: value for name, value in ordered.items() if name in now or name not in started_with})
    os.environb.update({name: value for name, value in now.items() if started_with.get(name) != value})


def _entries(block: bytes) -> dict[bytes, bytes]:
    pairs = (entry.partition(b"=") for entry in block.split(b"\0")[:-1])
    return {name: value for name, _, value in pairs}


def _receive(agent: "socket.socket") -> dict[bytes, bytes]:
    """Wait for the orders, set the streams, and return the environment."""
    import socket

    data, fds, _, _ = socket.recv_fds(agent, 1, _DESCRIPTORS)
    if not data or len(fds) != _DESCRIPTORS:
        os._exit(0 if not data else 1)  # nothing to clean up, and no reader of a message
    agent.close()
    environment_fd, out_fd, err_fd = fds
    os.dup2(out_fd, 1)
    os.dup2(err_fd, 2)
    size = os.fstat(environment_fd).st_size
    content = b""
    while len(content) < size:
        content += os.pread(environment_fd, size - len(content), len(content))
    for fd in fds:
        os.close(fd)
    return _entries(content)


def _arm() -> None:
    """Do the same as the `.pth` file in a cold start."""
    if os.environ.get("ELASTIC_WORKER_HOOKS", "") not in ("1", str(os.getpid())):
        return
    try:
        from elastic_core.api.workers import arm_worker
    except ImportError:
        return  # an interpreter without our package has no such hook
    arm_worker()


# --- the program


def prepare(program: Program) -> "tuple[Callable[..., object], tuple[Any, ...]]":
    """Return the call that runs the program in a fresh `__main__`."""
    if program.module is not None or program.importer() is not None:
        # The interpreter does just this for `-m`, directories and archives.
        import runpy

        _replace_main()
        return runpy._run_module_as_main, (program.module or "__main__", program.module is not None)  # type: ignore[attr-defined]  # private, and what main.c calls
    code = _compile(program.file)
    if code is None:
        # The interpreter has its own words for what it can't open or understand, and its ways with what is compiled.
        os.execvp(sys.orig_argv[0], sys.orig_argv)  # the very command that the agent would have started
    return exec, (code, _replace_main(program.file).__dict__)


def _compile(path: str) -> "CodeType | None":
    try:
        with open(path, "rb") as file:  # noqa: PTH123  # pathlib is not ours to load
            return compile(file.read(), path, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return None


def _replace_main(file: str | None = None) -> "ModuleType":
    """Make the `__main__` that the interpreter would have: with a script's file, or without one."""
    from importlib.machinery import BuiltinImporter, SourceFileLoader

    main = type(sys)("__main__")
    given = {**_GIVEN, "__doc__": None, "__loader__": BuiltinImporter}
    if "__annotations__" in given:
        given["__annotations__"] = {}
    if file is None:
        for name in ("__file__", "__cached__"):
            given.pop(name, None)
    else:
        given |= {"__file__": file, "__loader__": SourceFileLoader("__main__", file)}
    main.__dict__.update(given)
    sys.modules["__main__"] = main
    return main


class _Trimmed:
    """Replaces `sys.excepthook` once, if the program has failed: removes this module's frames from the traceback."""

    def __init__(self) -> None:
        self.hook = sys.excepthook

    def __call__(self, kind: type[BaseException], value: BaseException, trace: "TracebackType | None") -> None:
        sys.excepthook = self.hook
        while trace is not None and trace.tb_frame.f_globals is globals():
            trace = trace.tb_next
        value.__traceback__ = sys.last_traceback = trace
        self.hook(kind, value, trace)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # our own directory
    _program = Program(sys.argv[3:])
    stand_by(int(sys.argv[1]), [name for name in sys.argv[2].split(",") if name], _program)
    try:
        # Run from here, so that the program has one frame of ours below it. The interpreter does the rest: what
        # SystemExit means, printing, exit codes, threads, atexit.
        _run, _arguments = prepare(_program)
        _run(*_arguments)
    except SystemExit:
        raise
    except BaseException:
        if getattr(sys, "excepthook", None) is not None:
            sys.excepthook = _Trimmed()
        raise
