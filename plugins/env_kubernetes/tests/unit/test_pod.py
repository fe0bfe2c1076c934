"""What a pod's variables say of a run, and what is said where they make no sense."""

import re

import pytest

from elastic_core.errors import ConfigError
from elastic_core.options.resolve import resolve
from elastic_env_kubernetes.pod import Kubernetes

BARE = {"JOB_COMPLETION_INDEX": "2", "HOSTNAME": "bert-7-2"}
"""What an Indexed Job's pod has of Kubernetes itself."""
RENDERED = {
    **BARE,
    "POD_NAME": "bert-7-2-x8kd2",
    "POD_IP": "10.1.2.3",
    "ELASTIC_JOB_ID": "5f0c3a1e-77aa-4f0e-9a3b-0c4a53b1f001",
    "ELASTIC_K8S_RUN": "bert-7",
    "ELASTIC_K8S_NNODES": "2:4",
    "ELASTIC_K8S_FIRST_POD": "bert-7-0.bert-7:29400",
    "ELASTIC_K8S_GRACE_PERIOD": "70",
    "ELASTIC_K8S_GPUS": "8",
}


def proposed(given=None, **environ):
    """Return the proposals as option to value, and the lines."""
    pod = Kubernetes(environ)
    return {each.option: each.value for each in pod.propose(given or {})}, list(pod.notices)


def settled(given=None, **environ):
    return resolve(given or {}, "train.py", environ=environ)


@pytest.fixture(autouse=True)
def script(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)


def test_a_rendered_pod_needs_no_option():
    found = settled(**RENDERED)
    nodes = found.settings.nodes
    assert (nodes.min_nodes, nodes.max_nodes, nodes.node_rank) == (2, 4, 2)
    assert (nodes.backend, nodes.endpoint, nodes.run_id) == ("c10d", "bert-7-0.bert-7:29400", "bert-7-5f0c3a1e")
    assert (nodes.node_id, nodes.local_addr) == ("bert-7-2-x8kd2", "10.1.2.3")
    assert nodes.job == "job 5f0c3a1e-77aa-4f0e-9a3b-0c4a53b1f001"
    assert nodes.local_world_size == 8
    assert found.settings.stops.shutdown_timeout_s == 30
    assert not found.settings.notices[1:]  # of OMP_NUM_THREADS
    assert found.origins["nodes.node_rank"] == "Kubernetes: JOB_COMPLETION_INDEX"
    assert found.origins["nodes.run_id"] == "Kubernetes: ELASTIC_K8S_RUN and ELASTIC_JOB_ID"


def test_what_kubernetes_itself_says_is_enough_with_nnodes():
    found = settled({"nnodes": "4"}, **BARE, ELASTIC_JOB_ID="5f0c3a1e-77aa")
    nodes = found.settings.nodes
    assert (nodes.node_rank, nodes.node_id, nodes.run_id) == (2, "bert-7-2", "bert-7-5f0c3a1e")
    assert (nodes.backend, nodes.endpoint) == ("c10d", "bert-7-0.bert-7:29400")


def test_a_pod_whose_run_has_no_number_of_nodes_trains_alone_and_says_so():
    found = settled(**BARE)
    assert found.settings.nodes.max_nodes == 1
    (line,) = found.settings.notices
    assert line.startswith("pod 2 trains alone: no variable says how many nodes the run has. Try: --nnodes N, or ")
    for given in ({"standalone": True}, {"nnodes": "1"}):
        assert not settled(given, **BARE).settings.notices


@pytest.mark.parametrize("text", ["1", "1:1"])
def test_one_node_needs_no_rendezvous(text):
    pod = BARE | {"JOB_COMPLETION_INDEX": "0", "HOSTNAME": "bert-7-0", "ELASTIC_K8S_NNODES": text}
    found = settled(**pod)
    assert found.settings.nodes.backend == "local"
    assert not found.settings.notices


def test_another_backend_gets_no_endpoint_of_a_pod():
    values, _ = proposed({"rdzv_backend": "redis"}, **RENDERED)
    assert "rdzv_endpoint" not in values
    assert "rdzv_backend" not in values
    assert "rdzv_conf" not in values
    assert values["rdzv_id"] == "bert-7-5f0c3a1e"


def test_where_somebody_says_who_node_0_is_that_is_torchs_static():
    trainer = {"PET_NNODES": "4", "PET_NODE_RANK": "2", "PET_MASTER_ADDR": "t-node-0-0.t", "PET_MASTER_PORT": "29400"}
    found = settled(**(BARE | {"HOSTNAME": "t-node-0-2"}), **trainer)
    nodes = found.settings.nodes
    assert (nodes.backend, nodes.master_addr, nodes.master_port) == ("static", "t-node-0-0.t", 29400)
    assert (nodes.node_rank, nodes.node_id) == (2, "t-node-0-2")


