"""What `elastic run` does once its command line is read. Needs no click, which would cost a fifth of the start-up."""

import os
import sys

from elastic_core.cli.arguments import Arguments
from elastic_core.errors import ConfigError


def start(arguments: Arguments) -> int:
    """Resolve the options, run the job (or describe it, `--dry-run`), and return the exit code.

    Raises:
        ElasticError: the run can't be started as asked.
    """
    from elastic_core.launcher.resolve import resolve

    if arguments.script is None:
        raise ConfigError("no script given", hint="elastic run [OPTIONS] SCRIPT [ARGS...], or elastic run --help")
    resolution = resolve(arguments.given, arguments.script, arguments.rest, environ=os.environ)
    if "dry_run" in arguments.given:
        from elastic_core.cli.dry_run import describe

        sys.stdout.write(describe(resolution, os.environ) + "\n")
        return 0
    from elastic_core.launcher.job import run_job

    return run_job(resolution.settings)
