"""A spare: an interpreter that has imported slow modules and waits to become a worker, or forks workers.

The agent runs this file as a script, `python -u spare.py [--fork] FD IMPORTS SCRIPT|-m MODULE [ARGUMENT ...]`. Through
the socket FD it sends one byte with three descriptors: the orders (the environment and the arguments), the worker's
stdout, its stderr. The process then runs the script as the interpreter itself does, with a fresh `__main__`. Until then
it starts no threads, uses no device, writes to no stream of the agent, and has only the worker's command and the run's
mark. If the socket closes, the agent has ended, and the process exits silently.

With `--fork`, the process is a server: it forks processes that wait for their orders, each with a socket of its own
that came with the request. They are children of the agent, which is a subreaper: the process between them and the
server ends once the agent has their numbers.

A script can notice some differences, such as one more frame at the bottom of a live stack, and modules that are loaded
before it imports them (docs/explanation/standby.md has all).
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
COUNTED = b"counted"
"""As `READY`, of a server whose imports have counted the processors, to choose how many threads they will use."""
FAILED = b"failed "
FORKED = b"forked"
"""A batch of processes was forked, with their numbers. The agent answers with one byte."""
ADOPTED = b"adopted"
"""The batch is now the agent's."""
MAX_BATCH = 100
"""The most processes of a batch. The kernel accepts 253 descriptors in one message."""
_MAX_REASON_BYTES = 1000
_REQUEST_BYTES = 1 << 16
"""The longest request for forks: it names packages of hooks."""
_DESCRIPTORS = 3
_PARAMETERS = ("host_name", "port", "world_size", "is_master", "timeout")
"""The first parameters of torch's TCPStore."""
_LISTENS_S = 1.0
_FIRST_PAUSE_S = 0.001
_GROWTH = 1.5
"""Of the pause between two looks."""
_WITH_THREADS = ("libgomp", "libomp", "libiomp", "libmkl", "libtorch", "openblas", "libblis", "libtbb")
_HARMLESS = ("null", "zero", "full", "random", "urandom", "tty", "console", "ptmx", "pts/", "shm/", "fd/")
"""Entries of /dev that are no devices of an accelerator or a network."""


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


def stand_by(fd: int, imports: list[str], program: Program, *, forks: bool) -> Program:
    """Import, report that, wait for the orders and become the worker. Return the program that is to be run.

    With `forks`, only forks of this process return.
    """
    import socket
    from contextlib import suppress

    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123  # pathlib is not ours to load
        started_with = _entries(file.read())
    os.set_inheritable(fd, False)
    agent = socket.socket(fileno=fd)
    output = _Output() if forks else None
    policy = None if forks else _step_back()
    with_path = not sys.flags.safe_path
    if forks:
        _import_hooks()  # the script's directory hides nothing from them, as in a cold start
    if with_path:
        # Before the imports: what the script's directory hides from them in a cold start, it hides here too.
        sys.path.insert(0, program.first_path())
    before = _descriptors()
    reason = _import_all(imports)
    if output is not None:
        agent = _fork_workers(agent, reason or _settle_down(before, output))
        _renew()  # before the orders, after which all ranks wait for this process
    else:
        with suppress(OSError):  # the agent is gone: so `_receive` will find
            agent.send(_failed(reason) if reason else READY)
    environment, words = _receive(agent)
    if output is not None:
        output.replay()
        _start_clock()
    program = Program(words)
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
    if output is not None:
        _retitle(sys.orig_argv)
    _arm()
    _let_client_wait()
    _forget_folders()
    if with_path:
        sys.path.insert(0, program.first_path())
    return program


def _failed(reason: str) -> bytes:
    return FAILED + reason.encode("utf-8", "replace")[:_MAX_REASON_BYTES]


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


def _receive(agent: "socket.socket") -> tuple[dict[bytes, bytes], list[str]]:
    """Wait for the orders, set the streams, and return the environment and the arguments."""
    import marshal
    import socket

    data, fds, _, _ = socket.recv_fds(agent, 1, _DESCRIPTORS)
    if not data or len(fds) != _DESCRIPTORS:
        os._exit(0 if not data else 1)  # nothing to clean up, and no reader of a message
    agent.close()
    orders_fd, out_fd, err_fd = fds
    os.dup2(out_fd, 1)
    os.dup2(err_fd, 2)
    environment, words = marshal.loads(_content(orders_fd))
    for fd in fds:
        os.close(fd)
    return _entries(environment), [os.fsdecode(word) for word in words]


def _content(fd: int, size: int | None = None) -> bytes:
    """Return what a file holds, up to a size. Its offset, which other processes share, is not used."""
    size = os.fstat(fd).st_size if size is None else size
    content = b""
    while len(content) < size:
        content += os.pread(fd, size - len(content), len(content))
    return content


def _forget_folders() -> None:
    """Have imports look into each folder again."""
    for finder in list(sys.path_importer_cache.values()):
        if finder is not None and hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()


def _import_hooks() -> None:
    """Import what `_arm` needs, once for all workers."""
    try:
        import elastic_core.api.workers  # noqa: F401
    except Exception:  # noqa: BLE001  # `_arm` fails in the same way, where it matters
        return


