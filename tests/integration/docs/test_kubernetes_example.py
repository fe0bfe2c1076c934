"""The manifests in examples/kubernetes: their command lines are understood, and their numbers fit each other."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "kubernetes"
SAMPLES = {
    "metadata.name": "bert-7-0",
    "status.podIP": "10.1.2.3",
    "metadata.labels['jobset.sigs.k8s.io/jobset-uid']": "5f0c",
    "metadata.annotations['jobset.sigs.k8s.io/restart-attempt']": "2",
}


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def pods(node):
    """Yield the specification of every pod that runs `elastic run`."""
    if isinstance(node, dict):
        if any(each.get("command") == ["elastic", "run"] for each in node.get("containers", ())):
            yield node
        for value in node.values():
            yield from pods(value)
    elif isinstance(node, list):
        for value in node:
            yield from pods(value)


def environment(container):
    found = {}
    for variable in container["env"]:
        source = variable.get("valueFrom", {})
        field = source.get("fieldRef", {}).get("fieldPath")
        found[variable["name"]] = variable.get("value") or (SAMPLES[field] if field else "secret-7")
    return found


def dry_run(container, folder):
    (folder / "train.py").write_text("")
    env = environment(container)
    args = [re.sub(r"\$\((\w+)\)", lambda found: env[found[1]], arg) for arg in container["args"]]
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("PET_", "ELASTIC_", "TORCHELAST"))}
    command = [sys.executable, "-m", "elastic_core.run", "--dry-run", *args]
    done = subprocess.run(command, cwd=folder, env=clean | env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    settings = {}
    for line in done.stdout.splitlines():
        if found := re.match(r"  (\w+) +(\S+) ", line):
            settings[found[1]] = found[2]
    return settings, done.stdout


@pytest.fixture(params=["job.yaml", "jobset.yaml"])
def manifest(request):
    return documents(request.param)


@pytest.fixture
def pod(manifest):
    (found,) = pods(manifest)
    return found


def test_the_line_is_understood_and_says_nothing_of_secrets(pod, tmp_path):
    (container,) = pod["containers"]
    settings, text = dry_run(container, tmp_path)
    assert settings["node_id"] == "bert-7-0"
    assert settings["health_check_port"] == "8080"
    assert "secret-7" not in text


def test_pods_have_more_time_than_workers(pod, tmp_path):
    settings, _ = dry_run(pod["containers"][0], tmp_path)
    assert pod["terminationGracePeriodSeconds"] > float(settings["shutdown_timeout_s"])
    assert pod["restartPolicy"] == "Never"  # what podFailurePolicy asks for


def test_the_probe_asks_where_the_agent_answers(pod):
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    probe = container["livenessProbe"]["httpGet"]
    env = environment(container)
    assert ports[probe["port"]] == int(env["TORCHELASTIC_HEALTH_CHECK_PORT"])
    assert (probe["path"], env["ELASTIC_HEALTH_CHECK_HOST"]) == ("/health", "0.0.0.0")


def test_the_endpoint_of_c10d_is_the_first_pod():
    service, job = documents("job.yaml")
    name, spec = job["metadata"]["name"], job["spec"]
    endpoint = f"--rdzv-endpoint={name}-0.{service['metadata']['name']}:29400"
    (pod,) = pods(job)
    assert endpoint in pod["containers"][0]["args"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": name}
    assert spec["completions"] == spec["parallelism"] == 4
    assert "--nnodes=4" in pod["containers"][0]["args"]


def test_a_jobset_counts_its_attempts(tmp_path):
    (pod,) = pods(documents("jobset.yaml"))
    (container,) = pod["containers"]
    settings, shown = dry_run(container, tmp_path)
    assert settings["rdzv_attempt"] == "2"
    assert settings["rdzv_attempt_given"] == "yes"
    assert "job 5f0c" in shown
    assert (settings["min_nodes"], settings["max_nodes"]) == ("2", "8")
