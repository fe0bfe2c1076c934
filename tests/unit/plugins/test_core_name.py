"""The core published under another name: what hints tell users to install."""

import pytest

from elastic_core.errors import PluginError
from elastic_core.plugins import discovery
from elastic_core.plugins.discovery import FAILURE_GROUP, RENDEZVOUS_GROUP, PluginEntry, core_name, is_built_in
from elastic_core.plugins.missing import not_installed
from elastic_core.plugins.registry import PluginRegistry


def entry(name, value, distribution, group=RENDEZVOUS_GROUP):
    return PluginEntry(group=group, name=name, value=value, distribution=distribution, version="1.0")


STRANGERS = entry("env", "elastic_core_env:Backend", "elastic-core-env")
LOCAL = entry("local", "elastic_core.rendezvous.local:LocalRendezvous", "acme-elastic")


def test_the_core_is_known_by_what_its_entry_points_lead_to():
    assert not is_built_in(STRANGERS)
    assert is_built_in(LOCAL)
    assert core_name([STRANGERS, LOCAL]) == "acme-elastic"
    assert core_name([STRANGERS]) == core_name([]) == "elastic-core"
    assert core_name(discovery.find_entries()) == "elastic-core"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("static", "Try: pip install -r sets/torchrun.txt, in a checkout of acme-elastic"),
        ("statik", "Try: 'static', after pip install -r sets/torchrun.txt, in a checkout of acme-elastic"),
        ("c10d", "Try: pip install -r sets/torchrun.txt, in a checkout of acme-elastic"),
        ("redis", "Try: pip install -r sets/redis.txt, in a checkout of acme-elastic"),
        ("etcd", "Try: pip install -r sets/etcd.txt, in a checkout of acme-elastic"),
    ],
)
def test_hints_name_the_tree_of_what_is_installed(name, hint):
    assert str(not_installed(RENDEZVOUS_GROUP, name, [LOCAL])).endswith(hint)


def test_a_missing_policy_is_sought_in_the_core():
    policy = entry("other", "elastic_core.failure.other:Other", "acme-elastic", FAILURE_GROUP)
    assert str(not_installed(FAILURE_GROUP, "intensity", [policy])).endswith(
        "Try: pip install ., in a checkout of acme-elastic"
    )


def test_of_two_claims_to_a_name_the_cores_own_stays(monkeypatch):
    twins = [LOCAL, entry("local", "other:Backend", "stranger")]
    monkeypatch.setattr("elastic_core.plugins.registry.find_entries", lambda: twins)
    with pytest.raises(PluginError, match=r"from acme-elastic 1\.0 and stranger 1\.0\. Try: pip uninstall stranger$"):
        PluginRegistry().make_rendezvous("local", None, {})
