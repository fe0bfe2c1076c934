"""`elastic k8s render --patch`: what is merged where, which lists by a key, and what is refused."""

import json
import re
from importlib.resources import files

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from elastic_core.errors import ConfigError
from elastic_env_kubernetes.manifests.patch import MERGE_KEYS
from elastic_env_kubernetes.render_command import command
from pods import container_of, job_spec_of, pod_template_of

RUN = ("bert-7", "--image", "registry.example/train:1", "--nnodes", "4", "--gpus", "8")
LINE = ("--", "train.py")
RECIPE = """
metadata:
  annotations: {k8s.v1.cni.cncf.io/networks: rdma-net}
spec:
  nodeSelector: {node.example/pool: h100}
  tolerations:
  - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
  affinity:
    podAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: topology.kubernetes.io/zone
          labelSelector: {matchLabels: {app.kubernetes.io/instance: bert-7}}
  imagePullSecrets: [{name: registry}]
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  securityContext: {runAsUser: 1000, fsGroup: 1000}
  containers:
  - name: train
    securityContext: {capabilities: {add: [IPC_LOCK]}}
    envFrom: [{configMapRef: {name: nccl}}]
    volumeMounts: [{name: scripts, mountPath: /scripts}]
  volumes:
  - {name: scripts, configMap: {name: scripts}}
"""


@pytest.fixture(params=["job", "jobset"])
def kind(request):
    return request.param


@pytest.fixture
def render(tmp_path):
    """Return a function that renders with the texts of patch files; the last object, or all with `every`."""

    def render(*patches, options=(), stdin=None, every=False):
        words = []
        for number, text in enumerate(patches):
            file = tmp_path / f"patch{number}.yaml"
            file.write_text(text)
            words += ["--patch", str(file)]
        result = CliRunner().invoke(command, [*RUN, *options, *words, *LINE], input=stdin)
        if result.exception:
            raise result.exception
        documents = list(yaml.safe_load_all(result.stdout))
        return documents if every else documents[-1]

    return render


def by_name(items):
    return {each["name"]: each for each in items}


def test_a_patch_without_a_kind_is_of_the_pod_template(render, kind):
    options = ["--kind", kind, "--volume", "data:/data"]
    before, after = (pod_template_of(render(*patches, options=options)) for patches in ((), (RECIPE,)))
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    assert after["metadata"]["annotations"] == {"k8s.v1.cni.cncf.io/networks": "rdma-net"}
    pod = after["spec"]
    assert pod["nodeSelector"] == {"node.example/pool": "h100"}
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["hostNetwork"] is True
    assert list(by_name(pod["volumes"])) == ["shm", "claim-0", "scripts"]
    (container,) = pod["containers"]
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert [each["mountPath"] for each in container["volumeMounts"]] == ["/dev/shm", "/data", "/scripts"]
    added = ("securityContext", "envFrom", "volumeMounts")
    assert {key: text for key, text in container.items() if key not in added} == {
        key: text for key, text in before["spec"]["containers"][0].items() if key not in added
    }


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_the_published_schemas_know_a_patched_job(render, version):
    kubernetes_validate.validate(render(RECIPE), version, strict=True)


def test_a_patch_of_a_kind_is_of_that_object(render):
    patch = """
kind: Job
metadata: {annotations: {team: vision}}
spec: {ttlSecondsAfterFinished: 3600, template: {spec: {schedulerName: volcano}}}
---
kind: Service
spec: {ports: [{port: 29400, appProtocol: tcp}, {port: 29500, name: other}]}
"""
    service, job = render(patch, every=True)
    assert job["metadata"]["annotations"] == {"team": "vision"}
    assert job["spec"]["ttlSecondsAfterFinished"] == 3600
    assert pod_template_of(job)["spec"]["schedulerName"] == "volcano"
    assert service["spec"]["ports"] == [
        {"port": 29400, "name": "rendezvous", "appProtocol": "tcp"},
        {"port": 29500, "name": "other"},
    ]
    topology = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    jobset = render(
        f"{{kind: JobSet, apiVersion: jobset.x-k8s.io/v1alpha2, metadata: {{name: bert-7, annotations: "
        f"{{{topology}: rack}}}}, spec: {{replicatedJobs: [{{name: nodes, template: {{spec: {{suspend: true}}}}}}]}}}}",
        options=["--kind", "jobset"],
    )
    assert jobset["metadata"]["annotations"] == {topology: "rack"}
    assert job_spec_of(jobset)["suspend"] is True
    assert job_spec_of(jobset)["completions"] == 4


