"""A run with built-ins alone loads nothing that it does not use."""

import subprocess
import sys

SCRIPT = """
import sys
from elastic_core.plugins.registry import PluginRegistry
from elastic_core.types import HookSettings, PolicySettings, RendezvousSettings
registry = PluginRegistry()
settings = RendezvousSettings(backend="local", run_id="r", endpoint="", min_nodes=1, max_nodes=1, local_world_size=1)
registry.make_rendezvous("local", settings, {})
registry.make_policy("intensity", PolicySettings(name="intensity"), {})
registry.make_hooks(HookSettings(name=""))
print(*sorted(sys.modules))
"""


def test_built_ins_load_without_importlib_metadata_or_anything_heavy():
    output = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    loaded = set(output.split())
    assert "elastic_core.rendezvous.local" in loaded
    for module in (
        "torch",
        "numpy",
        "asyncio",
        "importlib.metadata",
        "email",
        "difflib",
        "random",
        "subprocess",
        "redis",
    ):
        assert module not in loaded
    for module in ("elastic_core.rendezvous.shell.coordinated", "elastic_rdzv_redis", "elastic_rdzv_static", "redis"):
        assert module not in loaded
