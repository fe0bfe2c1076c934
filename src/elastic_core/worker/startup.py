"""The hook at an interpreter's start that records how a worker failed, if the agent has requested that.

A `.pth` file beside the package calls `arm_worker` in every interpreter that has ELASTIC_WORKER_HOOKS in its
environment. The hook costs a script well under a millisecond and changes little that the script can see: two
environment values, and wrappers of `sys.exit` and `sys.stderr.write`. It never raises: if the hook fails, a note is
written beside the error file, and the script runs on.

A process that its agent keeps for another round is armed again: its record then goes to the file of that round.

Only the armed process writes. Its pid replaces the "1" in ELASTIC_WORKER_HOOKS: a child that executes another
interpreter finds another pid, and is not armed. A worker that executes itself again is armed again. Forked children,
which inherit the hook in memory, have another pid.

A worker that is a shell or another program leaves the "1", so that each interpreter that it starts is armed. An
interpreter whose program gets the command line of another one as arguments leaves it for that one alone. An interpreter
that is armed later removes the record of an earlier one, because the worker has survived that failure.
"""

import _signal  # type: ignore[import-not-found]  # importing `signal` is slow
import _thread
import atexit
import faulthandler
import os
import sys
import time

# Not from typing: importing it would cost more than the rest of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

HOOKS_VARIABLE = "ELASTIC_WORKER_HOOKS"
ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"
FAULT_FILE_VARIABLE = "ELASTIC_FAULT_FILE"
STARTUP_VARIABLE = "ELASTIC_STARTUP"
PROGRAM_VARIABLE = "ELASTIC_WORKER_PROGRAM"
"""The end of the command line of the only interpreter to arm, if another program precedes it."""
RECORD_PIPE_SUFFIX = ".pipe"
"""The suffix of the pipe beside the error file, through which the agent is notified of a record at once."""
BEGUN_SUFFIX = ".begun"
"""The suffix of the empty file beside the error file that is made when a failure begins to be recorded."""


_armed: "_Armed | None" = None
_fault_fd = -1
"""The descriptor of the file for faults. -1 means none."""


class _Armed:
    # The state of the hook from its arming on; the script may change its environment later.
    def __init__(self, error_file: str) -> None:
        self.pid = os.getpid()
        self.previous: Callable[[type[BaseException], BaseException, TracebackType | None], object] = sys.excepthook
        self.exits = _Exits(self.begin)
        self.begin_round(error_file)

    def begin_round(self, error_file: str) -> None:
        self.error_file = error_file
        self.written = self.reported = False
        self.exits.called = self.exits.printed = None

    def excepthook(self, kind: type[BaseException], value: BaseException, trace: "TracebackType | None") -> None:
        self.write(value)
        if value is getattr(sys, "last_value", None):  # if not, the script called the hook, and may continue
            self.report()
        self.previous(kind, value, trace)

    def at_exit(self) -> None:
        # For a script that replaced `excepthook`, never began to run, or exited with a code.
        value = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if value is not None:
            self.write(value)
            self.report()
        elif _never_ran():
            self.write(None)
        elif end := self.exits.end():
            self.write(end)
        if os.getpid() == self.pid:
            try:
                os.unlink(self.error_file + BEGUN_SUFFIX)  # noqa: PTH108  # pathlib would be slow to import
            except OSError:
                return  # it was not made

    def report(self) -> None:
        # Once, and only if the agent made the pipe.
        if not self.reported and os.getpid() == self.pid:
            self.reported = True
            _put(self.error_file + RECORD_PIPE_SUFFIX, os.O_NONBLOCK, b"%d" % self.pid)  # fails if there is no pipe

    def write(self, value: "BaseException | _Exit | None") -> None:
        # Once, in the armed process only. `None` means that there was no program to run.
        if self.written or os.getpid() != self.pid:
            return
        self.written = True
        self.begin()
        at_ns = time.time_ns()  # before the imports: ranks are ordered by it
        resume = _undisturbed()
        try:
            # Imported here because nearly every worker ends without it.
            from elastic_core.processes.errors import writer

            if value is None:
                writer.write_never_ran(self.error_file, sys.argv[0], sys.orig_argv, at_ns=at_ns)
            elif isinstance(value, _Exit):
                writer.write_exit(self.error_file, value.code, value.message or "", usage=value.usage,
                                  handled=value.handled, frames=value.frames, at_ns=value.at_ns)  # fmt: skip
            else:
                writer.write_exception(self.error_file, value, at_ns=at_ns)
        except Exception as reason:  # noqa: BLE001  # a failure to report must not become the script's failure
            _note(self.error_file, reason)
        finally:
            resume()
        if type(value) is KeyboardInterrupt:
            _remember_interrupt()

    def begin(self) -> None:
        # A file beside the error file shows, before the time of the failure is taken, that a record may follow. The
        # agent waits for it if another worker fails later and ends earlier.
        _put(self.error_file + BEGUN_SUFFIX, os.O_CREAT, b"")


