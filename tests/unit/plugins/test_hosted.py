"""Which handlers that were written for torch serve as backends."""

import pytest

from elastic_core.plugins import hosted
from elastic_core.plugins.discovery import RENDEZVOUS_GROUP, TORCH_GROUP, PluginEntry


def entry(name, *, group=RENDEZVOUS_GROUP, distribution="acme"):
    return PluginEntry(group=group, name=name, value="acme:make", distribution=distribution, version="1.0")


@pytest.fixture
def found(monkeypatch):
    """Return the names that serve of those in torch's group, where one distribution has these backends of ours."""

    def find(ours, *handlers):
        theirs = [entry(name, group=TORCH_GROUP) for name in handlers]
        monkeypatch.setattr(hosted, "find_entries", lambda group: theirs)
        return [(one.group, one.name) for one in hosted.find_hosted([entry(name) for name in ours])]

    return find


def test_a_handler_serves_beside_a_backend_of_the_same_distribution(found):
    assert found(["acme"], "acme-torch") == [(RENDEZVOUS_GROUP, "acme-torch")]


def test_a_backend_of_ours_keeps_its_name(found):
    assert found(["acme"], "acme", "other") == [(RENDEZVOUS_GROUP, "other")]


@pytest.mark.parametrize("name", ["c10d", "static", "etcd", "etcd-v2", "redis", "etcd-v3"])
def test_names_that_are_ours_wherever_they_are_installed_are_never_taken(found, name):
    assert found([], name) == []


def test_what_is_no_backend_takes_no_name(found):
    beside = entry("acme", group="elastic_core.hooks")
    assert found([], "acme") == [(RENDEZVOUS_GROUP, "acme")]
    assert [one.name for one in hosted.find_hosted([beside])] == ["acme"]
