"""What joiners compare, and what a node is called."""

import json
import re
import sys

import pytest

from elastic_core.errors import ConfigError, RendezvousError
from elastic_core.options.run_fingerprint import run_fingerprint
from elastic_core.options.settings import Entrypoint, RunSettings
from elastic_core.options.worker_options import WorkerSettings
from elastic_core.rendezvous.identity import (
    ALLOWABLE,
    REFUSED,
    WARNED,
    Difference,
    RunAttempt,
    attempt_from_environment,
    compare_fingerprints,
    default_node_id,
    mismatch_error,
    mismatch_warning,
    parse_allow_mismatch,
)
from elastic_core.types import RendezvousSettings

WHERE = "redis at host:6379"


CONF = {"lease_ttl": "5", "last_call_timeout": "30", "connect_timeout": "60", "password": "s3cret"}


def make(
    *,
    entrypoint="/home/me/train.py",
    is_module=False,
    arguments=("--token", "s3cret"),
    nodes=(2, 8),
    nproc=4,
    nproc_source="",
    role="default",
    rdzv_conf=CONF,
    **other,
):
    settings = RunSettings(
        entrypoint=Entrypoint(
            argv=(sys.executable, "-u", entrypoint, *arguments),
            name=entrypoint,
            module=entrypoint if is_module else None,
        ),
        nodes=RendezvousSettings(run_id="r", min_nodes=nodes[0], max_nodes=nodes[1], local_world_size=nproc, role=role),
        workers=WorkerSettings(nproc_source=nproc_source),
        rdzv_conf=rdzv_conf,
    )
    return run_fingerprint(settings) | {"format": "1", "torch": "2.13", "python": "3.11"} | other


def test_holds_what_joiners_compare():
    prints = make()
    assert set(prints) == REFUSED | WARNED
    assert prints == prints | {
        "nnodes": "2:8",
        "entrypoint": "train.py",
        "nproc": "4",
        "role": "default",
        "backend_options": "lease_ttl=5,last_call_timeout=30",
        "agent": "elastic",
        "format": "1",
        "torch": "2.13",
        "python": "3.11",
    }


def test_tells_no_secrets():
    assert "s3cret" not in json.dumps(make())


def test_same_line_from_another_folder_is_the_same():
    assert make(entrypoint="train.py") == make(entrypoint="/mnt/other/train.py")


def test_a_module_is_not_a_script():
    assert make(entrypoint="pkg.train", is_module=True)["entrypoint"] == "-m pkg.train"
    assert make(entrypoint="train", is_module=True) != make(entrypoint="train")


def test_fixed_size_reads_as_typed():
    assert make(nodes=(2, 2))["nnodes"] == "2"


@pytest.mark.parametrize("other", [["--token", "else"], ["--token s3cret"], [], ["s3cret", "--token"]])
def test_arguments_differ(other):
    refusals, warnings = compare_fingerprints(make(), make(arguments=other))
    assert not refusals
    assert [w.key for w in warnings] == ["arguments"]


def test_nothing_differs():
    assert compare_fingerprints(make(), make()) == ([], [])


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("nnodes", {"nodes": (1, 8)}),
        ("entrypoint", {"entrypoint": "eval.py"}),
        ("nproc", {"nproc": 8}),
        ("backend_options", {"rdzv_conf": CONF | {"lease_ttl": "10"}}),
        ("format", {"format": "2"}),
        ("torch", {"torch": "2.14.0"}),
    ],
)
def test_refused(key, other):
    mine, theirs = make(), make(**other)
    refusals, warnings = compare_fingerprints(mine, theirs)
    assert refusals == [Difference(key=key, mine=mine[key], theirs=theirs[key])]
    assert not warnings
    assert compare_fingerprints(mine, theirs, allowed={key}) == ([], [])


