"""`elastic slurm submit`: what sbatch gets, and what the wrapper ends with."""

import os
import subprocess

import pytest

from elastic_core.cli.main import main
from elastic_env_slurm.batch_script import directives_of, wrapped

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
    assert words(sbatch) == ["--parsable --open-mode=append --requeue"]
    given = (sbatch / "stdin").read_text()
    assert given.startswith("#!/bin/bash\n#SBATCH --nodes 2\n#SBATCH --time=60\n")
    assert "export PET_REQUEUE=auto\n" in given
    assert '"$script" --lr 0.1\n' in given


def test_a_name_a_warning_and_options_for_sbatch(sbatch):
    line = ["slurm", "submit", "--name", "bert-7", "--warning", "2m", "--sbatch=--time=90", "train.sbatch"]
    assert main(line) == 0
    assert words(sbatch) == ["--parsable --job-name=bert-7 --open-mode=append --requeue --time=90 --signal=USR1@120"]
    assert "export PET_REQUEUE=auto PET_RDZV_ID=bert-7 PET_PREEMPTION_SIGNAL=USR1\n" in (sbatch / "stdin").read_text()


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
    assert capsys.readouterr().out.startswith("# sbatch --open-mode=append --requeue\n#!/bin/bash\n#SBATCH --nodes 2\n")
    assert not (sbatch / "words").exists()


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        (["--jobs", "3", "train.sbatch"], 2, "the jobs of a chain find their run by its name. Try: --name bert-7"),
        (["--warning", "soon", "train.sbatch"], 2, "--warning 'soon': needed seconds from 1 to 65535"),
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
    job = wrapped(f"#!/bin/bash\n{left}\nexit {code}\n", (), {"PET_REQUEUE": "auto"})
    env = {
        "PATH": os.environ["PATH"],
        "SLURM_JOB_ID": "4711",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run(["bash", "-s"], input=job, text=True, env=env, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (ended, "")
    assert not list(tmp_path.iterdir())
