"""What `--dry-run` shows, and what it does not."""

import os

import pytest

from elastic_core.cli.dry_run import describe
from elastic_core.errors import ConfigError
from elastic_core.launcher.secrets import masked_arguments, masked_text, masked_value, names_secret
from elastic_core.options.devices import Node
from elastic_core.options.resolve import resolve
from elastic_core.options.table import OPTIONS


@pytest.fixture
def dry(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")

    def dry(*rest, environ=None, verbose=False, **given):
        variables = {"PATH": os.environ["PATH"], "HOME": "/home/x", **(environ or {})}
        resolution = resolve(given, str(script), rest, environ=variables, node=Node(variables))
        return describe(resolution, variables, verbose=verbose)

    return dry


def line_of(text, start):
    return next(line.strip() for line in text.splitlines() if line.strip().startswith(start))


def test_every_value_has_its_origin(dry):
    for verbose in (False, True):
        text = dry(nproc_per_node="2", verbose=verbose, environ={"PET_MAX_RESTARTS": "3"})
        assert line_of(text, "nproc_per_node").split(maxsplit=2)[1:] == ["2", "flag --nproc-per-node"]
        assert line_of(text, "max_restarts").split(maxsplit=2)[1:] == ["3", "env PET_MAX_RESTARTS"]
        assert "derived: one node needs no rendezvous" in line_of(text, "rdzv_backend")
        assert "OMP_NUM_THREADS is unset" in text
    assert line_of(text, "role").split(maxsplit=2)[1:] == ["default", "default"]


def configuration_of(text):
    return [line.split()[0] for line in text.partition("\n\n")[0].splitlines()[1:]]


def test_what_differs_from_the_defaults_is_shown_alone_unless_all_is_wanted(dry):
    given = {"nproc_per_node": "1", "no_worker_hooks": True, "plugin": ("no:recorder",)}
    shown = dry(**given)
    names = ["script", "rdzv_id", "rdzv_backend", "nproc_per_node", "no_worker_hooks", "plugin"]
    *rows, others = configuration_of(shown)
    assert rows == names
    assert line_of(shown, "no_worker_hooks").split()[1] == "yes"
    assert line_of(shown, "plugin").split()[1] == "no:recorder"
    every = configuration_of(dry(verbose=True, **given))
    known = {option.name for option in OPTIONS}
    assert f"{others} other options have their defaults: --dry-run -v shows them" in shown
    assert len([name for name in every if name in known]) == len(rows) - 1 + int(others)


def test_the_names_are_those_of_options(dry):
    text = dry(nnodes="2:4", rdzv_backend="redis", rdzv_id="x", shutdown_timeout="5", verbose=True)
    names = configuration_of(text)
    assert sorted(names) == sorted(set(names))
    assert set(names) - {option.name for option in OPTIONS} == {"script", "job", "device_variable"}
    assert line_of(text, "nnodes").split(maxsplit=2)[1:] == ["2:4", "flag --nnodes"]
    assert line_of(text, "shutdown_timeout").split(maxsplit=2)[1:] == ["5", "flag --shutdown-timeout"]


def test_each_worker_has_its_command_environment_and_streams(dry):
    text = dry("--out", "logs-${local_rank}", nproc_per_node="2", redirects="1:1", tee="0:2", local_ranks_filter="0")
    first, second = text.split("\n\nWorker ")[1:]
    assert "train.py --out logs-0" in line_of(first, "command")
    assert "train.py --out logs-1" in line_of(second, "command")
    assert line_of(first, "stdout") == "stdout   console"
    assert line_of(first, "stderr").endswith("attempt_0/0/stderr.log and console, lines with '[default0]:'")
    assert line_of(second, "stdout").endswith("attempt_0/1/stdout.log")
    assert line_of(second, "stderr") == "stderr   nowhere"
    assert line_of(second, "RANK=") == "RANK=1"
    assert line_of(second, "MASTER_PORT=") == "MASTER_PORT=<chosen at start>"
    assert "HOME" not in text  # inherited unchanged: counted, not listed


def test_filters_and_rotation_are_shown(dry):
    text = dry(tee="1", redirects="2", duplicate_stdout_filters="loss,lr", log_max_size="1M", log_backups="3")
    out, err = line_of(text, "stdout "), line_of(text, "stderr ")
    assert "attempt_0/0/stdout.log (a new one after 1048576 bytes, 3 kept) and " in out
    assert out.endswith(
        "attempt_0/filtered_stdout.log, lines containing 'loss' or 'lr' and console, lines with '[default0]:'"
    )
    assert err.endswith("attempt_0/0/stderr.log (a new one after 1048576 bytes, 3 kept)")


def test_a_class_that_says_where_logs_go_is_not_asked(dry):
    assert line_of(dry(logs_specs="mine"), "stdout ") == "stdout   where --logs-specs mine says"
    assert line_of(dry(logs_specs="default"), "stdout ") == "stdout   console"


def test_a_node_of_several_shows_its_ranks(dry):
    text = dry(nnodes="2", node_rank="1", nproc_per_node="2", master_addr="m")
    assert "Worker 1 (global rank 3 if all 2 nodes come)" in text
    assert line_of(text, "MASTER_ADDR=") == "MASTER_ADDR=m"
    assert line_of(text, "MASTER_PORT=") == "MASTER_PORT=29500"


def test_a_run_with_a_store_shows_its_options(dry):
    text = dry(
        nnodes="2:4",
        rdzv_backend="redis",
        rdzv_id="x",
        spares="1",
        allow_mismatch=("nproc,role",),
        join_timeout="90",
        environ={"SLURM_RESTART_COUNT": "2"},
        verbose=True,
    )
    assert line_of(text, "spares").split(maxsplit=2)[1:] == ["1", "flag --spares"]
    assert line_of(text, "rdzv_attempt").split(maxsplit=2)[1:] == ["2", "derived: the scheduler's count"]
    assert line_of(text, "allow_mismatch").split(maxsplit=2)[1:] == ["nproc,role", "flag --allow-mismatch"]
    assert line_of(text, "rdzv_conf").split()[1] == "join_timeout=90"
    assert line_of(text, "store_outage_grace").split()[1:] == ["120", "default"]
    assert line_of(text, "on_store_loss").split()[1:] == ["keep", "default"]
    assert line_of(text, "max_membership_changes").split()[1:] == ["-", "default"]


def test_nothing_is_made(dry, tmp_path):
    dry(log_dir=str(tmp_path / "logs"), run_dir=str(tmp_path / "run"), redirects="3")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


def test_secrets_are_not_shown(dry):
    text = dry(
        "--api-key",
        "hunter1",
        "--wandb-token=hunter2",
        "url=redis://me:hunter3@host/0",
        nnodes="2",
        rdzv_backend="theirs",
        rdzv_id="x",
        rdzv_endpoint="redis://me:hunter4@host:6379",
        rdzv_conf="password=hunter5,lease_ttl=5",
        policy="theirs",
        policy_conf=("auth_token=hunter6",),
        environ={"MY_SECRET": "hunter7"},
    )
    assert "hunter" not in text
    assert "lease_ttl=5" in text
    assert "redis://me:***@host:6379" in text


def test_options_of_plugins_are_checked_as_in_a_run(dry):
    several = {"nnodes": "2", "rdzv_id": "x", "rdzv_backend": "redis", "rdzv_endpoint": "host"}
    assert line_of(dry(rdzv_conf="lease_ttl=5s", **several), "rdzv_conf").split()[1] == "lease_ttl=5s"
    with pytest.raises(ConfigError, match="--rdzv-conf lease_ttl: 'soon'; expected seconds"):
        dry(rdzv_conf="lease_ttl=soon", **several)
    with pytest.raises(ConfigError, match="policy 'intensity' takes no --policy-conf options, but 'pause' was given"):
        dry(policy_conf=("pause=1",))


def test_a_plugin_that_is_not_installed_here_is_told_beside_the_rest(dry):
    text = dry(policy="theirs", policy_conf=("pause=1",))
    assert "policy 'theirs' is not installed" in text.partition("Notices")[2]
    assert line_of(text, "policy_conf").split()[1] == "pause=1"


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "--api-key", "password", "db.passwd"])
def test_names_of_secrets(name):
    assert names_secret(name)
    assert masked_value(name, "x") == "***"


@pytest.mark.parametrize("name", ["PWD", "--max-tokens", "--tokenizer", "KEYBOARD", "--key-dim", "", "PATH"])
def test_names_that_only_look_like_it(name):
    assert not names_secret(name)
    assert masked_value(name, "x") == "x"


def test_masking_leaves_the_rest():
    assert masked_arguments(["--token", "--lr", "1", "--key", "k", "v"]) == [
        "--token",
        "--lr",
        "1",
        "--key",
        "***",
        "v",
    ]
    assert masked_text("http://host/path user@host") == "http://host/path user@host"
    assert masked_text("redis://:hun/ter@2@h:1/0 and rediss://a:hunter2@h") == "redis://:***@h:1/0 and rediss://a:***@h"