@pytest.mark.parametrize(
    ("mine", "theirs", "told"),
    [
        ({"role": "ps"}, {"role": "master"}, "--role master, this node has ps"),
        (
            {"role": "ps", "nproc": 2, "entrypoint": "ps.py"},
            {"role": "master", "nproc": 8, "entrypoint": "main.py"},
            "the entry point main.py and --nproc-per-node 8 and --role master, this node has ps.py and 2 and ps",
        ),
        (
            {"nproc": 4, "nproc_source": "gpu"},
            {"nproc": 8, "nproc_source": "gpu"},
            "--nproc-per-node gpu (8), this node has gpu (4)",
        ),
        ({"nproc": 4}, {"nproc": 8, "nproc_source": "auto"}, "--nproc-per-node auto (8), this node has 4"),
        ({"torch": "2.13.1"}, {"torch": "2.13.0"}, "torch 2.13.0, this node has 2.13.1"),
    ],
    ids=["role", "all of another role", "GPUs", "one number and one word", "release of torch"],
)
def test_what_may_be_meant_is_one_line(mine, theirs, told):
    refusals, warnings = compare_fingerprints(make(**mine), make(**theirs))
    assert not refusals
    assert mismatch_warning("r", warnings) == f"run 'r' was begun with {told}"


def test_the_same_number_is_no_difference_however_it_was_found():
    assert compare_fingerprints(make(nproc=8), make(nproc=8, nproc_source="gpu")) == ([], [])


def test_an_agent_of_torchruns_is_refused_and_nothing_allows_it():
    refusals, _ = compare_fingerprints(make(), {"agent": "torchrun", "format": "1"}, allowed=ALLOWABLE)
    assert str(mismatch_error("r", WHERE, refusals)) == (
        "run 'r' on redis at host:6379 was begun with the launcher torchrun, this node has elastic. "
        "Try: the same launcher and elastic-core on every node"
    )


def test_another_policy_only_warns():
    refusals, warnings = compare_fingerprints(make(), make(policy="rules (0123abcd)"))
    assert not refusals
    told = "run 'bert-7' was begun with --policy rules (0123abcd), this node has intensity"
    assert mismatch_warning("bert-7", warnings) == told


def test_python_only_warns():
    refusals, warnings = compare_fingerprints(make(), make(python="3.12"))
    assert not refusals
    assert mismatch_warning("bert-7", warnings) == "run 'bert-7' was begun with Python 3.12, this node has 3.11"


@pytest.mark.parametrize(
    ("mine", "theirs", "told"),
    [
        (["a", "b"], ["a", "b", "c"], r"3 \(digest \w{12}\), this node has 2 \(digest \w{12}\)"),
        ([], ["b"], r"1 \(digest \w{12}\), this node has none"),
        (["a"], [], r"none, this node has 1 \(digest \w{12}\)"),
    ],
)
def test_of_arguments_their_number_and_a_digest_are_shown(mine, theirs, told):
    _, warnings = compare_fingerprints(make(arguments=mine), make(arguments=theirs))
    assert re.fullmatch(f"run 'r' was begun with script arguments {told}", mismatch_warning("r", warnings))


@pytest.mark.parametrize("sides", [("", "2.13"), ("2.13", "")])
def test_torch_that_one_side_does_not_see_only_warns(sides):
    refusals, warnings = compare_fingerprints(make(torch=sides[0]), make(torch=sides[1]))
    assert not refusals
    assert [w.key for w in warnings] == ["torch"]


def test_keys_of_another_version_are_passed_over():
    assert compare_fingerprints(make() | {"new": "1"}, make() | {"newer": "1"}) == ([], [])
    assert compare_fingerprints(make(), {}) == ([], [])


def test_text_of_the_refusal():
    refusals, _ = compare_fingerprints(make(nproc=4), make(nproc=8))
    error = mismatch_error("bert-7", WHERE, refusals)
    assert isinstance(error, RendezvousError)
    assert str(error) == (
        "run 'bert-7' on redis at host:6379 was begun with --nproc-per-node 8, this node has 4. "
        "Try: the same command line on every node, or --allow-mismatch nproc"
    )


def test_text_with_two_differences():
    refusals, _ = compare_fingerprints(make(nproc=8), make(entrypoint="eval.py"))
    assert str(mismatch_error("r", WHERE, refusals)) == (
        "run 'r' on redis at host:6379 was begun with the entry point eval.py and --nproc-per-node 4, "
        "this node has train.py and 8. "
        "Try: the same command line on every node, or --allow-mismatch entrypoint,nproc"
    )


