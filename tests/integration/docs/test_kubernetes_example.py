"""The manifests in examples/kubernetes: what their first lines render, and what the API's schemas take."""

import shlex
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from elastic_core.cli.main import main
from elastic_core.options.resolve import resolve

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "kubernetes"


@pytest.mark.parametrize("name", ["job.yaml", "jobset.yaml"])
def test_a_manifest_is_what_its_first_line_renders(name, capsys):
    first, _, manifest = (FOLDER / name).read_text().partition("\n")
    program, *words = shlex.split(first.removeprefix("# "))
    assert program == "elastic"
    assert main(words) == 0
    assert capsys.readouterr().out == manifest


def test_the_server_to_meet_in_is_one_that_the_api_takes():
    documents = list(yaml.safe_load_all((FOLDER / "redis.yaml").read_text()))
    for document in documents:
        kubernetes_validate.validate(document, "1.37", strict=True)
    jobset = (FOLDER / "jobset.yaml").read_text()
    assert f"value: {documents[0]['metadata']['name']}:{documents[0]['spec']['ports'][0]['port']}\n" in jobset


def test_the_runtime_is_one_that_kubeflow_trainer_takes():
    from kubeflow_trainer_api.models.trainer_v1alpha1_cluster_training_runtime import (
        TrainerV1alpha1ClusterTrainingRuntime,
    )
    from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob

    runtime, job = yaml.safe_load_all((FOLDER / "runtime.yaml").read_text())
    assert list(missing(runtime, TrainerV1alpha1ClusterTrainingRuntime.from_dict(runtime).to_dict())) == []
    assert list(missing(job, TrainerV1alpha1TrainJob.from_dict(job).to_dict())) == []
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    kubernetes_validate.validate(
        {"apiVersion": "batch/v1", "kind": "Job", **replicated["template"]}, "1.37", strict=True
    )
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]


def test_pods_of_the_runtime_form_one_run(tmp_path, monkeypatch):
    """Each variable is the manifest's, or as Kubernetes, JobSet and the torch policy of Kubeflow Trainer give it."""
    runtime, _ = yaml.safe_load_all((FOLDER / "runtime.yaml").read_text())
    pod = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    variables = {each["name"]: each.get("value", "") for each in pod["containers"][0]["env"]} | {
        "ELASTIC_REDIS_PASSWORD": "secret",
        "POD_NAME": "bert-7-node-0-1-x8kd2",
        "POD_IP": "10.1.2.3",
        "ELASTIC_JOB_ID": "5f0c3a1e-77aa",
        "JOBSET_RESTART_ATTEMPT": "2",
        "HOSTNAME": "bert-7-node-0-1",
        "JOB_COMPLETION_INDEX": "1",
        "PET_NNODES": "4",
        "PET_NODE_RANK": "1",
        "PET_NPROC_PER_NODE": "8",
        "PET_MASTER_ADDR": "bert-7-node-0-0.bert-7",
        "PET_MASTER_PORT": "29400",
    }
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    nodes = resolve({}, "train.py", environ=variables).settings.nodes
    assert (nodes.backend, nodes.endpoint) == ("redis", "rendezvous.default.svc:6379")
    assert (nodes.run_id, nodes.node_id, nodes.attempt) == ("bert-7-node-0-5f0c3a1e", "bert-7-node-0-1-x8kd2", 2)
    assert (nodes.max_nodes, nodes.local_world_size) == (4, 8)
    assert variables["ELASTIC_K8S_GRACE_PERIOD"] == str(pod["terminationGracePeriodSeconds"])


def missing(document, kept, where=""):
    """Yield where a document has what a model of it has not: models drop fields that they don't know."""
    if isinstance(document, dict) and isinstance(kept, dict):
        for key, value in document.items():
            yield from missing(value, kept.get(key), f"{where}.{key}")
    elif isinstance(document, list) and isinstance(kept, list) and len(document) == len(kept):
        for number, (mine, theirs) in enumerate(zip(document, kept, strict=True)):
            yield from missing(mine, theirs, f"{where}[{number}]")
    elif document != kept:
        yield where