@pytest.mark.parametrize(("index", "hosts"), [("0", True), ("1", False)])
def test_pod_0_hosts_the_store_whatever_its_name_leads_to(index, hosts):
    pod = RENDERED | {"JOB_COMPLETION_INDEX": index, "HOSTNAME": f"bert-7-{index}"}
    assert settled(**pod).settings.rdzv_conf == {"is_host": str(hosts).lower(), "connect_timeout": "600"}
    assert not {"rdzv_conf", "connect_timeout"} & set(proposed({"rdzv_endpoint": "elsewhere:29400"}, **pod)[0])
    typed = settled({"rdzv_conf": "lease_ttl=9,connect_timeout=30"}, **pod).settings.rdzv_conf
    assert typed == {"lease_ttl": "9", "connect_timeout": "30"}


def test_typed_values_stand_and_contradictions_are_lines():
    found = settled({"nnodes": "3", "node_rank": "1", "nproc_per_node": "1"}, **RENDERED)
    assert (found.settings.nodes.max_nodes, found.settings.nodes.node_rank) == (3, 1)
    assert sorted(found.settings.notices) == [
        "nnodes is '3', and the manifest says 2:4 (ELASTIC_K8S_NNODES). Try: no --nnodes",
        "node rank '1' in pod 2 (JOB_COMPLETION_INDEX). Try: no --node-rank",
    ]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"JOB_COMPLETION_INDEX": "two"}, "JOB_COMPLETION_INDEX 'two' in this pod; expected a pod's index. Try: "),
        ({"JOB_COMPLETION_INDEX": "-1"}, "JOB_COMPLETION_INDEX '-1' in this pod; expected a pod's index. Try: "),
        ({"ELASTIC_K8S_NNODES": "four"}, "ELASTIC_K8S_NNODES 'four' in this pod; expected N or MIN:MAX. Try: "),
        ({"ELASTIC_K8S_NNODES": "4:2"}, "ELASTIC_K8S_NNODES '4:2' in this pod; expected N or MIN:MAX. Try: "),
        ({"ELASTIC_K8S_GRACE_PERIOD": "1m"}, "ELASTIC_K8S_GRACE_PERIOD '1m' in this pod; expected a number. Try: "),
        (
            {"JOB_COMPLETION_INDEX": "4", "HOSTNAME": "bert-7-4"},
            "this is pod 4 (JOB_COMPLETION_INDEX), and the manifest's run has 4 (ELASTIC_K8S_NNODES=2:4). Try: ",
        ),
    ],
)
def test_what_makes_no_sense_is_one_line(change, line):
    with pytest.raises(ConfigError, match=f"^{re.escape(line)}") as caught:
        settled(**(RENDERED | change))
    assert "\n" not in str(caught.value)


def test_a_pod_beyond_the_nodes_is_a_spare():
    pod = RENDERED | {"JOB_COMPLETION_INDEX": "4", "HOSTNAME": "bert-7-4", "ELASTIC_K8S_SPARES": "1"}
    values, _ = proposed(**pod)
    assert not {"spares", "node_rank"} & set(values)
    with pytest.raises(ConfigError, match=r"has 5 \(ELASTIC_K8S_NNODES=2:4, ELASTIC_K8S_SPARES=1\)"):
        proposed(**(pod | {"JOB_COMPLETION_INDEX": "5"}))


@pytest.mark.parametrize(
    ("given", "save", "shutdown"),
    [({}, "", "30"), ({}, "40", "20"), ({"save_timeout": "40"}, "", "20"), ({}, "2m", "1")],
)
def test_workers_end_before_the_pod_is_killed(given, save, shutdown):
    values, notices = proposed(given, **RENDERED, PET_SAVE_TIMEOUT=save)
    assert values["shutdown_timeout"] == shutdown
    assert bool(notices) == (save == "2m")


def test_a_stop_that_takes_longer_than_the_pod_has_is_a_line():
    _, notices = proposed({"shutdown_timeout": "45", "save_timeout": "1m"}, **RENDERED)
    (line,) = notices
    assert line.startswith("a stop may take 115 s, and the pod is killed after 70 s (ELASTIC_K8S_GRACE_PERIOD). Try: ")


def test_a_host_name_that_is_not_the_pods_says_nothing_of_the_job():
    values, notices = proposed({"nnodes": "4"}, **(BARE | {"HOSTNAME": "worker-node-17"}))
    assert "rdzv_endpoint" not in values
    assert "rdzv_id" not in values
    assert notices == [
        "no variable says where pod 0 is. Try: ELASTIC_K8S_FIRST_POD in the manifest, or --rdzv-endpoint"
    ]
    assert not proposed({"nnodes": "4", "rdzv_endpoint": "a:1"}, **(BARE | {"HOSTNAME": "worker-node-17"}))[1]


def test_a_pod_inside_a_slurm_job_has_to_be_told_whose_word_counts():
    job = {"SLURM_JOB_ID": "77", "SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2", "SLURM_NODEID": "1"}
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_PROCID": "1"}
    task = {"SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURMD_NODENAME": "n2", "SLURM_NTASKS": "2"}
    both = RENDERED | job | step | task
    with pytest.raises(ConfigError, match=r"Slurm and Kubernetes are detected|Kubernetes and Slurm are") as caught:
        settled(**both)
    assert "--environment " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert settled({"environment": "kubernetes"}, **both).settings.nodes.run_id == "bert-7-5f0c3a1e"