def test_text_names_the_options_that_are_compared():
    refusals, _ = compare_fingerprints(make(rdzv_conf=CONF | {"lease_ttl": "10"}), make())
    text = str(mismatch_error("r", WHERE, refusals))
    assert "with --rdzv-conf lease_ttl=5,last_call_timeout=30, this node has lease_ttl=10,last_call_timeout=30." in text


def test_text_for_torch_and_for_the_format():
    refusals, _ = compare_fingerprints(make(torch="2.12"), make())
    assert "was begun with torch 2.13, this node has 2.12. Try: the same command line on every node with the same " in (
        text := str(mismatch_error("r", WHERE, refusals))
    )
    assert text.endswith("torch, or --allow-mismatch torch")
    refusals, _ = compare_fingerprints(make(format="2"), make())
    assert str(mismatch_error("r", WHERE, refusals)).endswith(
        "was begun with wire format 1, this node has 2. Try: the same launcher and elastic-core on every node"
    )


def test_allow_mismatch():
    assert parse_allow_mismatch(["nproc,role", " torch ", ""]) == {"nproc", "role", "torch"}
    assert parse_allow_mismatch([]) == frozenset()
    assert parse_allow_mismatch(ALLOWABLE) == ALLOWABLE


@pytest.mark.parametrize(("key", "hint"), [("nprocs", "nproc"), ("node", "nnodes"), ("pyton", "python")])
def test_allow_mismatch_names_the_nearest(key, hint):
    with pytest.raises(ConfigError) as caught:
        parse_allow_mismatch([f"role,{key}"])
    assert str(caught.value) == (
        f"--allow-mismatch: {key!r}; expected one of arguments, backend_options, entrypoint, nnodes, nproc, policy, "
        f"python, role, torch. Try: --allow-mismatch {hint}"
    )


def test_a_format_can_not_be_allowed():
    with pytest.raises(ConfigError, match="'format'; expected one of"):
        parse_allow_mismatch(["format"])


# --- names


@pytest.mark.parametrize(
    ("host", "address", "node_id"),
    [
        ("gpu-017", "10.0.0.17", "gpu-017@10.0.0.17"),
        ("gpu-017", "2001:db8::17", "gpu-017@2001:db8::17"),
        ("gpu-017", "127.0.0.1", "gpu-017"),
        ("gpu-017", "::1", "gpu-017"),
        ("gpu-017", "", "gpu-017"),
        ("gpu-017", "127.0.0.2", "gpu-017@127.0.0.2"),
        ("10.0.0.17", "10.0.0.17", "10.0.0.17"),
        ("a b/c,d\n", "10.0.0.1", "a_b_c_d@10.0.0.1"),
        ("", "10.0.0.1", "node@10.0.0.1"),
    ],
)
def test_node_id(host, address, node_id):
    assert default_node_id(host, address) == node_id


@pytest.mark.parametrize(
    ("environ", "attempt"),
    [
        ({}, RunAttempt()),
        ({"SLURM_JOB_ID": "4711"}, RunAttempt(number=0, job="slurm 4711", given=True)),
        ({"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "2"}, RunAttempt(number=2, job="slurm 4711", given=True)),
        ({"SLURM_RESTART_COUNT": " "}, RunAttempt()),
        ({"SLURM_RESTART_COUNT": "two", "JOBSET_RESTART_ATTEMPT": "3"}, RunAttempt(number=3)),
        ({"ELASTIC_JOB_ID": "u-1", "JOBSET_RESTART_ATTEMPT": "0"}, RunAttempt(job="job u-1", given=True)),
        (
            {"ELASTIC_JOB_ID": "u-1"},
            RunAttempt(job="job u-1"),
        ),  # a plain Job: its pods can't tell which try they are of
        ({"AWS_BATCH_JOB_ATTEMPT": "1", "AWS_BATCH_JOB_ID": "b#3"}, RunAttempt(number=1, job="batch b", given=True)),
    ],
)
def test_attempt(environ, attempt):
    assert attempt_from_environment(environ) == attempt
