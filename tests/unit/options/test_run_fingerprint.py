"""What a node's command line comes to when nodes compare."""

import sys

import pytest

from elastic_core.errors import ConfigError
from elastic_core.options.entrypoint import make_entrypoint
from elastic_core.options.run_fingerprint import run_fingerprint, torch_version
from elastic_core.options.settings import Entrypoint, RunSettings
from elastic_core.rendezvous.member.documents import STORE_FORMAT
from elastic_core.types import PolicySettings, RendezvousSettings

OURS = f"{sys.version_info.major}.{sys.version_info.minor}"


def of(entrypoint, policy="intensity", policy_conf=None, rdzv_conf=None, **nodes):
    settings = RunSettings(
        entrypoint=entrypoint,
        nodes=RendezvousSettings(run_id="r", **nodes),
        rdzv_conf=rdzv_conf or {},
        restarts=PolicySettings(name=policy),
        policy_conf=policy_conf or {},
    )
    return run_fingerprint(settings)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_every_key_is_what_the_run_was_started_with(script):
    entrypoint = make_entrypoint(script, ["--lr", "0.1"], environ={})
    made = of(entrypoint, min_nodes=2, max_nodes=4, local_world_size=8, role="trainer", rdzv_conf={"lease_ttl": "2"})
    assert made.pop("arguments").startswith("2 (digest ")
    assert made == {
        "nnodes": "2:4",
        "entrypoint": "train.py",
        "nproc": "8",
        "role": "trainer",
        "backend_options": "lease_ttl=2",
        "agent": "elastic",
        "format": str(STORE_FORMAT),
        "torch": torch_version(),
        "python": OURS,
        "policy": "intensity",
    }


def test_of_a_rule_file_the_content_counts_and_not_where_it_lies(script, tmp_path):
    entrypoint = make_entrypoint(script, [], environ={})

    def policy(name, text, **conf):
        (tmp_path / name).write_text(text)
        return of(entrypoint, policy="rules", policy_conf={"file": str(tmp_path / name), **conf})["policy"]

    assert policy("a.yaml", "rules: []") == policy("b.yaml", "rules: []")
    assert policy("a.yaml", "rules: []").startswith("rules (")
    assert policy("a.yaml", "rules: []") != policy("a.yaml", "rules: {}")
    assert of(entrypoint, policy="mine", policy_conf={"a": "1"}) != of(
        entrypoint, policy="mine", policy_conf={"a": "2"}
    )
    assert of(entrypoint, policy="rules", policy_conf={"file": "/no/such"})["policy"].startswith("rules (")


def test_a_default_that_was_typed_is_no_difference(script):
    entrypoint = make_entrypoint(script, [], environ={})
    assert of(entrypoint) == of(entrypoint, rdzv_conf={"lease_ttl": "5s", "join_timeout": "9"})
    assert of(entrypoint) != of(entrypoint, rdzv_conf={"last_call_timeout": "5"})
    with pytest.raises(ConfigError, match="lease_ttl: 'soon'; expected seconds, more than 0, or a time"):
        of(entrypoint, rdzv_conf={"lease_ttl": "soon"})


def test_only_the_arguments_count_as_such(script, tmp_path):
    elsewhere = tmp_path / "checkout" / "train.py"
    elsewhere.parent.mkdir()
    elsewhere.write_text("")
    one, two = (make_entrypoint(str(path), ["-x"], environ={}) for path in (script, elsewhere))
    assert of(one) == of(two)
    assert of(make_entrypoint(script, [], environ={}))["arguments"] == "none"
    module = make_entrypoint("json.tool", ["-x"], module=True, environ={})
    assert of(module)["entrypoint"] == "-m json.tool"
    assert of(module)["arguments"] == of(one)["arguments"]


def test_of_a_program_neither_python_nor_torch_is_known():
    made = of(make_entrypoint("/bin/echo", ["x"], no_python=True, environ={}))
    assert made["entrypoint"] == "echo"
    assert made["torch"] == ""
    assert "python" not in made


def test_another_interpreter_is_read_off_its_folders(script, tmp_path):
    site = tmp_path / "venv/lib/python3.12/site-packages"
    (site / "torch-2.14.1+cu130.dist-info").mkdir(parents=True)
    python = str(tmp_path / "venv/bin/python")
    made = of(Entrypoint(argv=(python, "-u", script), name=script, script=script))
    assert (made["torch"], made["python"]) == ("2.14.1", "3.12")
    bare = of(Entrypoint(argv=("python3", "-u", script), name=script, script=script))
    assert bare["torch"] == ""
    assert "python" not in bare


def test_torch_from_metadata(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b" / "torch-2.13.0+cpu.dist-info").mkdir(parents=True)
    (tmp_path / "b" / "torchvision-0.28.0.dist-info").mkdir()
    (tmp_path / "b" / "torch_geometric-9.9.9.dist-info").mkdir()
    (tmp_path / "c" / "torch-1.0.0.dist-info").mkdir(parents=True)
    paths = [str(tmp_path / name) for name in ("missing", "a", "b", "c")]
    assert torch_version(paths) == "2.13.0"
    assert torch_version(paths[:2]) == ""


def test_torch_from_its_sources(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(
        "from typing import x\n__version__ = '2.14.0a0+git1234567'\ncuda = None\n"
    )
    assert torch_version([str(tmp_path)]) == "2.14.0a0"


def test_torch_half_installed(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text("")
    assert torch_version([str(tmp_path)]) == ""
