"""`--policy` names a policy, or a rule file in its place."""

import pytest

from elastic_core.errors import ConfigError
from elastic_core.options.choices import Choices
from elastic_core.options.restart_options import is_file, policy_choice, policy_settings
from elastic_core.options.table import BY_DEST
from elastic_core.types import PolicySettings


def choice(policy, *conf):
    return policy_choice(Choices({"policy": policy, "policy_conf": conf}, {}, BY_DEST))


@pytest.mark.parametrize("name", ["rules.yaml", "a.YML", "./rules", "/etc/elastic/policy", "p.toml", "p.json"])
def test_a_path_is_a_rule_file(name):
    assert is_file(name)
    assert choice(name) == ("rules", {"file": name})
    assert choice(name, f"file={name}") == ("rules", {"file": name})


@pytest.mark.parametrize("name", ["intensity", "rules", "exit-codes", "yaml"])
def test_anything_else_is_a_name(name):
    assert choice(name, "a=b") == (name, {"a": "b"})


def test_a_path_with_a_comma_stays_whole():
    assert choice("./a,b=c.yaml") == ("rules", {"file": "./a,b=c.yaml"})


def test_two_files_are_refused():
    with pytest.raises(
        ConfigError, match=r"--policy 'a.yaml' and --policy-conf file='b.yaml' name two rule files; expected one"
    ):
        choice("a.yaml", "file=b.yaml")


def test_variables_choose_too():
    choices = Choices({}, {"PET_MAX_RESTARTS": "4", "PET_NNODES": "2:3"}, BY_DEST)
    assert policy_settings(choices) == PolicySettings(
        name="intensity", max_restarts=4, restart_window_s=None, restart_backoff_s=0.5, min_nodes=2, max_nodes=3
    )
