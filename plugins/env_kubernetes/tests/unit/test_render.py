"""Manifests that `elastic k8s render` writes: what the API's published schemas say of them, and what is in them."""

import json

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from elastic_core.cli.main import main
from elastic_core.errors import ConfigError
from elastic_core.options.resolve import resolve
from elastic_env_kubernetes.render_command import command
from pods import container_of, environment_of, pod_template_of

VERSIONS = ("1.31", "1.37")
"""The oldest in which all that is written is on by default, and the newest."""
PLAIN = ["bert-7", "--image", "registry.example/train:1", "--nnodes", "4", "--gpus", "8"]
FULL = [
    *("bert-7", "--image", "registry.example/train:1", "--namespace", "training", "--nnodes", "2:8", "--spares", "1"),
    *("--gpus", "8", "--resource", "cpu=16", "--resource", "memory=200Gi", "--resource", "rdma/hca=1"),
    *("--shm-size", "64Gi", "--volume", "checkpoints:/checkpoints", "--volume", "data:/data:ro"),
    *("--env", "NCCL_DEBUG=INFO", "--secret", "HF_TOKEN=hub:token", "--rdzv-backend", "redis"),
    *("--rdzv-endpoint", "redis.infra:6379", "--store-secret", "redis:password", "--shutdown-timeout", "45"),
    *("--save-timeout", "2m", "--metrics-port", "9400", "--queue", "research", "--priority-class", "high"),
    *("--service-account", "trainer"),
]
LINE = ["--", "--max-restarts=3", "train.py", "--epochs", "10"]


def rendered(*words):
    result = CliRunner().invoke(command, list(words))
    if result.exception:
        raise result.exception
    return list(yaml.safe_load_all(result.stdout))


def of_kind(documents, kind):
    (found,) = (each for each in documents if each["kind"] == kind)
    return found


def as_job(document):
    """Return the Job that a JobSet's controller would make of its one template, or the Job itself."""
    if document["kind"] == "Job":
        return document
    (replicated,) = document["spec"]["replicatedJobs"]
    template = json.loads(json.dumps(replicated["template"]))
    return {"apiVersion": "batch/v1", "kind": "Job", **template}


def lost(document, kept, where=""):
    """Yield where a document has what a model of it has not: models drop what they don't know, and add defaults."""
    if isinstance(document, dict) and isinstance(kept, dict):
        for key, value in document.items():
            yield from lost(value, kept.get(key), f"{where}.{key}")
    elif isinstance(document, list) and isinstance(kept, list) and len(document) == len(kept):
        for number, (mine, theirs) in enumerate(zip(document, kept, strict=True)):
            yield from lost(mine, theirs, f"{where}[{number}]")
    elif document != kept:
        yield where


@pytest.fixture(params=["plain", "full"])
def words(request):
    return PLAIN if request.param == "plain" else FULL


@pytest.fixture(params=["job", "jobset"])
def kind(request):
    return request.param


@pytest.mark.parametrize("version", VERSIONS)
def test_the_published_schemas_know_every_field(words, kind, version):
    for document in rendered(*words, "--kind", kind, *LINE):
        if document["kind"] in ("Job", "JobSet"):
            kubernetes_validate.validate(as_job(document), version, strict=True)
        elif document["kind"] != "ServiceMonitor":
            kubernetes_validate.validate(document, version, strict=True)


def test_a_misspelt_field_would_be_found():
    job = of_kind(rendered(*PLAIN, *LINE), "Job")
    container_of(job)["comand"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="comand"):
        kubernetes_validate.validate(job, VERSIONS[0], strict=True)


def test_the_models_of_the_jobset_api_know_every_field(words):
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

    document = of_kind(rendered(*words, "--kind", "jobset", *LINE), "JobSet")
    assert not list(lost(document, JobsetV1alpha2JobSet.from_dict(document).to_dict()))
    document["spec"]["network"]["enableDnsHostnames"] = True
    assert list(lost(document, JobsetV1alpha2JobSet.from_dict(document).to_dict())) == [
        ".spec.network.enableDnsHostnames"
    ]


def test_the_command_is_elastic_run_and_the_line(kind):
    container = container_of(rendered(*PLAIN, "--kind", kind, *LINE)[-1])
    assert container["command"] == ["elastic", "run"]
    assert container["args"] == ["--max-restarts=3", "train.py", "--epochs", "10"]


