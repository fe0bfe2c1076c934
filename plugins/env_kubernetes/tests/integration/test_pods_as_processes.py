"""What is rendered and applied runs: each pod a process with a pod's variables, and nothing else that it is told."""

import pytest

from api_server import ApiServer
from elastic_core.cli.main import main
from kubelet import Kubelet
from redis_servers import PASSWORD, RedisServer
from support import wait_for

TRAIN = """
import os, pathlib, sys, time
folder = pathlib.Path(__file__).parent
rank, restarts = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"rank {rank} of {os.environ['WORLD_SIZE']} on node {os.environ['GROUP_RANK']}, restart {restarts}", flush=True)
if rank == "1" and not (folder / "crashed").exists():
    (folder / "crashed").touch()
    raise ValueError("label 11 is not a digit")
(folder / f"{os.environ['POD_NAME']}.{os.environ['ELASTIC_ROUND']}").touch()
while not (folder / "enough").exists():
    time.sleep(0.02)
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Return an API server and a kubelet; scripts are in the kubelet's folder."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    api = ApiServer()
    monkeypatch.setenv("KUBECONFIG", api.kubeconfig(tmp_path / "config"))
    kubelet = Kubelet(api, tmp_path)
    yield api, kubelet
    kubelet.close()
    api.close()


@pytest.fixture
def k8s(capsys):
    def k8s(*words):
        code = main(["k8s", *words])
        shown = capsys.readouterr()
        assert code == 0, shown.err
        return shown.out

    return k8s


def apply(k8s, folder, *words):
    (folder / "run.yaml").write_text(k8s("render", "bert-7", "--image", "a:1", "--health-port", "0", *words))
    k8s("apply", "-f", str(folder / "run.yaml"))


def test_two_pods_survive_a_crash_and_an_eviction(cluster, k8s, tmp_path):
    api, kubelet = cluster
    (tmp_path / "train.py").write_text(TRAIN)
    apply(k8s, tmp_path, "--nnodes", "2", "--", "--max-restarts", "1", "train.py")

    def train(*pods):
        """Return what says whether these pods are past the crash in one round."""

        def look():
            rounds = [{path.suffix for path in tmp_path.glob(f"bert-7-{pod}.*")} for pod in pods]
            return set.intersection(*rounds) or failed()

        return look

    def failed():
        conditions = api.get("Job", "bert-7")["status"]["conditions"]
        assert not conditions, api.logs
        return False

    wait_for(train("0-00000", "1-00001"), within_s=60)
    kubelet.evict("bert-7-1-00001")
    wait_for(train("0-00000", "1-00002"), within_s=60)
    (tmp_path / "enough").touch()
    wait_for(lambda: api.get("Job", "bert-7")["status"]["conditions"], within_s=60)

    status = k8s("status", "bert-7")
    assert "Job bert-7 in training: done, 0 of 2 pods running; run id bert-7-" in status
    states = {each["metadata"]["name"]: each["status"] for (kind, _, _), each in api.objects.items() if kind == "Pod"}
    codes = {name: each["containerStatuses"][0]["state"]["terminated"]["exitCode"] for name, each in states.items()}
    assert codes == {"bert-7-0-00000": 0, "bert-7-1-00001": 143, "bert-7-1-00002": 0}
    printed = k8s("logs", "bert-7", "--follow")
    assert "[0] rank 0 of 2 on node 0, restart 1" in printed
    assert "[1] rank 1 of 2 on node 1, restart 0" in printed
    assert "rank 1 failed: ValueError: label 11 is not a digit (train.py:8" in printed
    assert "; restart 1 of 1 now" in printed


def test_pods_of_a_jobset_meet_in_a_server_with_a_password(cluster, k8s, tmp_path):
    api, kubelet = cluster
    for name in ("crashed", "enough"):
        (tmp_path / name).touch()
    (tmp_path / "train.py").write_text(TRAIN)
    kubelet.secrets["rendezvous:password"] = PASSWORD
    server = RedisServer(tmp_path / "redis", config=("--requirepass", PASSWORD)).start()
    try:
        store = ("--rdzv-backend", "redis", "--rdzv-endpoint", server.endpoint, "--store-secret", "rendezvous:password")
        apply(k8s, tmp_path, "--kind", "jobset", "--nnodes", "2", *store, "--", "train.py")
        wait_for(lambda: api.get("JobSet", "bert-7")["status"]["conditions"], within_s=60)
        assert "JobSet bert-7 in training: done, " in k8s("status", "bert-7")
        printed = k8s("logs", "bert-7")
    finally:
        server.stop()
    assert "[0] rank 0 of 2 on node 0, restart 0" in printed
    assert "[1] rank 1 of 2 on node 1, restart 0" in printed
    assert PASSWORD not in (tmp_path / "run.yaml").read_text() + printed


def test_a_line_that_can_not_work_fails_the_job_at_once(cluster, k8s, tmp_path):
    api, _ = cluster
    apply(k8s, tmp_path, "--nnodes", "1", "--", "nowhere.py")
    wait_for(lambda: api.get("Job", "bert-7")["status"]["conditions"], within_s=60)
    status = k8s("status", "bert-7")
    assert "failed (PodFailurePolicy), 0 of 1 pods running" in status
    assert "Failed (Error 2): elastic: error: " in status
    assert "nowhere.py" in status


def test_a_run_that_is_deleted_is_told_to_stop(cluster, k8s, tmp_path):
    api, _ = cluster
    (tmp_path / "crashed").touch()
    (tmp_path / "train.py").write_text(TRAIN)
    apply(k8s, tmp_path, "--", "train.py")
    wait_for(lambda: list(tmp_path.glob("bert-7-0-00000.*")), within_s=60)
    k8s("delete", "bert-7")
    pod = api.get("Pod", "bert-7-0-00000")
    wait_for(lambda: pod["status"]["phase"] == "Failed", within_s=60)
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
    assert "SIGTERM: stopping 1 worker" in "\n".join(filter(None, api.logs["bert-7-0-00000"]))
