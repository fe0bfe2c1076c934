"""A run with built-ins alone loads nothing that it does not use."""

import subprocess
import sys

import import_times

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
    for module in ("elastic_core.rendezvous.shell.member_rounds", "elastic_rdzv_redis", "elastic_rdzv_static", "redis"):
        assert module not in loaded


ALWAYS_ON = ("agent-store", "control", "ledger", "planned-stops", "recorder", "training", "warm", "watch")
"""Those of the distributions beside the core that are on in every run: each brings what it needs of the core."""


def test_a_local_run_loads_about_a_hundred_modules_of_the_core():
    off = [word for name in ALWAYS_ON for word in ("-p", f"no:{name}")]
    command = import_times.command("elastic_core", "run", *off, "--no-python", "true")
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {name for name in import_times.imported(run.stderr) if name.startswith("elastic_")}
    assert "elastic_core.launcher.job" in loaded
    assert not {name for name in loaded if not name.startswith("elastic_core")}
    assert len(loaded) <= 107, "a file is an idea; what a local run never needs is imported where it is needed"
    for module in ("failure.incident", "hooks.launches", "plugins.listing", "processes.output.tee"):
        assert f"elastic_core.{module}" not in loaded
