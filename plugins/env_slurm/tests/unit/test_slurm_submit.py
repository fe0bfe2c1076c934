"""`elastic slurm submit`: what sbatch gets, and what the wrapper ends with."""

import os
import signal
import subprocess

import pytest

from elastic_core.cli.main import main
from elastic_env_slurm.batch_script import directives_of, wrapped
from patience import patience

SCRIPT = """#!/bin/bash
#SBATCH --nodes 2
# a remark
#SBATCH --time=60

echo "$1"
#SBATCH --nodes 9
"""


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """Have a program in sbatch's place, which keeps what it gets."""
    program = tmp_path / "sbatch"
    program.write_text(
        f'#!/bin/sh\ncat >{tmp_path}/stdin\necho "$*" >>{tmp_path}/words\n'
        '[ -z "$REFUSE" ] || { echo no >&2; exit 1; }\n'
        f"wc -l <{tmp_path}/words\n"
    )
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sbatch").write_text(SCRIPT)
    return tmp_path


def words(folder):
    return (folder / "words").read_text().splitlines()


def test_directives_are_those_before_the_first_command():
    assert directives_of(SCRIPT) == ["#SBATCH --nodes 2", "#SBATCH --time=60"]


def test_a_job_is_submitted_with_what_its_script_says(sbatch, capsys):
    assert main(["slurm", "submit", "train.sbatch", "--lr", "0.1"]) == 0
    assert capsys.readouterr().out.split() == ["job", "1"]
    assert words(sbatch) == ["--parsable --job-name=train.sbatch --open-mode=append --requeue"]
    given = (sbatch / "stdin").read_text()
    assert given.startswith("#!/bin/bash\n#SBATCH --nodes 2\n#SBATCH --time=60\n")
    assert "export PET_REQUEUE=auto\n" in given
    assert '/bin/bash "$script" --lr 0.1 &\n' in given


def test_a_name_a_warning_and_options_for_sbatch(sbatch):
    line = ["slurm", "submit", "--name", "bert-7", "--warning", "2m", "--sbatch=--time=90", "train.sbatch"]
    assert main(line) == 0
    assert words(sbatch) == ["--parsable --job-name=bert-7 --open-mode=append --requeue --time=90 --signal=USR1@120"]
    assert "export PET_REQUEUE=auto PET_RDZV_ID=bert-7 PET_PREEMPTION_SIGNAL=USR1\n" in (sbatch / "stdin").read_text()


@pytest.mark.parametrize(
    ("line", "options", "variable", "ours"),
    [
        ("", [], "", True),
        ("#SBATCH --time=1 # of bert-Job", [], "", True),
        ("#SBATCH -J mine", [], "", False),
        ("#SBATCH --nodes 2 --job-name=mine", [], "", False),
        ("", ["--sbatch=--job-name=mine"], "", False),
        ("", ["--sbatch=-Jmine"], "", False),
        ("", [], "mine", False),
    ],
)
def test_a_job_is_called_as_its_script_unless_it_has_a_name(sbatch, monkeypatch, line, options, variable, ours):
    (sbatch / "train.sbatch").write_text(f"#!/bin/bash\n{line}\n")
    if variable:
        monkeypatch.setenv("SBATCH_JOB_NAME", variable)
    assert main(["slurm", "submit", *options, "train.sbatch"]) == 0
    assert ("--job-name=train.sbatch" in words(sbatch)[0]) == ours


def test_each_job_of_a_chain_begins_when_the_one_before_has_not_ended_well(sbatch, capsys):
    assert main(["slurm", "submit", "--name", "bert-7", "--jobs", "3", "train.sbatch"]) == 0
    assert [line.partition("append --requeue")[2].strip() for line in words(sbatch)] == [
        "",
        "--dependency=afternotok:1 --kill-on-invalid-dep=yes",
        "--dependency=afternotok:2 --kill-on-invalid-dep=yes",
    ]
    assert capsys.readouterr().out.splitlines()[-1] == "job 3 (3 of 3)"
    assert "export PET_REQUEUE=preempted PET_RDZV_ID=bert-7\n" in (sbatch / "stdin").read_text()


def test_what_would_be_submitted_is_shown(sbatch, capsys):
    assert main(["slurm", "submit", "--print", "train.sbatch"]) == 0
    assert capsys.readouterr().out.startswith(
        "# sbatch --job-name=train.sbatch --open-mode=append --requeue\n#!/bin/bash\n#SBATCH --nodes 2\n"
    )
    assert not (sbatch / "words").exists()


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        (
            ["--jobs", "3", "train.sbatch"],
            2,
            "expected --name, by which the jobs of a chain find their run. Try: --name bert-7",
        ),
        (["--warning", "soon", "train.sbatch"], 2, "--warning: 'soon'; expected 1 to 65535 seconds"),
        (["none.sbatch"], 2, "script 'none.sbatch': No such file or directory. Try: a batch script"),
    ],
)
def test_what_can_not_be_submitted_is_one_line(sbatch, capsys, line, code, text):
    assert main(["slurm", "submit", *line]) == code
    assert text in capsys.readouterr().err


