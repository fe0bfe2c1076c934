"""The kit for backends under stock torchrun, on Redis; and that it names what is broken."""

import pytest

from elastic_plugin_kit import TorchrunConformance
from redis_servers import redis_server

__all__ = ["redis_server"]


class TestRedisUnderTorchrun(TorchrunConformance):
    backend = "redis"
    conf = {"last_call_timeout": "0.2"}  # noqa: RUF012  # as an author writes it

    @pytest.fixture
    def endpoint(self, redis_server):
        return f"127.0.0.1:{redis_server.port}"


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """Install a handler that is what the test says, and return a kit for it."""

    def make(source):
        (tmp_path / "acme_torch.py").write_text(source)
        (info := tmp_path / "acme_torch-1.0.dist-info").mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-torch\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[torchrun.handlers]\nacme = acme_torch:handler\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return type("Acme", (TorchrunConformance,), {"backend": "acme"})()

    return make


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import elastic_core.api\ndef handler():\n    return print\n", "loading the entry point imports elastic_core"),
        ("def handler():\n    return 7\n", "'acme' did not return a function"),
        ("import no_such_client\n", "can't be loaded: ModuleNotFoundError: No module named 'no_such_client'"),
    ],
)
def test_an_entry_point_that_is_broken_is_named(broken, source, said):
    with pytest.raises(AssertionError, match=said):
        broken(source).test_a_start_of_torchrun_imports_nothing_heavy()


TWINS = """
def handler():
    return make

def make(params):
    from torch.distributed.elastic.rendezvous import RendezvousHandler

    class Store(dict):
        set = dict.__setitem__

        def get(self, key):
            return key[-1].encode()

    class Twins(RendezvousHandler):
        get_backend = lambda self: "acme"
        get_run_id = lambda self: params.run_id
        is_closed = lambda self: True
        num_nodes_waiting = lambda self: 0
        next_rendezvous = lambda self: (Store(), 0, 2)
        set_closed = lambda self: None
        shutdown = lambda self: True

    return Twins()
"""


def test_two_nodes_of_one_rank_are_named(broken):
    with pytest.raises(AssertionError, match="two nodes got other ranks than 0 and 1"):
        broken(TWINS).test_two_nodes_meet_share_a_store_and_learn_that_the_run_is_closed("nowhere")
