"""What `elastic run` does once its command line is read. Needs no click, which would cost a fifth of the start-up."""

import os
import sys
from typing import TYPE_CHECKING

from elastic_core.cli.arguments import Arguments
from elastic_core.errors import ConfigError

if TYPE_CHECKING:
    from elastic_core.launcher.timings import Timings


def start(arguments: Arguments) -> int:
    """Resolve the options, run the job (or describe it, `--dry-run`), and return the exit code.

    Raises:
        ElasticError: the run can't be started as asked.
    """
    timings = _timings() if "timings" in arguments.given else None
    from elastic_core.options.resolve import resolve

    if arguments.script is None:
        raise ConfigError("no script given", hint="elastic run [OPTIONS] SCRIPT [ARGS...], or elastic run --help")
    resolution = resolve(arguments.given, arguments.script, arguments.rest, environ=os.environ)
    if "dry_run" in arguments.given:
        from elastic_core.cli.dry_run import describe
        from elastic_core.cli.output import echo

        echo(*describe(resolution, os.environ).split("\n"))
        return 0
    if timings is not None:
        timings.mark("options")
    from elastic_core.launcher.job import run_job

    if timings is None:
        return run_job(resolution.settings)
    timings.mark("launcher's imports")
    try:
        return run_job(resolution.settings, timings=timings)
    finally:
        timings.mark("exit")
        sys.stderr.writelines(f"elastic: {line}\n" for line in timings.lines())


def _timings() -> "Timings":
    from elastic_core.launcher.timings import Timings

    return Timings()
