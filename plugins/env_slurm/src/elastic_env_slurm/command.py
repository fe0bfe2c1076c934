"""`elastic slurm`: jobs that end with the run's code, begin again, and follow each other under one name."""

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


@click.group("slurm", help="Jobs of Slurm.")
def command() -> None:
    """Group the commands."""


@command.command(
    "submit",
    help="""Submit a batch script with sbatch, so that its job ends as its run does.

    SCRIPT is one for sbatch, with its #SBATCH lines, that has 'srun elastic run …' in it; what stands behind it are
    the script's arguments. Its job ends with the run's code, also where a node was lost and srun has another one. When
    Slurm preempts it, or its time is over, the run saves and the job begins again (--requeue auto).

    Options for sbatch stand in the script, or behind --sbatch.""",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--name", metavar="NAME", help="Name of the run (--rdzv-id), for all jobs of a chain.  [the job's number]"
)
@click.option(
    "--jobs",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=1,
    help="Submit a chain of N jobs: each begins when the one before it has not ended well, as another attempt at the "
    "run, and is dropped when it has. At the time limit the next one goes on. Needs --name.  [1]",
)
@click.option(
    "--warning",
    metavar="TIME",
    help="Have the run save and end so long before the time limit (120, 2m): as sbatch --signal=USR1@TIME.",
)
@click.option(
    "--sbatch", "options", metavar="OPTION", multiple=True, help="An option for sbatch, --time=60; repeatable."
)
@click.option("--print", "shown", is_flag=True, help="Write what would be given to sbatch, and submit nothing.")
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
        ElasticError: sbatch is not there, or has refused it.
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
