"""`elastic k8s apply`, `status`, `logs` and `delete`, against a stand-in for an API server."""

import io
import json
import threading
from pathlib import Path

import pytest
import yaml

from api_server import ApiServer
from elastic_core.cli.main import main

RENDER = ["k8s", "render", "bert-7", "--image", "registry.example/train:1", "--nnodes", "2", "--metrics-port", "9400"]
OURS = {"app.kubernetes.io/instance": "bert-7", "app.kubernetes.io/managed-by": "elastic-k8s"}


@pytest.fixture
def api():
    server = ApiServer()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def kubeconfig(api, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", api.kubeconfig(tmp_path / "config"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


@pytest.fixture
def k8s(capsys):
    """Return what runs `elastic k8s …` and returns exit code, output and errors."""

    def k8s(*words):
        code = main(["k8s", *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return k8s


@pytest.fixture
def manifest(tmp_path, capsys):
    """Return what writes a manifest and returns its file."""

    def manifest(*options):
        assert main([*RENDER, *options, "--", "train.py"]) == 0
        path = tmp_path / "bert-7.yaml"
        path.write_text(capsys.readouterr().out)
        return str(path)

    return manifest


def pod(index, phase, *, name="", node="n1", state=None, created="2026-11-23T07:00:00Z", **metadata):
    marks = {**OURS, "batch.kubernetes.io/job-completion-index": str(index)}
    name = name or f"bert-7-{index}-abcde"
    common = {"image": "a", "imageID": "", "ready": False, "restartCount": 0}
    statuses = [{"name": "proxy", "state": {}, **common}, {"name": "train", "state": state or {}, **common}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": marks, "creationTimestamp": created, **metadata},
        "spec": {"nodeName": node, "containers": [{"name": "proxy"}, {"name": "train"}]},
        "status": {"phase": phase, "containerStatuses": statuses},
    }


def conditions(api, kind, *pairs):
    document = api.get(kind, "bert-7")
    document["status"] = {
        "conditions": [
            {"type": name, "status": "True", "reason": reason, "message": text} for name, reason, text in pairs
        ]
    }


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
def test_a_manifest_is_applied_as_it_stands(api, k8s, manifest, kind):
    file = manifest("--kind", kind.lower())
    code, out, err = k8s("apply", "-f", file)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"{kind} bert-7 applied"
    for document in yaml.safe_load_all(Path(file).read_text()):
        kept = api.get(document["kind"], document["metadata"]["name"])
        assert kept["spec"] == document["spec"]
    assert k8s("apply", "-f", file)[0] == 0  # nothing has changed


def test_a_dry_run_keeps_nothing(api, k8s, manifest):
    code, out, _ = k8s("apply", "--dry-run", "-f", manifest())
    assert code == 0
    assert "Job bert-7 would be applied" in out
    assert not api.objects


def test_a_manifest_of_standard_input_and_another_namespace(api, k8s, manifest, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(Path(manifest()).read_text()))
    assert k8s("apply", "-f", "-", "--namespace", "other")[0] == 0
    assert api.get("Job", "bert-7", "other")
    assert not api.get("Job", "bert-7")


def test_an_unknown_field_is_the_servers_to_refuse(k8s, manifest, tmp_path):
    file = manifest()
    text = Path(file).read_text().replace("restartPolicy:", "restartPolice: 7\n      restartPolicy:")
    (tmp_path / "odd.yaml").write_text(text)
    code, _, err = k8s("apply", "-f", str(tmp_path / "odd.yaml"))
    assert code == 1
    assert "refused: strict decoding error: spec.template.spec: " in err
    assert "'restartPolice' was unexpected" in err
    assert err.count("\n") == 1


def test_a_job_that_is_there_and_can_not_be_changed_so(k8s, manifest):
    assert k8s("apply", "-f", manifest())[0] == 0
    code, _, err = k8s("apply", "-f", manifest("--gpus", "8"))
    assert code == 1
    assert "it is there already, and can't be changed so: Job.batch" in err
    assert err.endswith("Try: elastic k8s delete, then apply\n")


def test_how_a_run_and_its_pods_are(api, k8s, manifest):
    k8s("apply", "-f", manifest())
    ended = {"exitCode": 1, "reason": "Error", "message": "elastic: block\nrank 1 failed: ValueError: label 11"}
    api.put(pod(0, "Running", state={"running": {}}))
    api.put(pod(1, "Failed", name="bert-7-1-aaaaa", node="n2", state={"terminated": ended}))
    waits = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    api.put(pod(1, "Pending", name="bert-7-1-bbbbb", node="", state=waits, created="2026-11-23T07:05:00Z"))
    uid = api.get("Job", "bert-7")["metadata"]["uid"]
    code, out, _ = k8s("status", "bert-7")
    assert code == 0
    headline, *rows = out.splitlines()
    assert headline == f"Job bert-7 in training: running, 1 of 2 pods running; run id bert-7-{uid[:8]}"
    assert [" ".join(row.split()) for row in rows] == [
        "pod name state node",
        "0 bert-7-0-abcde Running n1",
        "1 bert-7-1-aaaaa Failed (Error 1): rank 1 failed: ValueError: label 11 n2",
        "1 bert-7-1-bbbbb Pending (ImagePullBackOff): no such image",
    ]
    code, out, _ = k8s("status", "bert-7", "--json")
    document = json.loads(out)
    assert (document["state"], document["pods_wanted"], document["restarts"]) == ("running", 2, None)
    assert [each["exit_code"] for each in document["pods"]] == [None, 1, None]


@pytest.mark.parametrize(
    ("kind", "condition", "words"),
    [
        ("Job", ("Complete", "", ""), "Job bert-7 in training: done, "),
        ("Job", ("Failed", "PodFailurePolicy", "code 2"), "training: failed (PodFailurePolicy: code 2), 0 of 2"),
        ("JobSet", ("Completed", "AllJobsCompleted", ""), "JobSet bert-7 in training: done (AllJobsCompleted), "),
        ("JobSet", ("Failed", "FailedJobs", "jobset failed"), "training: failed (FailedJobs: jobset failed), "),
    ],
)
def test_how_a_run_has_ended(api, k8s, manifest, kind, condition, words):
    k8s("apply", "-f", manifest("--kind", kind.lower()))
    conditions(api, kind, condition)
    assert words in k8s("status", "bert-7")[1]


def test_a_suspended_run_and_restarts_of_a_jobset(api, k8s, manifest):
    k8s("apply", "-f", manifest("--kind", "jobset"))
    api.get("JobSet", "bert-7")["spec"]["suspend"] = True
    api.get("JobSet", "bert-7")["status"] = {"restarts": 2}
    assert "suspended, 0 of 2 pods running, 2 restarts; run id" in k8s("status", "bert-7")[1]


def test_what_pods_have_printed(api, k8s, manifest):
    k8s("apply", "-f", manifest())
    api.put(pod(0, "Running"))
    api.put(pod(1, "Failed", name="bert-7-1-aaaaa"))
    api.put(pod(1, "Running", name="bert-7-1-bbbbb", created="2026-11-23T07:05:00Z"))
    for name in ("bert-7-0-abcde", "bert-7-1-aaaaa", "bert-7-1-bbbbb"):
        api.write(name, f"{name} one", f"{name} two")
    assert k8s("logs", "bert-7", "--tail", "1")[1].splitlines() == [
        "[0] bert-7-0-abcde two",
        "[1] bert-7-1-bbbbb two",
    ]
    assert k8s("logs", "bert-7", "--index", "1")[1].splitlines() == ["bert-7-1-bbbbb one", "bert-7-1-bbbbb two"]


def test_output_is_followed_until_the_run_ends_with_pods_that_begin_later(api, k8s, manifest, monkeypatch):
    monkeypatch.setattr("elastic_env_kubernetes.cluster.logs_command._LOOK_S", 0.05)
    k8s("apply", "-f", manifest())
    api.put(pod(0, "Running"))
    api.put(pod(1, "Pending"))
    api.write("bert-7-0-abcde", "first")

    def play():
        api.write("bert-7-1-abcde", "late", end=True)
        api.put(pod(1, "Succeeded"))
        api.write("bert-7-0-abcde", "second", end=True)
        conditions(api, "Job", ("Complete", "", ""))

    threading.Timer(0.2, play).start()
    code, out, _ = k8s("logs", "bert-7", "--follow")
    assert code == 0
    assert sorted(out.splitlines()) == ["[0] first", "[0] second", "[1] late"]


def test_a_pod_whose_output_is_not_to_be_had_hides_nobody_elses(api, k8s, manifest):
    k8s("apply", "-f", manifest())
    api.put(pod(0, "Failed"))
    api.put(pod(1, "Running"))
    api.write("bert-7-1-abcde", "one")
    code, out, err = k8s("logs", "bert-7")
    assert (code, out) == (0, "[1] one\n")
    assert "elastic: the output of pod bert-7-0-abcde: the API server at http://127.0.0.1:" in err
    assert "is waiting to start" in err


def test_pods_that_have_not_begun_print_nothing(api, k8s, manifest):
    k8s("apply", "-f", manifest())
    api.put(pod(0, "Pending", state={"waiting": {"reason": "ImagePullBackOff"}}))
    code, _, err = k8s("logs", "bert-7")
    assert code == 2
    assert "no pod of 'bert-7' has started yet: bert-7-0-abcde (ImagePullBackOff). Try: elastic k8s" in err


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
def test_all_that_was_applied_is_deleted_and_nothing_else(api, k8s, manifest, kind):
    stopped = []
    api.on_deleted = lambda document: stopped.append(document["kind"])
    api.put({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "other"}, "spec": {}})
    k8s("apply", "-f", manifest("--kind", kind.lower()))
    code, out, _ = k8s("delete", "bert-7")
    assert code == 0
    assert out.splitlines()[0] == f"{kind} bert-7 deleted; its pods are being stopped"
    assert kind in stopped  # with its pods: the API's default for a Job leaves them
    assert [name for _, _, name in api.objects] == ["other"]


def test_a_job_of_somebody_elses_is_not_deleted(api, k8s):
    spec = {"template": {"spec": {"containers": []}}}
    api.put({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "bert-7"}, "spec": spec})
    code, _, err = k8s("delete", "bert-7")
    assert code == 2
    assert "was not written by elastic k8s render. Try: kubectl delete job bert-7" in err
    assert api.get("Job", "bert-7")


# --- what goes wrong


@pytest.mark.parametrize("words", [["status"], ["logs"], ["delete"]])
def test_a_run_that_is_not_there(k8s, words):
    code, _, err = k8s(*words, "bert-8")
    assert code == 2
    assert "no Job and no JobSet 'bert-8' in namespace 'training'. Try: --namespace, or elastic k8s apply" in err


def test_a_cluster_without_jobsets(api, k8s, manifest):
    del api.kinds["jobset.x-k8s.io/v1alpha2", "jobsets"]
    code, _, err = k8s("apply", "-f", manifest("--kind", "jobset"))
    assert code == 1
    assert "jobset.x-k8s.io/v1alpha2 has no kind JobSet here. Try: install JobSet" in err
    assert k8s("status", "bert-8")[0] == 2


def test_a_cluster_without_the_prometheus_operator(api, k8s, manifest):
    del api.kinds["monitoring.coreos.com/v1", "servicemonitors"]
    code, _, err = k8s("apply", "-f", manifest())
    assert code == 1
    assert (
        "monitoring.coreos.com/v1 has no kind ServiceMonitor here. Try: install the Prometheus operator, or no" in err
    )
    assert not api.get("Job", "bert-7")


def test_who_may_not(api, k8s, manifest, tmp_path, monkeypatch):
    api.forbidden.add("patch")
    code, _, err = k8s("apply", "-f", manifest())
    assert code == 1
    assert 'refused: services is forbidden: User "ada" cannot patch' in err
    assert err.endswith("Try: a role that allows it, or another --namespace\n")
    monkeypatch.setenv("KUBECONFIG", api.kubeconfig(tmp_path / "old", token="of last week"))
    code, _, err = k8s("status", "bert-7")
    assert code == 1
    assert err.endswith("refused: Unauthorized. Try: log in again, or --context\n")


def test_a_context_without_a_user_is_nobody(k8s):
    code, _, err = k8s("status", "bert-7", "--context", "nobody")
    assert code == 1
    assert "refused: Unauthorized" in err


def test_a_server_that_does_not_answer(api, k8s, tmp_path, monkeypatch):
    config = yaml.safe_load((tmp_path / "config").read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    code, _, err = k8s("status", "bert-7")
    assert code == 1
    assert "the API server at http://127.0.0.1:9 can't be reached: " in err
    assert err.endswith("Try: a cluster that runs, or --context\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "kubeconfig: Configuration file "),
        ("a: [", "kubeconfig can't be read: "),
        ("7", "kubeconfig can't be read: "),
        ("{}", "kubeconfig can't be read: KeyError: "),
        ("{clusters: [], contexts: []}", "kubeconfig: No current context set"),
        ("{clusters: [], contexts: [], current-context: here}", "kubeconfig: Context 'here' not found"),
    ],
)
def test_a_kubeconfig_that_can_not_be_used(k8s, tmp_path, monkeypatch, text, words):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "own"))
    if text is not None:
        (tmp_path / "own").write_text(text)
    code, _, err = k8s("status", "bert-7")
    assert code == 2
    assert words in err
    assert "Try: " in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("a: [", "is not YAML: "),
        ("- 7", "has a document without kind or name; expected Kubernetes objects"),
        (
            "{apiVersion: v1, kind: Service, metadata: {}}",
            "has a document without kind or name; expected Kubernetes objects",
        ),
        ("{apiVersion: own/v1, kind: Own, metadata: {name: a}}", "the kind 'Own' of 'own/v1' is not known here"),
    ],
)
def test_a_manifest_that_can_not_be_applied(api, k8s, tmp_path, text, words):
    (tmp_path / "odd.yaml").write_text(text)
    code, _, err = k8s("apply", "-f", str(tmp_path / "odd.yaml"))
    assert code == 2
    assert words in err
    assert "Try: " in err
    assert err.count("\n") == 1
    assert k8s("apply", "-f", str(tmp_path / "none.yaml"))[0] == 2
    assert not api.objects