def test_items_with_a_key_are_merged_and_others_added_at_the_end(render):
    patch = """
spec:
  containers:
  - {name: train, env: [{name: ELASTIC_K8S_GPUS, value: "4"}, {name: NCCL_DEBUG, value: INFO}]}
  - {name: exporter, image: "exporter:1"}
"""
    job = render(patch)
    train, exporter = pod_template_of(job)["spec"]["containers"]
    assert exporter == {"name": "exporter", "image": "exporter:1"}
    names = [each["name"] for each in train["env"]]
    assert names[0] == "POD_NAME"
    assert names[-1] == "NCCL_DEBUG"
    assert by_name(train["env"])["ELASTIC_K8S_GPUS"]["value"] == "4"
    assert len(names) == len(set(names))


def test_what_is_removed_and_replaced(render):
    patch = """
spec:
  subdomain: null
  enableServiceLinks: null
  volumes: [{name: shm, $patch: delete}, {name: not-there, $patch: delete}]
  containers:
  - name: train
    livenessProbe: {$patch: delete}
    resources: {$patch: replace, limits: {amd.com/gpu: 8}}
    volumeMounts: [{$patch: replace}, {name: other, mountPath: /other, readOnly: null}]
"""
    job = render(patch)
    pod, container = pod_template_of(job)["spec"], container_of(job)
    assert "subdomain" not in pod
    assert "enableServiceLinks" not in pod
    assert pod["volumes"] == []
    assert "livenessProbe" not in container
    assert container["resources"] == {"limits": {"amd.com/gpu": 8}}
    assert container["volumeMounts"] == [{"name": "other", "mountPath": "/other"}]
    assert "$patch" not in json.dumps(job)


def test_patches_follow_one_another_and_may_come_by_standard_input(render):
    first, second = "spec: {nodeSelector: {pool: a, disk: ssd}}", "spec: {nodeSelector: {pool: b}}"
    assert pod_template_of(render(first, second))["spec"]["nodeSelector"] == {"pool": "b", "disk": "ssd"}
    assert pod_template_of(render(f"{first}\n---\n---\n{second}\n"))["spec"]["nodeSelector"]["pool"] == "b"
    job = render(options=["--patch", "-"], stdin=first)
    assert pod_template_of(job)["spec"]["nodeSelector"]["pool"] == "a"


def test_an_alias_in_a_patch_is_none_in_the_manifest(render):
    patch = "spec:\n  nodeSelector: &pool {pool: a}\n  securityContext: {seLinuxOptions: *pool}\n"
    pod = pod_template_of(render(patch))["spec"]
    assert pod["securityContext"]["seLinuxOptions"] == pod["nodeSelector"] == {"pool": "a"}


def test_a_pod_leaves_a_lost_host_before_five_minutes(render, kind):
    taints = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]
    pod = pod_template_of(render(options=["--kind", kind]))["spec"]
    assert [(each["key"], each["tolerationSeconds"]) for each in pod["tolerations"]] == [(key, 30) for key in taints]
    assert {(each["operator"], each["effect"]) for each in pod["tolerations"]} == {("Exists", "NoExecute")}
    pod = pod_template_of(render(RECIPE, options=["--kind", kind]))["spec"]  # the list is replaced, and these stay
    assert [each["key"] for each in pod["tolerations"]] == ["nvidia.com/gpu", *taints]


@pytest.mark.parametrize(
    ("toleration", "kept"),
    [
        ("{key: node.kubernetes.io/unreachable, operator: Exists, tolerationSeconds: 600}", 1),
        ("{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoSchedule}", 2),
        ("{operator: Exists}", 0),
    ],
)
def test_a_patch_decides_how_long_a_host_may_be_lost(render, toleration, kept):
    pod = pod_template_of(render(f"spec: {{tolerations: [{toleration}]}}"))["spec"]
    assert len(pod["tolerations"]) == 1 + kept