@pytest.mark.parametrize(
    ("kind", "first", "attempt"), [("job", "bert-7-0.bert-7:29400", 0), ("jobset", "bert-7-nodes-0-0.bert-7:29400", 2)]
)
def test_a_pod_needs_nothing_else(kind, first, attempt, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    document = rendered(*PLAIN, "--kind", kind, "--health-port", "0", *LINE)[-1]
    pod = environment_of(document, 3, uid="5f0c3a1e-77aa", attempt=attempt)
    found = resolve({}, "train.py", environ=pod)
    nodes = found.settings.nodes
    assert (nodes.max_nodes, nodes.node_rank, nodes.local_world_size) == (4, 3, 8)
    assert (nodes.backend, nodes.endpoint, nodes.run_id) == ("c10d", first, "bert-7-5f0c3a1e")
    assert (nodes.job, nodes.attempt, nodes.attempt_given) == ("job 5f0c3a1e-77aa", attempt, kind == "jobset")
    assert not [line for line in found.settings.notices if "OMP" not in line]


def test_an_image_without_this_distribution_is_refused(kind, monkeypatch):
    for module in ("plugins.discovery", "options.environments"):
        monkeypatch.setattr(f"elastic_core.{module}.find_entries", lambda group="": [])
    pod = environment_of(rendered(*PLAIN, "--kind", kind, *LINE)[-1], 1, uid="5f0c")
    with pytest.raises(ConfigError, match=r"PET_ENVIRONMENT: 'kubernetes'; expected .*plugins/env_kubernetes"):
        resolve({}, "train.py", environ=pod)


def test_the_first_pods_name_is_one_that_the_service_gives():
    documents = rendered(*PLAIN, *LINE)
    service, job = of_kind(documents, "Service"), of_kind(documents, "Job")
    template = pod_template_of(job)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert template["spec"]["subdomain"] == service["metadata"]["name"]
    assert not [each for each in rendered(*PLAIN, "--kind", "jobset", *LINE) if each["kind"] == "Service"]


def test_one_pod_meets_nobody():
    (job,) = rendered("one", "--image", "a:1", *LINE)
    names = [each["name"] for each in container_of(job)["env"]]
    assert "ELASTIC_K8S_FIRST_POD" not in names
    assert "subdomain" not in pod_template_of(job)["spec"]


def test_no_secret_is_in_a_manifest_and_its_store_is_named(kind):
    container = container_of(rendered(*FULL, "--kind", kind, *LINE)[-1])
    variables = {each["name"]: each for each in container["env"]}
    secret = {"secretKeyRef": {"name": "redis", "key": "password"}}
    assert variables["ELASTIC_REDIS_PASSWORD"]["valueFrom"] == secret
    assert variables["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert variables["PET_RDZV_ENDPOINT"]["value"] == "redis.infra:6379"
    token = container_of(rendered(*PLAIN, "--store-secret", "bert:token", *LINE)[-1])["env"]
    assert [each["valueFrom"]["secretKeyRef"]["name"] for each in token if each["name"] == "ELASTIC_C10D_TOKEN"] == [
        "bert"
    ]


@pytest.mark.parametrize(
    ("options", "grace"),
    [
        ([], 70),
        (["--shutdown-timeout", "45"], 100),
        (["--shutdown-timeout", "45", "--save-timeout", "2m"], 175),
        (["--save-timeout", "0.5"], 41),
    ],
)
def test_a_pod_has_time_for_all_that_a_stop_may_take(options, grace, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    job = rendered(*PLAIN, *options, *LINE)[-1]
    assert pod_template_of(job)["spec"]["terminationGracePeriodSeconds"] == grace
    assert pod_template_of(job)["spec"]["restartPolicy"] == "Never"  # what podFailurePolicy asks for
    found = resolve({}, "train.py", environ=environment_of(job, 0, uid="5f0c"))
    asked = float(options[1]) if options[:1] == ["--shutdown-timeout"] else 30
    assert found.settings.stops.shutdown_timeout_s >= asked
    assert not [line for line in found.settings.notices if "killed" in line]


def test_exit_codes_say_what_becomes_of_a_pod():
    spec = of_kind(rendered(*PLAIN, *LINE), "Job")["spec"]
    assert spec["podFailurePolicy"]["rules"] == [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"containerName": "train", "operator": "In", "values": [2, 3]}},
    ]
    assert spec["backoffLimit"] == 12
    assert "successPolicy" not in spec
    elastic = of_kind(rendered(*FULL, *LINE), "Job")["spec"]
    assert elastic["successPolicy"] == {"rules": [{"succeededCount": 2}]}
    assert (elastic["completions"], elastic["parallelism"]) == (9, 9)
    jobset = of_kind(rendered(*FULL, "--kind", "jobset", *LINE), "JobSet")["spec"]
    assert jobset["replicatedJobs"][0]["template"]["spec"]["backoffLimit"] == 8
    assert jobset["failurePolicy"] == {
        "maxRestarts": 3,
        "rules": [{"name": "hopeless", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
    }


def test_the_probe_asks_where_the_agent_answers(kind):
    container = container_of(rendered(*PLAIN, "--kind", kind, *LINE)[-1])
    variables = {each["name"]: each.get("value") for each in container["env"]}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    probe = container["livenessProbe"]["httpGet"]
    assert (probe["path"], ports[probe["port"]]) == ("/health", int(variables["TORCHELASTIC_HEALTH_CHECK_PORT"]))
    assert variables["ELASTIC_HEALTH_CHECK_HOST"] == "0.0.0.0"
    assert "livenessProbe" not in container_of(rendered(*PLAIN, "--health-port", "0", *LINE)[-1])


def test_metrics_have_a_service_that_prometheus_finds(kind):
    documents = rendered(*FULL, "--kind", kind, *LINE)
    monitor = of_kind(documents, "ServiceMonitor")
    (service,) = (each for each in documents if each["metadata"]["name"] == "bert-7-metrics")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [each["port"] for each in monitor["spec"]["endpoints"]] == [
        each["name"] for each in service["spec"]["ports"]
    ]
    container = container_of(documents[-1])
    assert {"name": "PET_METRICS_PORT", "value": "0.0.0.0:9400"} in container["env"]
    others = [each for each in documents if each["kind"] == "Service" and each is not service]
    assert all(
        not monitor["spec"]["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items() for each in others
    )


def test_surroundings_of_a_pod(kind):
    document = rendered(*FULL, "--kind", kind, *LINE)[-1]
    assert document["metadata"]["namespace"] == "training"
    assert document["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    spec, container = pod_template_of(document)["spec"], container_of(document)
    assert container["resources"] == {
        "requests": {"cpu": "16"},
        "limits": {"memory": "200Gi", "rdma/hca": "1", "nvidia.com/gpu": "8"},
    }
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    assert set(mounts) == {"/dev/shm", "/checkpoints", "/data"}
    assert mounts["/data"]["readOnly"] is True
    volumes = {each["name"]: each for each in spec["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert volumes[mounts["/data"]["name"]]["persistentVolumeClaim"] == {"claimName": "data"}
    assert (spec["priorityClassName"], spec["serviceAccountName"]) == ("high", "trainer")
    assert pod_template_of(rendered(*PLAIN, *LINE)[-1])["spec"]["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["Bert_7", *PLAIN[1:], *LINE], "the name: 'Bert_7'; expected small letters, digits and dashes"),
        (["b" * 62, *PLAIN[1:], *LINE], "has 63 characters at most"),
        ([*PLAIN, "--"], "no script is given"),
        ([*PLAIN, "--nnodes", "8:2", *LINE], "--nnodes: '8:2'; expected N or MIN:MAX"),
        ([*PLAIN, "--", "--nnodes=4", "train.py"], "--nnodes 4 behind the --: the manifest depends on it"),
        ([*PLAIN, "--", "--max-restarts", "3", "--save-timeout", "60", "t.py"], "--save-timeout 60 behind the --"),
        ([*PLAIN, "--rdzv-backend", "redis", *LINE], "--rdzv-backend: 'redis'; expected --rdzv-endpoint with it"),
        ([*PLAIN, "--rdzv-endpoint", "redis://:secret-7@h:1", *LINE], "it has a user or a password"),
        (
            [*PLAIN, "--rdzv-backend", "own", "--store-secret", "a:b", *LINE],
            "expected one with a variable for its password",
        ),
        ([*PLAIN, "--store-secret", "token", *LINE], "--store-secret: 'token'; expected SECRET:KEY"),
        ([*PLAIN, "--env", "A", *LINE], "--env: 'A'; expected NAME=VALUE"),
        ([*PLAIN, "--env", "1A=2", *LINE], "'1A'; expected the name of a variable"),
        ([*PLAIN, "--resource", "memory=lots", *LINE], "memory: 'lots'; expected a quantity"),
        ([*PLAIN, "--volume", "data:data", *LINE], "--volume: 'data:data'; expected CLAIM:/PATH"),
        ([*PLAIN, "--volume", "data:/data:rw", *LINE], "--volume: 'data:/data:rw'; expected CLAIM:PATH"),
        ([*PLAIN, "--shutdown-timeout", "soon", *LINE], "--shutdown-timeout: 'soon'; expected seconds above 0"),
        ([*PLAIN, "--metrics-port", "8080", *LINE], "ports 8080, 8080, 29400; expected different ones"),
        (["one", "--image", "a:1", "--spares", "1", *LINE], "--spares: 1 with one node"),
        (["one", "--image", "a 1", *LINE], "--image: 'a 1'; expected the name of an image"),
        ([*PLAIN, "--namespace", "a/b", *LINE], "--namespace: 'a/b'; expected the name of a namespace"),
    ],
)
def test_what_no_cluster_would_take_is_one_line(words, line):
    with pytest.raises(ConfigError) as caught:
        rendered(*words)
    assert line in str(caught.value)
    assert "Try: " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "secret-7" not in str(caught.value)


def test_the_scripts_own_arguments_are_its_own():
    container = container_of(rendered(*PLAIN, "--", "--max-restarts", "3", "train.py", "--nnodes", "9")[-1])
    assert container["args"][-2:] == ["--nnodes", "9"]


def test_it_is_a_command_of_elastic(capsys):
    assert main(["k8s", "render", *PLAIN, *LINE]) == 0
    assert [each["kind"] for each in yaml.safe_load_all(capsys.readouterr().out)] == ["Service", "Job"]


def test_without_its_extra_a_command_says_what_brings_it(monkeypatch, capsys):
    import sys

    for name in [name for name in sys.modules if name.startswith("elastic_env_kubernetes.render")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert main(["k8s", "render", *PLAIN, *LINE]) == 3
    line = capsys.readouterr().err
    assert "elastic k8s needs yaml, of the extra 'cli'. Try: pip install -r sets/kubernetes.txt, in a checkout" in line
