"""What is proposed under Slurm: tables of variables, as Slurm 22.05 sets them."""

import pytest

from elastic_core.cli.main import main
from elastic_core.errors import ConfigError
from elastic_core.options.resolve import resolve
from elastic_env_slurm.environment import FIRST_PORT, SlurmEnvironment

JOB = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_NODELIST": "gpu[001-004]"}
SALLOC = JOB | {"SLURM_NNODES": "4"}
BATCH = JOB | {"SLURM_NODEID": "0", "SLURM_LOCALID": "0", "SLURM_PROCID": "0", "SLURM_TASKS_PER_NODE": "1(x4)"}
STEP = BATCH | {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NODELIST": "gpu[002-004]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    "SLURM_NODEID": "2",
    "SLURM_PROCID": "2",
    "SLURMD_NODENAME": "gpu004",
}
ONE = STEP | {
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NODELIST": "gpu004",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "SLURM_NODEID": "0",
}
PORT = FIRST_PORT + 4711 * 31 % 7919


def proposed(variables, **given):
    environment = SlurmEnvironment(variables)
    found = environment.propose(given)
    values = {each.option: each.value for each in found if each.option != "requeue"}
    assert len({each.option for each in found}) == len(found)
    return values, list(environment.notices)


def refused(variables, **given):
    with pytest.raises(ConfigError) as caught:
        SlurmEnvironment(variables).propose(given)
    return str(caught.value)


WHOLE = {
    "nnodes": "3",
    "node_rank": "2",
    "node_id": "gpu004",
    "rdzv_backend": "c10d",
    "rdzv_endpoint": f"gpu002:{PORT}",
    "rdzv_conf": "is_host=false",
    "rdzv_id": "4711.0",
}


@pytest.mark.parametrize(
    ("variables", "values"),
    [
        (STEP, WHOLE),
        (STEP | {"SLURM_NODEID": "0"}, WHOLE | {"node_rank": "0", "rdzv_conf": "is_host=true"}),
        (STEP | {"SLURM_STEP_ID": "7"}, WHOLE | {"rdzv_id": "4711.7", "rdzv_endpoint": f"gpu002:{PORT + 7}"}),
        (STEP | {"SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "3"}, WHOLE | {"rdzv_id": "4700_3.0"}),
        (STEP | {"SLURM_HET_SIZE": "2", "SLURM_HET_JOB_ID": "4711"}, WHOLE),
        (STEP | {"SLURM_HET_JOB_ID": "4710"}, WHOLE | {"rdzv_id": "4710.0"}),
        (ONE, {"node_id": "gpu004", "rdzv_id": "4711.0"}),
        (JOB | {"SLURM_JOB_NUM_NODES": "1"}, {"rdzv_id": "4711"}),
        (BATCH | {"SLURM_JOB_NUM_NODES": "1"}, {"rdzv_id": "4711"}),
    ],
    ids=["step", "first node", "later step", "array", "het", "het component", "step of one node", "salloc", "batch"],
)
def test_what_is_known_is_proposed(variables, values):
    assert proposed(variables) == (values, [])


def test_jobs_and_steps_that_run_at_the_same_time_have_ports_of_their_own():
    ports = {
        proposed(STEP | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})[0]["rdzv_endpoint"]
        for job in range(1000, 1200)
        for step in range(5)
    }
    assert len(ports) == 1000
    assert {int(each.partition(":")[2]) < 29_000 for each in ports} == {True}


@pytest.mark.parametrize("variables", [SALLOC, BATCH])
def test_without_srun_nothing_waits_for_nodes_that_do_not_come(variables):
    line = "this run is on one node of a job of 4: srun starts an agent on each. Try: srun elastic run …"
    assert proposed(variables) == ({"rdzv_id": "4711"}, [line])
    assert proposed(variables, nnodes="1")[1] == []


@pytest.mark.parametrize(
    ("variables", "hook"), [(STEP, True), (ONE, True), (BATCH, True), (SALLOC, False)], ids=["s", "one", "batch", "sh"]
)
def test_the_hook_is_chosen_where_slurm_can_start_the_job_again(variables, hook):
    found = {each.option: each.value for each in SlurmEnvironment(variables).propose({"standalone": "1"})}
    assert found == ({"requeue": "preempted"} if hook else {})


@pytest.mark.parametrize(
    ("given", "left_out"),
    [
        ({"rdzv_backend": "redis"}, {"rdzv_backend", "rdzv_endpoint", "rdzv_conf"}),
        ({"rdzv_backend": "static"}, {"rdzv_backend", "rdzv_conf"}),
        ({"rdzv_endpoint": "h:1"}, {"rdzv_endpoint", "rdzv_conf"}),
        ({"rdzv_backend": "static", "master_addr": "h"}, {"rdzv_backend", "rdzv_endpoint", "rdzv_conf"}),
    ],
)
def test_a_backend_that_was_named_has_its_own_endpoint(given, left_out):
    values, lines = proposed(STEP, **given)
    assert set(WHOLE) - set(values) == left_out
    assert not lines


@pytest.mark.parametrize(
    "own",
    [
        {"SLURM_STEP_TASKS_PER_NODE": "8(x3)", "SLURM_LOCALID": "0"},
        {"SLURM_STEP_TASKS_PER_NODE": "2,1(x2)", "SLURM_LOCALID": "0"},
        {"SLURM_LOCALID": "3"},
    ],
)
@pytest.mark.parametrize("variables", [STEP, ONE], ids=["nodes", "one"])
def test_a_second_agent_of_a_node_is_refused(variables, own):
    first = variables | own | {"SLURM_PROCID": "0"}
    for given in ({}, {"nnodes": "24"}, {"nnodes": "24", "rdzv_backend": "static"}, {"rdzv_endpoint": "h:1"}):
        text = refused(first, **given)
        assert "more than one task per node" in text
        assert "Try: srun --ntasks-per-node 1" in text
    assert refused(variables | own | {"SLURM_PROCID": "5"}) == ""  # the step's first task reports it for all
    assert proposed(variables | own, standalone="1") == ({}, [])
    for option in ("rdzv_endpoint", "master_addr", "node_rank"):  # how the agents find each other is typed
        assert proposed(variables | own, nnodes="24", **{option: "7"}) == ({"rdzv_id": "4711.0"}, [])


@pytest.mark.parametrize(("task", "lines"), [("0", 1), ("5", 0)])
def test_the_first_task_of_a_step_reports_for_all(monkeypatch, capsys, task, lines):
    own = {"SLURM_STEP_TASKS_PER_NODE": "8(x3)", "SLURM_PROCID": task}
    for name, value in (STEP | own).items():
        monkeypatch.setenv(name, value)
    assert main(["run", "--nnodes", "3", __file__]) == 2
    assert len(capsys.readouterr().err.splitlines()) == lines


@pytest.mark.parametrize(
    ("nnodes", "line"),
    [
        ("3", ""),
        ("1:3", ""),
        ("2:8", ""),
        ("2", "--nnodes 2 in a step of 3 nodes (SLURM_STEP_NUM_NODES): the nodes that are too many wait as spares"),
        ("what", ""),
    ],
)
def test_another_number_of_nodes_counts(nnodes, line):
    assert proposed(STEP, nnodes=nnodes)[1] == ([line] if line else [])


def test_an_allocation_that_shrank_is_told_before_anybody_waits():
    assert refused(STEP, nnodes="4") == (
        "--nnodes 4 in a step of 3 nodes (SLURM_STEP_NUM_NODES): the other nodes can't join. Try: --nnodes 3, or "
        "leave it out"
    )
    (line,) = proposed(STEP, nnodes="4:8", rdzv_id="bert-7")[1]
    assert line.endswith("the run waits for nodes that are none of this step's")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"SLURM_STEP_NODELIST": "gpu[002-"},
            "SLURM_STEP_NODELIST='gpu[002-'; expected a list of nodes: a bracket is not",
        ),
        ({"SLURM_STEP_NODELIST": "gpu[003-004]"}, "SLURM_STEP_NODELIST='gpu[003-004]' has 2 of 3 nodes"),
        ({"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST=''; expected a list of nodes: it is empty"),
        ({"SLURM_STEP_NUM_NODES": "many"}, "SLURM_STEP_NUM_NODES: 'many'; expected a number, 1 or more"),
        ({"SLURM_NODEID": ""}, "SLURM_NODEID: ''; expected a number, 0 or more"),
    ],
)
def test_what_can_not_be_read_is_one_line(changed, words):
    assert refused(STEP | changed).startswith(words)
    assert "Try: --" in refused(STEP | changed)