def _import_ahead(packages: list[str]) -> str:
    """Import the modules `ahead` of hooks' packages: what functions that workers run in `_arm` need, once for all.

    They must start no threads or processes, and read no variables. Return as `_shared`, or an empty text.
    """
    if not packages:
        return ""
    import gc
    from importlib.machinery import PathFinder

    before = _descriptors()
    first = [] if sys.flags.safe_path else sys.path[:1]  # the script's directory: as for `_import_hooks`
    del sys.path[: len(first)]
    for name in packages:
        folders = getattr(PathFinder.find_spec(name), "submodule_search_locations", None) or ()
        if not any(os.path.isfile(f"{folder}/ahead.py") for folder in folders):  # noqa: PTH113  # no pathlib, as above
            continue
        try:
            __import__(f"{name}.ahead")
        except (Exception, SystemExit):  # noqa: BLE001  # `_arm` fails in the same way, where it matters
            continue
    sys.path[:0] = first
    gc.freeze()  # as in `_settle_down`
    return _shared(before)


def _arm() -> None:
    """Do the same as the `.pth` file in a cold start."""
    if os.environ.get("ELASTIC_WORKER_HOOKS", "") not in ("1", str(os.getpid())):
        return
    try:
        from elastic_core.api.workers import arm_worker
    except ImportError:
        return  # an interpreter without our package has no such hook
    arm_worker()


# --- the store of torch.distributed


def _let_client_wait() -> None:
    """Let the first client of rank 0's store wait until that listens, if rank 0 is on this node.

    Workers that import nothing reach the store at the same time. A client that is refused, because rank 0 is last,
    pauses for 250 ms to 750 ms (torch 2.13), which is longer than the rest of a restart.
    """
    store = getattr(sys.modules.get("torch._C._distributed_c10d"), "TCPStore", None)
    port, rank, node = (os.environ.get(name, "") for name in ("MASTER_PORT", "RANK", "GROUP_RANK"))
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "False"  # then it listens already
    if store is None or rank == "0" or node != "0" or hosted or not port.isdecimal():
        return
    pid, others, make = os.getpid(), vars(store).get("__new__"), store.__new__

    # Its `__init__` connects, after this has returned: a traceback of that has no frame of ours.
    def __new__(cls: type, *args: object, **kwargs: object) -> object:
        given = {**dict(zip(_PARAMETERS, args, strict=False)), **kwargs}
        if given.get("port") == int(port) and os.getpid() == pid:
            if others is None:
                del store.__new__
            else:
                store.__new__ = others
            if not given.get("is_master"):
                _await_listener(int(port), given.get("timeout"))
        return make(cls, *args, **kwargs)

    store.__new__ = __new__


def _await_listener(port: int, limit: object) -> None:
    """Wait until a process of this host listens on a port, at most `_LISTENS_S`, and no longer than a store's limit."""
    import time

    limit_s = min(_LISTENS_S, getattr(limit, "total_seconds", float)() or _LISTENS_S)
    pause_s, end_s = _FIRST_PAUSE_S, time.monotonic() + limit_s
    while not _is_taken(port) and (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(pause_s, left_s))  # noqa: TID251  # a worker has no reactor
        pause_s *= _GROWTH


def _is_taken(port: int) -> bool:
    """Return whether a socket listens on a port that the agent holds, or whether that is not known.

    The agent's socket is bound, and reuses its address: such sockets can share a port until one of them listens. A
    connection would show it as well, but torch's server can keep other clients waiting for seconds after one that
    sends nothing.
    """
    import socket

    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except OSError:
        return True
    return False


# --- the server


class _Output:
    """What the imports print. Each worker prints it at its start, as if it had imported the modules itself."""

    def __init__(self) -> None:
        self._files: list[tuple[int, int]] = []
        """The file of each stream, and how much of it is the imports'."""
        for stream in (1, 2):
            fd = os.memfd_create("elastic-imports", os.MFD_CLOEXEC)
            os.dup2(fd, stream)
            self._files.append((fd, 0))

    def end(self) -> None:
        """Ignore what is printed from now on."""
        self._files = [(fd, os.fstat(fd).st_size) for fd, _ in self._files]

    def replay(self) -> None:
        """Print it."""
        for stream, (fd, size) in enumerate(self._files, start=1):
            rest = memoryview(_content(fd, size))
            os.close(fd)
            while rest:
                try:
                    rest = rest[os.write(stream, rest) :]
                except OSError:  # a full disk, or a closed pipe: a print by an import would have failed, too
                    break


