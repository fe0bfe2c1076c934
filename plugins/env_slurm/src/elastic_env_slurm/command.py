"""Submit Slurm jobs that exit with the run's code, are requeued, or form a chain."""

import os
import subprocess
from pathlib import Path
from typing import Final

import click

from elastic_core.api import ConfigError, ElasticError, duration_s
from elastic_core.api.commands import echo
from elastic_env_slurm.batch_script import directives_of, names_its_job, wrapped

api_version = 1

_LIMIT_S: Final = 60.0


@click.group("slurm", help="Submit runs as Slurm jobs.")
def command() -> None:
    """Group the commands."""


@command.command(
    "submit",
    short_help="Submit a batch script; the job exits with the run's code.",
    help="""Submit a batch script with sbatch; the job exits with the run's code.

    SCRIPT is a script for sbatch, with its #SBATCH lines, that contains 'srun elastic run …'; the words after SCRIPT
    are its arguments. The job exits with the run's code, even if a node was lost and srun exits with another one. When
    Slurm preempts the job, or its time is over, the run saves and the job is requeued (--requeue auto).

    Options for sbatch are in the script, or follow --sbatch.""",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--name",
    metavar="NAME",
    envvar="PET_RDZV_ID",
    help="Run id (--rdzv-id), the same for all jobs of a chain.  [default: the job's number; PET_RDZV_ID]",
)
@click.option(
    "--jobs",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=1,
    help="Submit a chain of N jobs. Each job starts after the job before it has failed or reached its time limit, as "
    "the next attempt at the run; after a success the next jobs are dropped. Needs --name.  [default: 1]",
)
@click.option(
    "--warning",
    metavar="TIME",
    help="The run saves and ends this long before the time limit (120, 2m): as sbatch --signal=USR1@TIME.",
)
@click.option(
    "--sbatch", "options", metavar="OPTION", multiple=True, help="Option for sbatch, such as --time=60 (repeatable)."
)
@click.option("--print", "shown", is_flag=True, help="Print the options and the script for sbatch, and submit nothing.")
@click.argument("script", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def submit(
    script: Path,
    arguments: tuple[str, ...],
    name: str | None,
    jobs: int,
    warning: str | None,
    options: tuple[str, ...],
    shown: bool,
) -> int:
    """Submit a job, or a chain of them."""
    if jobs > 1 and not name:
        raise ConfigError(
            f"--jobs {jobs}: expected --name, by which the jobs of a chain find their run", hint="--name bert-7"
        )
    try:
        text = script.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        what = err.strerror if isinstance(err, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"script {str(script)!r}: {what}", hint="a batch script with 'srun elastic run …' in it"
        ) from err
    variables = {"PET_REQUEUE": "preempted" if jobs > 1 else "auto"}
    words = ["--open-mode=append", "--requeue", *options]
    if name:
        variables["PET_RDZV_ID"] = name
        words.insert(0, f"--job-name={name}")
    elif not (names_its_job((*directives_of(text), *options)) or os.environ.get("SBATCH_JOB_NAME")):
        words.insert(0, f"--job-name={script.name}")  # sbatch reads the wrapper from a pipe, and would call it `sbatch`
    if warning is not None:
        variables["PET_PREEMPTION_SIGNAL"] = "USR1"
        words.append(f"--signal=USR1@{_seconds(warning)}")
    job = wrapped(text, arguments, variables)
    if shown:
        echo(f"# sbatch {' '.join(words)}", *job.rstrip("\n").split("\n"))
        return 0
    before = ""
    for number in range(jobs):
        after = [f"--dependency=afternotok:{before}", "--kill-on-invalid-dep=yes"] if number else []
        before = _sbatch([*words, *after], job)
        echo(f"job {before}" + (f" ({number + 1} of {jobs})" if jobs > 1 else ""))
    return 0


def _seconds(text: str) -> int:
    read = duration_s(text)
    if read is None or not 1 <= read <= 65535:
        raise ConfigError(f"--warning: {text!r}; expected 1 to 65535 seconds, or a time as 2m", hint="--warning 2m")
    return round(read)


def _sbatch(words: list[str], job: str) -> str:
    """Submit a job, and return its number.

    Raises:
        ElasticError: sbatch is missing, or rejects the job.
    """
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", *words], input=job, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except FileNotFoundError:
        raise ConfigError("no sbatch on PATH", hint="a host of the cluster from which jobs are submitted") from None
    except subprocess.TimeoutExpired:
        raise ElasticError(f"sbatch has not answered within {_LIMIT_S:g} s", hint="sinfo") from None
    if done.returncode:
        raise ElasticError(f"sbatch has refused the job: {' '.join(done.stderr.split())}")
    return done.stdout.strip().partition(";")[0]