@pytest.mark.parametrize(
    ("patch", "line"),
    [
        ("- a", "it is a list; expected a map of fields"),
        ("nodeSelector: {a: b}", "'nodeSelector' at the top; expected metadata or spec, as in a pod"),
        ("spec: [a", "is not YAML"),
        ("a: &b [*b]", "has a value that JSON does not allow: Circular reference"),
        ("spec: {nodeSelector: {since: 2026-01-01}}", "has a value that JSON does not allow"),
        ("kind: Jop", "Jop is no object of this manifest (Service bert-7, Job bert-7)"),
        ("kind: JobSet", "JobSet is no object of this manifest (Service bert-7, Job bert-7)"),
        ("{kind: Job, metadata: {name: other}}", "Job other is no object of this manifest"),
        ("{kind: Job, apiVersion: batch/v1beta1}", "apiVersion is 'batch/v1beta1'; expected 'batch/v1'"),
        ("spec: [a]", "spec.template.spec is a list; expected a map"),
        ("spec: {volumes: {a: b}}", "spec.template.spec.volumes is a map; expected a list"),
        (
            "spec: {volumes: [{emptyDir: {}}]}",
            "spec.template.spec.volumes[0] has no name, by which Kubernetes knows it",
        ),
        ("spec: {volumes: [shm]}", "volumes[0] has no name"),
        (
            "spec: {volumes: [{name: shm, $patch: replace}]}",
            "replace in spec.template.spec.volumes[0] is not understood",
        ),
        ("spec: {$patch: drop}", "drop in spec.template.spec is not understood"),
        ("spec: {$retainKeys: [a]}", "$retainKeys in spec.template.spec is not understood"),
        ("spec: {tolerations: [{key: a, $patch: delete}]}", "$patch in spec.template.spec.tolerations, a list that is"),
        ("spec: {nodeSelector: {a: 1}}", "spec.template.spec.nodeSelector.a is 1; expected a text"),
        ("metadata: {annotations: {a: true}}", "spec.template.metadata.annotations.a is True; expected a text"),
        ("spec: {containers: [{name: train, env: [{name: A, value: 1}]}]}", "env[0].value is 1; expected a text"),
        ("spec: {containers: [{name: bert, tty: true}]}", "a new container 'bert' has no image; the run's is 'train'"),
        ("spec: {containers: [{name: train, $patch: delete}]}", "the container 'train' is gone"),
        ("spec: {$patch: delete}", "it leaves no pod of this run (KeyError: 'spec')"),
        ("spec: {initContainers: abc}", "it leaves no pod of this run"),
        (
            "spec: {terminationGracePeriodSeconds: 600}",
            "terminationGracePeriodSeconds is 600; expected 70, as the",
        ),
        ("{kind: Job, spec: {parallelism: 2}}", "parallelism is 2; expected 4, as the rest of the manifest has it"),
        ("{kind: Job, spec: {completions: 2}}", "completions is 2; expected 4"),
        ("{kind: Job, metadata: {namespace: a}}", "metadata.namespace is 'a'; expected ''"),
    ],
)
def test_a_bad_patch_is_one_line(render, patch, line):
    with pytest.raises(ConfigError) as caught:
        render(patch)
    text = str(caught.value)
    assert line in text
    assert re.match(r"--patch '.*/patch0\.yaml'", text)
    assert "Try: " in text
    assert "\n" not in text


def test_a_bad_document_of_several_is_named(render):
    with pytest.raises(ConfigError, match=r"patch1\.yaml', document 2: 'a' at the top"):
        render("spec: {}", "spec: {}\n---\na: b")
    with pytest.raises(ConfigError, match=r"--patch 'missing\.yaml' can't be read: .*No such file"):
        render(options=["--patch", "missing.yaml"])


def test_a_second_service_needs_its_name(render):
    options = ["--metrics-port", "9400"]
    with pytest.raises(ConfigError, match="Service is more than one object of this manifest"):
        render("{kind: Service, metadata: {labels: {a: b}}}", options=options)
    documents = render("{kind: Service, metadata: {name: bert-7-metrics, labels: {a: b}}}", options=options, every=True)
    assert [each["metadata"]["name"] for each in documents if "a" in each["metadata"]["labels"]] == ["bert-7-metrics"]


def test_keys_of_lists_are_those_of_the_published_schemas():
    """The one list of the table that is JobSet's is no part of a Job."""
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / "v1.37.0-local"
    definitions = json.loads((folder / "_definitions.json").read_text())
    definitions = definitions.get("definitions") or definitions["$defs"]
    keys, without, seen = {}, set(), set()

    def look(schema, field):
        if reference := schema.get("$ref"):
            name = reference.rpartition("/")[2]
            if name not in seen and "JSONSchema" not in name:
                seen.add(name)
                look(definitions[name], field)
            return
        if key := schema.get("x-kubernetes-patch-merge-key"):
            keys.setdefault(field, set()).add(key)
        elif "items" in schema and "$ref" in schema["items"]:
            without.add(field)
        if "items" in schema:
            look(schema["items"], field)
        for each, of_it in schema.get("properties", {}).items():
            look(of_it, each)

    look({"$ref": "io.k8s.api.batch.v1.JobSpec"}, "")
    look({"$ref": "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}, "")
    assert {field: {key} for field, key in MERGE_KEYS.items() if field != "replicatedJobs"} == keys
    assert not without & set(MERGE_KEYS)
    assert "tolerations" in without