def _descriptors() -> dict[str, str]:
    """Return what each open descriptor refers to."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208  # pathlib is not ours to load
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115  # as above
        except OSError:  # the descriptor of the listing itself
            continue
    return found


def _settle_down(before: dict[str, str], output: _Output) -> str:
    """Prepare for forks after the imports. Return why forked workers would not be like fresh ones, or an empty text."""
    import gc
    import warnings

    output.end()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads: what is left of them is looked for below
        # Libraries such as OpenBLAS end their threads at a fork, and start them again when they need them.
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    if reason := _shared(before):
        return reason
    gc.collect()
    gc.freeze()  # so that a collection in a worker does not write to, and so copy, the memory that it shares
    return ""


def _shared(before: dict[str, str]) -> str:
    """Return what the imports have begun that a fork would lose or share; empty if there is nothing."""
    threads = os.listdir("/proc/self/task")  # noqa: PTH208  # pathlib is not ours to load
    if len(threads) > 1:
        names = []
        for tid in sorted(threads, key=int)[1:]:
            with open(f"/proc/self/task/{tid}/comm") as file:  # noqa: PTH123  # as above
                names.append(file.read().strip())
        return f"the imports have started {len(names)} thread(s) ({', '.join(sorted(set(names)))})"
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        pass
    else:
        return "the imports have started a process"
    for fd, name in _descriptors().items():
        device = name.removeprefix("/dev/")
        if device != name and not device.startswith(_HARMLESS):
            return f"the imports have opened the device {name}"
        if before.get(fd) != name and not name.startswith("/"):
            return f"the imports have opened a descriptor that workers can't share ({name})"
    return ""


def _has_counted() -> bool:
    """Return whether a library is loaded that has threads of its own for computations."""
    with open("/proc/self/maps") as file:  # noqa: PTH123  # pathlib is not ours to load
        text = file.read()
    return any(name in text for name in _WITH_THREADS)


def _fork_workers(agent: "socket.socket", reason: str) -> "socket.socket":
    """Fork workers on request, or report a reason against it. Return only in a worker, with its own socket."""
    import socket

    known: set[str] = set()
    try:
        agent.send(_failed(reason) if reason else COUNTED if _has_counted() else READY)
        while not reason:
            data, fds, _, _ = socket.recv_fds(agent, _REQUEST_BYTES, MAX_BATCH)
            if not data:
                break
            packages = os.fsdecode(data).split(",")[1:]
            if reason := _import_ahead([name for name in packages if name not in known]):
                agent.send(_failed(reason))
                break
            known.update(packages)
            between = os.fork()
            if between == 0:
                return _fork_batch(agent, fds)
            for fd in fds:
                os.close(fd)
            os.waitpid(between, 0)
            agent.send(ADOPTED)
    except OSError:  # the agent has ended, or no process can be forked
        os._exit(1)
    os._exit(0)


def _fork_batch(agent: "socket.socket", fds: list[int]) -> "socket.socket":
    """Fork a process for each socket, and end when the agent knows them. Return only in such a process."""
    import socket

    began, begins = os.pipe()
    pids: list[int] = []
    for fd in fds:
        try:
            pid = os.fork()
        except OSError:  # the agent starts the others afresh
            break
        if pid == 0:
            os.setsid()
            os.write(begins, b"x")
            for other in (began, begins, agent.detach(), *fds):
                if other != fd:
                    os.close(other)
            return socket.socket(fileno=fd)
        pids.append(pid)
    os.close(begins)
    for _ in pids:
        os.read(began, 1)  # each leads a session from now on
    try:
        agent.send(b" ".join((FORKED, *(b"%d" % pid for pid in pids))))
        agent.recv(1)
    except OSError:  # the agent has ended, and its sockets with it
        os._exit(1)
    os._exit(0)


def _renew() -> None:
    """Give this process what each interpreter makes for itself, and forks of one would share."""
    if (numpy := sys.modules.get("numpy.random")) is not None:
        numpy.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()  # of the processor; those of devices have a fixed seed, and are made later
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        process.current_process().authkey = os.urandom(32)
    threading = sys.modules.get("threading")
    if threading is not None and hasattr(main := threading.main_thread(), "_set_native_id"):
        main._set_native_id()  # Python 3.11 leaves the server's at a fork
    _forget_folders()  # again later, but the memory that the second call changes is this process's own then


def _start_clock() -> None:
    """Have log records count from now."""
    if (logging := sys.modules.get("logging")) is not None:
        import time

        # The start that `relativeCreated` counts from; nanoseconds from Python 3.13 on.
        now = time.time_ns() if isinstance(vars(logging)["_startTime"], int) else time.time()  # noqa: TID251  # as there
        vars(logging)["_startTime"] = now


def _retitle(command: list[str]) -> None:
    """Show the worker's command in process lists, in place of the server's, which is longer."""
    try:
        with open("/proc/self/stat") as file:  # noqa: PTH123  # pathlib is not ours to load
            fields = file.read().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # Source: proc_pid_stat(5), arg_start and arg_end
        title = b"".join(os.fsencode(word) + b"\0" for word in command)[: end - start - 1].ljust(end - start, b"\0")
        with open("/proc/self/mem", "r+b", buffering=0) as memory:  # noqa: PTH123  # as above
            os.pwrite(memory.fileno(), title, start)
    except (OSError, ValueError, IndexError):  # a sandbox: it is for eyes only
        return


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
    _forks = sys.argv[1] == "--fork"
    _fd, _imports, *_words = sys.argv[2:] if _forks else sys.argv[1:]
    _program = stand_by(int(_fd), [name for name in _imports.split(",") if name], Program(_words), forks=_forks)
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