def test_a_list_that_nobody_needs_is_not_read():
    assert proposed(STEP | {"SLURM_STEP_NODELIST": "gpu["}, rdzv_endpoint="gpu002:1")[0]["rdzv_backend"] == "c10d"


@pytest.mark.parametrize(
    ("run_id", "told"), [("4712", True), ("4700_3.1", True), ("4711", False), ("4711.0", False), ("bert-7", False)]
)
def test_the_id_of_another_job_is_a_line(run_id, told):
    lines = proposed(STEP, rdzv_id=run_id)[1]
    assert len(lines) == told
    assert not told or lines[0].startswith(f"run id '{run_id}' looks like that of another job: this is job 4711")


SECOND_TASK = STEP | {"SLURM_NODEID": "1", "SLURM_PROCID": "1"}


@pytest.mark.parametrize(
    ("given", "environ", "told"),
    [
        ({}, {"PET_NODE_RANK": "0"}, True),
        ({"node_rank": "0"}, {}, True),
        ({"node_rank": "0", "rdzv_backend": "redis", "rdzv_id": "x"}, {}, True),
        ({"rdzv_backend": "static"}, {"PET_NODE_RANK": "1"}, False),
        ({}, {}, False),
    ],
)
def test_a_rank_that_is_not_slurms_is_told(given, environ, told):
    given = {"rdzv_endpoint": "h:29500"} | given
    settings = resolve(given, __file__, environ=environ | SECOND_TASK).settings
    assert [line for line in settings.notices if "Slurm's, 1 (SLURM_NODEID)" in line] == list(settings.notices)
    assert len(settings.notices) == told
    assert settings.nodes.node_rank == (0 if told else 1)


def test_srun_elastic_run_is_the_whole_line():
    found = resolve({}, __file__, environ=STEP)
    nodes = found.settings.nodes
    assert (nodes.min_nodes, nodes.max_nodes, nodes.node_rank, nodes.node_id) == (3, 3, 2, "gpu004")
    assert (nodes.backend, nodes.endpoint, nodes.run_id) == ("c10d", f"gpu002:{PORT}", "4711.0")
    assert (nodes.job, nodes.attempt, nodes.attempt_given) == ("slurm 4711", 0, True)
    assert found.origins["nodes.endpoint"].startswith("Slurm: SLURM_STEP_NODELIST")
    assert resolve({}, __file__, environ=STEP | {"SLURM_RESTART_COUNT": "2"}).settings.nodes.attempt == 2
    assert not found.settings.notices
