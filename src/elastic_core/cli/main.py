"""The entry point of all command lines: runs a command, and turns an error into one line and an exit code."""

import importlib
import io
import os
import sys
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from elastic_core.errors import ConfigError, ElasticError

if TYPE_CHECKING:
    from elastic_core.cli.arguments import Arguments

_INTERRUPTED = 130  # 128 + SIGINT
_BROKEN_PIPE = 141  # 128 + SIGPIPE
COMPLETE_VARIABLE = "_ELASTIC_COMPLETE"
"""The variable that a shell sets to complete an unfinished line."""


def elastic_process(argv: Sequence[str] | None = None) -> None:
    """Run `main` as this process, then exit without the interpreter's slow shutdown.

    Exit functions run and streams are flushed as usual; only modules are not torn down, which saves tens of
    milliseconds.
    """
    import atexit
    import gc

    _open_closed_streams()
    gc.disable()  # a tenth of the start-up; `run_job` enables it again
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["run"]:
        _import_with_less()
        from elastic_core.plugins.discovery import keep_entries

        keep_entries()
    code = main(words)

    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # the reader is gone, or the stream is closed
        code = code or _BROKEN_PIPE
    os._exit(code)


class _StandIn(ModuleType):
    # In place of a module that another imports for what no start calls. The first use imports the module itself.
    def __init__(self, name: str, *functions: str, **given: object) -> None:
        super().__init__(name)
        vars(self).update(given, **{function: partial(self._call, function) for function in functions})

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # asked by imports themselves
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)  # what was asked for, from its own module

    def _call(self, function: str, *values: object, **options: object) -> object:
        return getattr(importlib.import_module(self.__name__), function)(*values, **options)  # once it is called


def _import_with_less() -> None:
    # An eighth of our start-up is in modules that these three import and that nothing here needs. While they are
    # imported, others stand for those. That is safe: no other thread of this process could import one, and later
    # imports find the modules themselves.
    stand_ins: dict[str, Any] = {
        **{name: _StandIn(name) for name in ("locale", "msgspec.inspect", "textwrap")},
        # Not on this system, or, since Python 3.11, of no use for msgspec: their import fails at once.
        **dict.fromkeys(("_winapi", "msvcrt", "nt", "typing_extensions")),
        "datetime": importlib.import_module("_datetime"),  # without the same classes in Python
        "msgspec._json_schema": _StandIn("msgspec._json_schema", "schema", "schema_components"),
        "platform": _StandIn("platform", system=lambda: os.uname().sysname),
        "urllib.parse": _StandIn("urllib.parse", "quote_from_bytes"),
    }
    added = {name: module for name, module in stand_ins.items() if name not in sys.modules}
    sys.modules.update(added)
    typing_names = vars(sys.modules["typing"])
    # msgspec tries a keyword of `ForwardRef`. The first text that is compiled makes the classes of a syntax tree.
    typing_names["compile"] = lambda *_: None
    try:
        for name in ("msgspec", "pathlib", "subprocess"):
            importlib.import_module(name)
    finally:
        del typing_names["compile"]
        for name, module in added.items():
            if sys.modules.get(name, 0) is module:
                del sys.modules[name]


