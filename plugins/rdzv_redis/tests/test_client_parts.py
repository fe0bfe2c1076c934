"""The parts of redis-py that the store imports, and what other code in the process gets."""

import subprocess
import sys

import pytest

STORE = """
import sys
from elastic_core.types import RendezvousSettings
from elastic_rdzv_redis.store import RedisStore
settings = RendezvousSettings(
    backend="redis", run_id="r", endpoint="127.0.0.1:1", min_nodes=1, max_nodes=2, local_world_size=1
)
store = RedisStore(settings)
store._session
store.close()
loaded = {name for name in sys.modules if name.startswith("redis")}
"""


def outputs(code, *path):
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {[str(each) for each in path]}\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()


def test_a_store_imports_neither_clients_nor_commands_nor_clusters():
    loaded = set(outputs(STORE + "print(*loaded)"))
    assert {"redis", "redis.connection", "redis.exceptions"} <= loaded
    assert not loaded & {"redis.asyncio", "redis.client", "redis.cluster", "redis.commands", "redis.sentinel"}


@pytest.mark.parametrize("use", ["redis.Redis", "redis.asyncio.Redis", "redis.cluster.RedisCluster"])
def test_other_code_gets_the_whole_package_later(use):
    code = f"import redis; cls = {use}; print(cls.__name__, redis.ConnectionError is redis.exceptions.ConnectionError)"
    assert outputs(f"{STORE}{code}") == [use.rpartition(".")[2], "True"]
    assert outputs(f"{STORE}import redis\ntry: redis.nothing\nexcept AttributeError: print('none')") == ["none"]


def test_a_package_that_is_imported_already_stays():
    assert outputs(f"import redis; before = redis\n{STORE}import redis; print(redis is before)") == ["True"]


def test_a_version_whose_parts_need_the_package_is_imported_as_usual(tmp_path):
    package = tmp_path / "redis"
    package.mkdir()
    (package / "__init__.py").write_text("from redis.connection import value\n")
    for name in ("exceptions", "retry"):
        (package / f"{name}.py").touch()
    (package / "connection.py").write_text("from redis import late\nvalue = 1\n")
    code = "from elastic_rdzv_redis.client_parts import import_parts\nimport_parts()\n"
    code += "print(*(name for name in sys.modules if name.startswith('redis')), 'left')"
    assert outputs(code, tmp_path) == ["left"]
