"""The entry of every command line of ours: runs a command, and turns each error into one line and an exit code."""

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.cli.arguments import Arguments

_INTERRUPTED = 130  # 128 + SIGINT
_BROKEN_PIPE = 141  # 128 + SIGPIPE
COMPLETE_VARIABLE = "_ELASTIC_COMPLETE"
"""Set by a shell that asks what a half-typed line could become."""


def elastic_process(argv: Sequence[str] | None = None) -> None:
    """Be the process: run `main`, then leave without the interpreter's own shutdown, which would cost tens of ms.

    Exit functions run and streams are flushed as usual; only the tearing down of modules is left to the kernel.
    """
    import atexit
    import gc

    _open_closed_streams()
    gc.disable()  # start-up makes no garbage, and looking for it costs a tenth; `run_job` switches it on again
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["run"]:
        _import_msgspec()
    code = main(words)

    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # a reader that went away, or a stream that was closed: nobody is left to tell
        code = code or _BROKEN_PIPE
    os._exit(code)


def _import_msgspec() -> None:
    """Import msgspec with `typing` in the place of `typing_extensions`.

    It takes the latter if that is installed, which is an eighth of our start-up (with `inspect`, `ast`, `dis` and
    `tokenize`); all that it wants of it is in `typing` since Python 3.11. Only a process of our own may do this: it has
    no other thread that could want the module in this moment.
    """
    name = "typing_extensions"
    if name in sys.modules:
        return
    sys.modules[name] = None  # type: ignore[assignment]  # None makes its import fail; annotated as if it could not be
    try:
        importlib.import_module("msgspec")
    finally:
        del sys.modules[name]


def _open_closed_streams() -> None:
    """Put /dev/null where the standard streams were closed (`>&-`), as a daemon's are.

    Else the next descriptor that is opened, a log file or a wake-up pipe, would pass for our stdout and the workers'.
    """
    for fd, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is `fd`
            os.set_inheritable(nowhere, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w", closefd=False))


def main(argv: Sequence[str] | None = None) -> int:
    """Run `elastic` with these arguments (default: the process's own) and return its exit code."""
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(
                errors="backslashreplace"
            )  # a name that the terminal can't show is no reason to fail
        code = _run(list(sys.argv[1:] if argv is None else argv))
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a closed pipe can still be told from success
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return _BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the last resort: reported on stderr, below
        return _report(_pasted(error, list(sys.argv[1:] if argv is None else argv)) or error)
    return code


def _run(argv: list[str]) -> int:
    if argv[:1] == ["run"] and COMPLETE_VARIABLE not in os.environ:
        from elastic_core.cli.arguments import read_arguments

        arguments = read_arguments(argv[1:])
        if not arguments.help:
            return start(arguments)
    return _run_click(argv)


def start(arguments: "Arguments") -> int:
    """Resolve the options, run the job (or describe it, `--dry-run`), and return the exit code.

    Needs no click, which would cost a fifth of the start-up.

    Raises:
        ElasticError: the run can't be started as asked.
    """
    if "print_completion" in arguments.given:
        return _print_completion(str(arguments.given["print_completion"]))
    from elastic_core.system.clock import SYSTEM_CLOCK

    began = {"interpreter and command line": SYSTEM_CLOCK.monotonic_s()}
    from elastic_core.options.resolve import resolve

    if arguments.script is None:
        from elastic_core.errors import ConfigError

        raise ConfigError("no script given", hint="elastic run [OPTIONS] SCRIPT [ARGS...], or elastic run --help")
    dry, verbose = "dry_run" in arguments.given, "verbose" in arguments.given
    if verbose and not dry:
        from elastic_core.errors import ConfigError

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
    return run_job(resolution.settings, began=began)


def _print_completion(shell: str) -> int:
    from elastic_core.cli.completion_command import SHELLS, completion_script

    if shell not in SHELLS:
        from elastic_core.errors import ConfigError

        raise ConfigError(f"--print-completion: {shell!r}; expected one of {', '.join(SHELLS)}", hint="bash")
    sys.stdout.write(completion_script(shell))
    return 0


def _run_click(argv: list[str]) -> int:
    import click

    from elastic_core.cli.group import elastic

    if COMPLETE_VARIABLE in os.environ:
        import elastic_core.cli.completion_command  # noqa: F401  # teaches click tcsh

        elastic.main(argv, prog_name="elastic", complete_var=COMPLETE_VARIABLE)
    try:
        with elastic.make_context("elastic", argv) as context:
            code = elastic.invoke(context)
    except click.exceptions.Exit as error:
        return error.exit_code
    return code if isinstance(code, int) else 0


def _pasted(error: Exception, words: list[str]) -> Exception | None:
    """Return what names a typographic dash or blank that the error comes from, None where there is none."""
    if all(word.isascii() for word in words):
        return None
    from elastic_core.cli.pasted import pasted

    return pasted(error, words)


def _report(error: Exception) -> int:
    """Write one line about an error; return the exit code that it stands for."""
    from elastic_core.errors import ElasticError

    if os.environ.get("ELASTIC_DEBUG") == "1":
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, ElasticError) and not str(error):  # another process of the same start reports it
        return error.exit_code
    if isinstance(error, ElasticError):
        return _write_error(str(error), error.exit_code, notes=getattr(error, "__notes__", ()))
    click = sys.modules.get("click")  # not loaded: no error of its own
    if click is not None and isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # since click 8.2
        from elastic_core.cli.output import echo

        echo(*str(error).split("\n"), err=True)
        return 2
    if click is not None and isinstance(error, click.ClickException):
        command = getattr(getattr(error, "ctx", None), "command_path", "elastic")
        near, param = getattr(error, "possibilities", None) or (), getattr(error, "param", None)
        text = error.message if near else error.format_message()
        if param is not None and error.message:  # a value that click or a reader of ours rejects
            text = f"{max(param.opts, key=len)}: {error.message}".replace(" is not one of ", "; expected one of ")
        text = text.replace(" is not a valid integer range", "; expected a whole number").rstrip(".?!")
        return _write_error(f"{text}. Try: {' or '.join(near) or f'{command} --help'}", 2)
    if isinstance(error, OSError):
        return _write_error(f"the system refused: {error}. Try: ELASTIC_DEBUG=1 shows where", 1)
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":  # EAGAIN, in Python's words
        return _write_error("the system refused a thread. Try: a higher limit on processes (ulimit -u, or pids.max)", 1)
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    hint = "ELASTIC_DEBUG=1 shows where; please report it with that output"
    return _write_error(f"this is a defect of elastic-core: {what}. Try: {hint}", 1)


def _write_error(text: str, code: int, *, notes: Sequence[str] = ()) -> int:
    """Write the error's line, and below it one for each note: what is wrong in each place of a file, say."""
    from elastic_core.cli.output import echo
    from elastic_core.cli.secrets import masked_text

    echo(*(masked_text(" ".join(line.split())) for line in (f"elastic: error: {text}", *notes)), err=True)
    return code


def _silence_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush finds no closed pipe."""
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - only its descriptor is used
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