def test_sbatchs_own_refusal_is_shown(sbatch, capsys, monkeypatch):
    monkeypatch.setenv("REFUSE", "1")
    assert main(["slurm", "submit", "train.sbatch"]) == 1
    assert "sbatch has refused the job: no" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verdicts", "code", "ended"),
    [
        ((), 0, 0),
        ((), 7, 7),
        ((0,), 137, 0),  # the other node was lost, and the run has ended well
        ((0, 143), 143, 0),  # or was taken away
        ((1, 1), 1, 1),
        ((0, 3), 137, 3),  # a spare that was not needed, and a run that has failed
        ((143, 143), 143, 143),
        ((1,), 0, 0),  # the script's own word
    ],
)
def test_a_job_ends_with_its_runs_verdict(tmp_path, verdicts, code, ended):
    left = "\n".join(f"echo {each} >$ELASTIC_SLURM_VERDICTS/{node}" for node, each in enumerate(verdicts))
    assert done(tmp_path, f"#!/bin/bash\n{left}\nexit {code}\n") == (ended, "", "")
    assert not list(tmp_path.iterdir())


def job_of(folder, text, *arguments, **variables):
    """Return a process that runs a submitted script as Slurm does."""
    env = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "4711", "SLURM_SUBMIT_DIR": str(folder), "TMPDIR": str(folder)}
    job = wrapped(text, arguments, {"PET_REQUEUE": "auto"})
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # From a file, as Slurm does: `bash -c` also writes how a job of the script has ended, if it ends early.
    with open(os.memfd_create("script"), "w") as script:
        script.write(job)
        script.flush()
        file = script.fileno()
        command = ["bash", f"/proc/self/fd/{file}"]
        return subprocess.Popen(command, text=True, env=env | variables, pass_fds=(file,), **pipes)


def done(folder, text, *arguments, **variables):
    """Return the exit code of a submitted script, what it wrote, and what was written about it."""
    job = job_of(folder, text, *arguments, **variables)
    out, err = job.communicate(timeout=patience(30))
    return job.returncode, out, err


@pytest.mark.parametrize(
    ("text", "out"),
    [
        ('#!/bin/bash\necho "$1 $#"\nexit 3\n', "a b 2\n"),
        ('#!/bin/bash -u\necho "$1" $-\nexit 3\n', None),
        ("#!/usr/bin/env python3\nimport sys\nprint(*sys.argv[1:])\nsys.exit(3)\n", "a b c\n"),
        ('# no interpreter\necho "$1 $#"\nexit 3\n', "a b 2\n"),
    ],
    ids=["bash", "an argument", "python", "none"],
)
@pytest.mark.parametrize("place", ["noexec", "missing"])
def test_a_temporary_directory_where_nothing_can_be_executed_is_no_hindrance(tmp_path, text, out, place):
    (tmp_path / "bin").mkdir()
    chmod = tmp_path / "bin" / "chmod"  # no file becomes one that can be executed
    chmod.write_text("#!/bin/sh\n")
    chmod.chmod(0o700)
    submitted = tmp_path / "submitted"
    submitted.mkdir()
    variables = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    if place == "missing":
        variables["TMPDIR"] = str(tmp_path / "missing")
    code, written, err = done(submitted, text, "a b", "c", **variables)
    assert (code, err) == (3, "")
    assert written == out if out else "u" in written
    assert not list(submitted.iterdir())


@pytest.mark.parametrize("name", ["USR1", "USR2", "TERM", "INT", "CONT", "HUP"])
def test_a_script_has_the_signals_that_its_batch_shell_gets(tmp_path, name):
    trap = f"trap 'echo got {name}; got=1' {name}"
    until = "until [ $got ] || [ $SECONDS -gt 20 ]; do sleep 0.05; done"
    job = job_of(tmp_path, f"#!/bin/bash\n{trap}\necho ready\n{until}\nexit 5\n")
    assert job.stdout.readline() == "ready\n"
    job.send_signal(getattr(signal, f"SIG{name}"))
    out, err = job.communicate(timeout=patience(30))
    assert (job.returncode, out, err) == (5, f"got {name}\n", "")
    assert not list(tmp_path.iterdir())


def test_a_script_goes_on_after_many_signals_and_its_code_counts(tmp_path):
    until = f"until [ -e {tmp_path}/end ] || [ $SECONDS -gt 20 ]; do sleep 0.05; done"
    job = job_of(tmp_path, f"#!/bin/bash\ntrap 'echo got' USR1\necho ready\n{until}\nexit 138\n")
    job.stdout.readline()
    for _ in range(5):
        job.send_signal(signal.SIGUSR1)
        assert job.stdout.readline() == "got\n"
    (tmp_path / "end").touch()
    job.communicate(timeout=patience(30))
    assert job.returncode == 138


def test_a_script_that_catches_no_signal_ends_by_it(tmp_path):
    job = job_of(tmp_path, "#!/bin/bash\necho ready\nwhile [ $SECONDS -lt 20 ]; do sleep 0.05; done\n")
    job.stdout.readline()
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=patience(30))
    assert job.returncode == 143
    assert not list(tmp_path.iterdir())