class _Exit:
    # One exit with a code other than 0. `message` is `None` if the interpreter prints it, and creates it only then.
    def __init__(self, code: int, message: "str | None" = "") -> None:
        self.code, self.message, self.usage, self.at_ns = code, message, False, time.time_ns()
        self.handled: dict[str, object] = {}
        self.frames: list[tuple[str, int, str, str]] = []


class _Exits:
    # The last call of `sys.exit`, and the message that the interpreter prints for a SystemExit that ends the process.
    # The interpreter passes a SystemExit to no hook. It prints the message by `sys.stderr.write` without a Python
    # frame, as nothing else does. For an exit with a number, only the call of `sys.exit` can be observed.
    def __init__(self, begin: "Callable[[], None]") -> None:
        self.begin = begin
        self.pid, self.thread = os.getpid(), _thread.get_ident()
        self.called: _Exit | None = None
        self.printed: _Exit | None = None
        self.leave = sys.exit
        self.observed = False

    def end(self) -> "_Exit | None":
        # `None` means not known. If a message was not printed, the script caught the exit.
        called = self.called
        if self.printed is not None and self.printed.message:
            if called is not None and called.message is None:
                self.printed.frames, self.printed.at_ns = called.frames, called.at_ns
            return self.printed
        if called is None or called.message is None or not (called.message or called.handled):
            return None
        return called

    def watch(self) -> None:
        def exit(*status: object) -> object:
            try:
                self.note(status[0] if status else None)
            except Exception:  # noqa: BLE001  # the exit must not fail
                self.called = None
            return self.leave(*status)  # type: ignore[arg-type]  # as given

        exit.__doc__, exit.__module__, exit.__qualname__ = sys.exit.__doc__, "sys", "exit"
        sys.exit = exit  # type: ignore[assignment]  # as above
        write = getattr(sys.stderr, "write", None)

        def observe(text: str) -> object:
            try:
                sys._getframe(1)
            except ValueError:
                self.last_words(text)
            return write(text)  # type: ignore[misc]  # never set without one

        if write is not None:
            sys.stderr.write = observe  # type: ignore[method-assign]
            self.observed = True

    def last_words(self, text: str) -> None:
        # Only text without a frame counts, unless it is the exception of a callback or destructor.
        if self.printed is None and os.getpid() == self.pid:
            self.printed = _Exit(1, "" if text.startswith("Exception ignored ") else text.strip())

    def note(self, status: object) -> None:
        # The reason is the exit's message, that of argparse or click, or the handled exception.
        if _thread.get_ident() != self.thread or os.getpid() != self.pid:
            return
        if isinstance(status, tuple) and len(status) == 1:
            status = status[0]  # the interpreter unpacks it too
        self.called = None
        if status is None or (isinstance(status, int) and not status & 0xFF):
            return
        self.begin()
        frame = sys._getframe(2)  # the caller of `exit`
        if not isinstance(status, int):
            called = _Exit(1, None if self.observed else str(status))
        else:
            called = _Exit(status & 0xFF)
            handled: Any = sys.exc_info()[1]
            caller = str(frame.f_globals.get("__name__"))
            if caller.startswith("click.") and not hasattr(handled, "format_message"):
                handled = getattr(frame.f_locals.get("report"), "__self__", None)  # click 8.5 exits after its handler
            if caller == "argparse":
                called.message = str(frame.f_locals.get("message") or "")
            elif hasattr(handled, "format_message"):  # click has printed it
                called.message = str(handled.format_message())
            elif handled is not None and not hasattr(handled, "exit_code"):  # click's Exit has only a code
                from elastic_core.processes.errors import writer

                called.handled = writer.describe_handled(handled)  # as text: the exception keeps its frames alive
            called.usage = called.code == 2 and bool(called.message)
        walked: Any = frame
        while walked is not None and len(called.frames) < 200:
            called.frames.insert(0, (walked.f_code.co_filename, walked.f_lineno, walked.f_code.co_name, ""))
            walked = walked.f_back
        self.called = called