def _open_closed_streams() -> None:
    # If a standard stream is closed (`>&-`), as in daemons, the next opened descriptor, such as a log file, would be
    # taken for our stdout and that of the workers. So closed streams become /dev/null.
    for fd, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest free number: `fd`
            os.set_inheritable(nowhere, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w", closefd=False))


def main(argv: Sequence[str] | None = None) -> int:
    """Run `elastic` with these arguments (default: the process's own) and return its exit code."""
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # names that a terminal can't show are no error
        code = _run(list(sys.argv[1:] if argv is None else argv))
        if sys.stdout is not None:
            sys.stdout.flush()  # here a closed pipe is still an error
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The interpreter's last flush must not find a closed pipe.
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - only its descriptor is used
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return _BROKEN_PIPE
    except Exception as error:  # noqa: BLE001  # the last resort: reported on stderr, below
        from elastic_core.cli.pasted import pasted

        return _report(pasted(error, sys.argv[1:] if argv is None else argv) or error)
    return code


def _run(argv: list[str]) -> int:
    if argv[:1] == ["run"] and COMPLETE_VARIABLE not in os.environ:
        from elastic_core.cli.arguments import read_arguments

        arguments = read_arguments(argv[1:])
        if not arguments.help:
            return start(arguments)
    return _run_click(argv)


def start(arguments: "Arguments") -> int:
    """Resolve the options, run the job or describe it (`--dry-run`), and return the exit code.

    It does not import click, which would cost a fifth of the start-up.

    Raises:
        ElasticError: The run cannot be started with these options.
    """
    if "print_completion" in arguments.given:
        return _print_completion(str(arguments.given["print_completion"]))
    from elastic_core.system.clock import SYSTEM_CLOCK

    began = {"interpreter and command line": SYSTEM_CLOCK.monotonic_s()}
    from elastic_core.options.resolve import resolve

    if arguments.script is None:
        given = ((name, str(value)) for name, value in arguments.given.items())
        taken = [each for each in given if each[1].endswith(".py") and "=" not in each[1]]  # after it may be a secret
        why = "".join(f": {value!r} is the value of --{name.replace('_', '-')}" for name, value in taken[-1:])
        raise ConfigError(f"no script given{why}", hint="elastic run [OPTIONS] SCRIPT [ARGS...], or elastic run --help")
    dry, verbose = "dry_run" in arguments.given, "verbose" in arguments.given
    if verbose and not dry:
        raise ConfigError("--verbose: given without --dry-run; expected both", hint="elastic run --dry-run -v SCRIPT")
    resolution = resolve(arguments.given, arguments.script, arguments.rest, environ=os.environ)
    if dry:
        from elastic_core.cli.dry_run import describe
        from elastic_core.cli.output import echo

        echo(*describe(resolution, os.environ, verbose=verbose).split("\n"))
        return 0
    began["options"] = SYSTEM_CLOCK.monotonic_s()
    from elastic_core.launcher.job import run_job

    began["launcher's imports"] = SYSTEM_CLOCK.monotonic_s()
    return run_job(resolution.settings, began=began, origins=resolution.origins)


def _print_completion(shell: str) -> int:
    from elastic_core.cli.completion_command import SHELLS, completion_script

    if shell not in SHELLS:
        raise ConfigError(f"--print-completion: {shell!r}; expected one of {', '.join(SHELLS)}", hint="bash")
    sys.stdout.write(completion_script(shell))
    return 0


def _run_click(argv: list[str]) -> int:
    import click

    from elastic_core.cli.group import elastic

    if COMPLETE_VARIABLE in os.environ:
        import elastic_core.cli.completion_command  # noqa: F401  # adds tcsh to click

        elastic.main(argv, prog_name="elastic", complete_var=COMPLETE_VARIABLE)
    try:
        with elastic.make_context("elastic", argv) as context:
            code = elastic.invoke(context)
    except click.exceptions.Exit as error:
        return error.exit_code
    return code if isinstance(code, int) else 0


def _report(error: Exception) -> int:
    if os.environ.get("ELASTIC_DEBUG") == "1":
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, ElasticError) and not str(error):  # another process of this start reports it
        return error.exit_code
    if isinstance(error, ElasticError):
        return _write_error(str(error), error.exit_code, notes=getattr(error, "__notes__", ()))
    click = sys.modules.get("click")  # not loaded: not an error of click
    if click is not None and isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # since click 8.2
        from elastic_core.cli.output import echo

        echo(*str(error).split("\n"), err=True)
        return 2
    if click is not None and isinstance(error, click.ClickException):
        command = getattr(getattr(error, "ctx", None), "command_path", "elastic")
        near, param = getattr(error, "possibilities", None) or (), getattr(error, "param", None)
        text = error.message if near else error.format_message()
        if param is not None and error.message:  # a value that click or our reader rejects
            text = f"{max(param.opts, key=len)}: {error.message}".replace(" is not one of ", "; expected one of ")
        if text.startswith(("No such ", "Missing ", "Got ")):  # click's own, which do not name the command
            text = f"{command}: {text[0].lower()}{text[1:]}".replace(". Choose from:", "; expected one of")
        text = text.replace(" is not a valid integer range", "; expected a whole number").rstrip(".?!")
        text = text.replace(" is not in the range ", "; expected ")
        return _write_error(f"{text}. Try: {' or '.join(near) or f'{command} --help'}", 2)
    if isinstance(error, OSError):
        return _write_error(f"the system refused: {error}. Try: ELASTIC_DEBUG=1 shows where", 1)
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":  # EAGAIN
        return _write_error("the system refused a thread. Try: a higher limit on processes (ulimit -u, or pids.max)", 1)
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    hint = "ELASTIC_DEBUG=1 shows where; please report it with that output"
    return _write_error(f"this is a defect of elastic-core: {what}. Try: {hint}", 1)


def _write_error(text: str, code: int, *, notes: Sequence[str] = ()) -> int:
    # Each note is one more line, such as a fault in one place of a file.
    from elastic_core.cli.output import echo
    from elastic_core.launcher.secrets import masked_text
    from elastic_core.system.colours import paint_notice

    lines = (masked_text(" ".join(line.split())) for line in (f"elastic: error: {text}", *notes))
    echo(*lines, err=True, painter=paint_notice)
    return code
