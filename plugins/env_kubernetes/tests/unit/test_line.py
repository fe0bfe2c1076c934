"""What contradicts a manifest in the line of `elastic run` and in variables: an error, or one line on stderr."""

import pytest
import yaml
from click.testing import CliRunner

from elastic_core.errors import ConfigError
from elastic_env_kubernetes.render_command import command
from pods import container_of

RUN = ("bert-7", "--image", "registry.example/train:1")
REDIS = ("--rdzv-backend", "redis", "--rdzv-endpoint", "redis.infra:6379")


def rendered(*words):
    """Return what makes the pods, and the lines on stderr."""
    result = CliRunner().invoke(command, [*RUN, *words])
    if result.exception:
        raise result.exception
    return list(yaml.safe_load_all(result.stdout))[-1], result.stderr.splitlines()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "--rdzv-id foo train.py",
            "--rdzv-id foo behind the --: the run's id is the name of the manifest, and the Job's",
        ),
        ("--rdzv_id=foo train.py", "--rdzv_id foo behind the --"),
        ("-r 3 --max-restarts 3 --rdzv-i foo train.py", "--rdzv-i foo behind the --"),
        ("--rdzv-backend redis train.py", "--rdzv-backend redis behind the --: the manifest has 'c10d'"),
        ("--rdzv-backend static train.py", "--rdzv-backend static behind the --"),
        (
            "--rdzv-endpoint redis://:secret-7@h:1 train.py",
            "--rdzv-endpoint behind the --: the manifest has 'bert-7-0.ber",
        ),
        ("--node-rank 0 train.py", "--node-rank 0 behind the --: each pod has a rank of its own"),
        ("--node-id a train.py", "--node-id a behind the --"),
        ("--local-addr 10.0.0.1 train.py", "--local-addr 10.0.0.1 behind the --"),
        ("--master-addr h train.py", "--master-addr h behind the --"),
        ("--standalone train.py", "--standalone behind the --: each pod would train alone"),
        ("--stand train.py", "--stand behind the --: each pod would train alone"),
        ("--environment none train.py", "--environment none behind the --: pods would not know of the manifest"),
        ("--nnodes 4 train.py", "--nnodes 4 behind the --: the manifest depends on it"),
        ("--standby --nnodes=4 train.py", "--nnodes 4 behind the --"),
    ],
)
def test_an_option_that_contradicts_the_manifest_is_an_error(words, line):
    with pytest.raises(ConfigError) as caught:
        rendered("--nnodes", "4", "--", *words.split())
    assert str(caught.value).startswith(line)
    assert "Try: " in str(caught.value)
    assert "secret-7" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--env", "PET_NODE_RANK=3"], "--env PET_NODE_RANK: each pod has a rank of its own. Try: leave it out"),
        (["--env", "PET_NNODES=3"], "--env PET_NNODES: the manifest depends on it. Try: --nnodes before the --"),
        (["--secret", "PET_RDZV_ENDPOINT=a:b"], "--secret PET_RDZV_ENDPOINT: the manifest has 'bert-7-0.bert-7:29400'"),
        (["--env", "POD_IP=10.0.0.1"], "the variable POD_IP is set 2 times"),
        (["--env", "ELASTIC_K8S_NNODES=2"], "the variable ELASTIC_K8S_NNODES is set 2 times"),
        (["--env", "A=1", "--secret", "A=b:c"], "the variable A is set 2 times"),
    ],
)
def test_so_is_a_variable(words, line):
    with pytest.raises(ConfigError) as caught:
        rendered("--nnodes", "4", *words, "--", "train.py")
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize(
    "words",
    [
        ["--nnodes", "4", "--", "--rdzv-backend", "c10d", "--environment=kubernetes", "train.py", "--rdzv-id", "mine"],
        ["--nnodes", "4", "--", "--standby", "train.py", "--nnodes", "9"],
        ["--nnodes", "4", "--", "-m", "package.train", "--node-rank", "9"],
        ["--nnodes", "4", "--", "--no-python", "--", "bash", "--node-rank", "9"],
        ["--nnodes", "4", *REDIS, "--", "--rdzv-endpoint", "redis.infra:6379", "train.py"],
        ["--", "--rdzv-id", "one-node", "--standalone", "train.py"],
        ["--nnodes", "4", "--gpus", "8", "--", "--nproc-per-node", "8", "train.py"],
        ["--nnodes", "4", "--gpus", "8", "--", "--nproc-per-node=gpu", "train.py"],
        ["--nnodes", "4", "--", "--nproc-per-node", "4", "train.py"],
        ["--nnodes", "2:8", *REDIS, "--queue", "research", "--", "train.py"],
    ],
)
def test_what_contradicts_nothing_is_silent(words):
    manifest, lines = rendered(*words)
    assert container_of(manifest)["args"] == words[words.index("--") + 1 :]
    assert not lines


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["--nnodes", "4", "--gpus", "8", "--", "--nproc-per-node", "4"],
            "--nproc-per-node 4 behind the --: a pod has 8 GPUs. Try: --gpus 4, unless each worker uses several",
        ),
        (
            ["--gpus", "8", "--", "--nproc-per-node", "cpu"],
            "--nproc-per-node cpu behind the --: a pod has 8 GPUs. Try: --nproc-per-node gpu",
        ),
        (
            ["--gpus", "8", "--env", "PET_NPROC_PER_NODE=2", "--"],
            "--env PET_NPROC_PER_NODE: a pod has 8 GPUs. Try: --gp",
        ),
        (
            ["--nnodes", "2:8", "--"],
            "--nnodes 2:8 with c10d: pod 0 hosts the store, so that a loss of pod 0 ends the run",
        ),
        (
            ["--nnodes", "2:8", "--kind", "jobset", "--queue", "research", *REDIS, "--"],
            "--queue research: Kueue admits all 8 pods of a JobSet or none. Try: --kind job, which it admits with 2 or",
        ),
    ],
)
def test_what_may_not_be_meant_is_a_line(words, line):
    _, lines = rendered(*words, "train.py")
    assert len(lines) == 1
    assert lines[0].startswith(f"elastic: {line}")


@pytest.mark.parametrize(
    ("words", "least"),
    [
        (["--nnodes", "2:8", "--queue", "research"], "2"),
        (["--nnodes", "4", "--spares", "1", "--queue", "research"], "4"),
        (["--nnodes", "4", "--queue", "research"], None),
        (["--nnodes", "2:8"], None),
        (["--nnodes", "2:8", "--queue", "research", "--kind", "jobset"], None),
    ],
)
def test_kueue_may_admit_a_part_of_an_elastic_job(words, least):
    manifest, _ = rendered(*words, *REDIS, "--", "train.py")
    assert manifest["metadata"].get("annotations") == (
        None
        if least is None
        else {
            "kueue.x-k8s.io/job-min-parallelism": least,
            "kueue.x-k8s.io/job-completions-equal-parallelism": "true",
        }
    )