def arm_worker() -> None:
    """Arm the hook in this process, as its environment variables configure it.

    Called: at its start, and at the start of each further round for which its agent keeps it.
    """
    global _armed, _fault_fd
    error_file = os.environ.get(ERROR_FILE_VARIABLE, "")
    again = _armed is not None and _armed.pid == os.getpid()
    try:
        path = os.path.abspath(error_file)  # noqa: PTH100  # pathlib costs more than this whole module
        if again and _armed is not None and _armed.error_file == path:
            return  # two installations of the package, each with its .pth file
        if not ("\n" + "\n".join(sys.orig_argv)).endswith(os.environ.get(PROGRAM_VARIABLE, "")):
            return
        os.environ.pop(PROGRAM_VARIABLE, None)
        if program := _program_behind(sys.orig_argv):
            os.environ[PROGRAM_VARIABLE] = program
        else:
            os.environ[HOOKS_VARIABLE] = str(os.getpid())
        if error_file:
            _put(error_file, os.O_TRUNC | os.O_NONBLOCK, b"")
            if again and _armed is not None:
                _armed.begin_round(path)
            else:
                _armed = _Armed(path)
                sys.excepthook = _armed.excepthook
                _armed.exits.watch()
                atexit.register(_armed.at_exit)
        fault_file = os.environ.get(FAULT_FILE_VARIABLE, "")
        # If a user has enabled faulthandler, the dump is expected on stderr.
        if fault_file and (_fault_fd >= 0 or not faulthandler.is_enabled()):
            last_fd = _fault_fd
            _fault_fd = os.open(fault_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
            faulthandler.enable(file=_fault_fd, all_threads=True)
            if last_fd >= 0:
                os.close(last_fd)
        for name in os.environ.get(STARTUP_VARIABLE, "").split(","):
            if name:
                _call(name, error_file)
    except Exception as reason:  # noqa: BLE001  # a script must run whether or not its failure can be recorded
        _note(error_file, reason)


def _program_behind(command: "list[str]") -> str:
    # The arguments of the interpreter after a command line's own program, each after a line end. That program starts
    # the worker's interpreter (a profiler, for example), or has an interpreter's name as an argument.
    for at, word in enumerate(command[2:], start=2):
        name = word.rpartition("/")[2]
        if name.startswith("python") and not name[6:].strip("0123456789."):
            return "".join("\n" + following for following in command[at + 1 :])
    return ""


def _call(name: str, error_file: str) -> None:
    # A hook of the agent has registered the function (`module:function`) for this worker.
    module, _, function = name.partition(":")
    try:
        __import__(module)
        getattr(sys.modules[module], function)()
    except Exception as reason:  # noqa: BLE001  # as in `arm_worker`
        _note(error_file, reason)


def _undisturbed() -> "Callable[[], None]":
    # Until the returned function is called, no signal interrupts a record. If SIGINT goes to all processes, the agent
    # sends a second one, which is ignored. If the agent stops this worker for a peer's failure, SIGTERM acts later.
    came: list[int] = []
    actions = {_signal.SIGINT: _signal.SIG_IGN, _signal.SIGTERM: lambda signum, _: came.append(signum)}
    before: dict[int, Any] = {}
    try:
        for signum, action in actions.items():
            if _signal.getsignal(signum) is not None:  # if not, the action of native code could not be restored
                before[signum] = _signal.signal(signum, action)
    except ValueError:  # in another thread
        pass

    def resume() -> None:
        for signum, action in before.items():
            _signal.signal(signum, action)
        if came:
            os.kill(os.getpid(), _signal.SIGTERM)

    return resume


def _remember_interrupt() -> None:
    # Restores the interpreter's note that a KeyboardInterrupt ended it, so that it still dies of SIGINT. Every `eval`
    # of a string clears the note (imports use it); an `eval` that ends in a KeyboardInterrupt sets it.
    try:
        eval("(_ for _ in ()).throw(KeyboardInterrupt)")
    except KeyboardInterrupt:
        return


def _never_ran() -> bool:
    # If the interpreter found no program, `__main__` keeps its initial loader.
    named = bool(sys.argv) and sys.argv[0] not in ("", "-", "-c")
    loader = getattr(sys.modules.get("__main__"), "__loader__", None)
    return named and getattr(loader, "__name__", "") == "BuiltinImporter"


def _note(error_file: str, reason: Exception) -> None:
    # A file beside the error file explains why there is no record.
    if error_file:
        text = f"worker hook: {type(reason).__name__}: {reason}\n"
        _put(error_file + ".note", os.O_CREAT | os.O_APPEND, text.encode("utf-8", "backslashreplace"))


def _put(path: str, flags: int, data: bytes) -> None:
    # Errors are ignored.
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o600)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
    except OSError:
        return
