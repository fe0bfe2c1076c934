"""Who may import whom: the contracts of pyproject.toml, and what plugins and the kit may see of the core."""

import ast
import tomllib
from pathlib import Path

from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[3]

OUTSIDERS = sorted(
    path.relative_to(ROOT)
    for pattern in ("plugins/*/src", "examples/plugins/*/src")
    for folder in ROOT.glob(pattern)
    for path in folder.rglob("*.py")
)


CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
EXCEPTIONS = {
    tuple(arrow.split(" -> "))
    for contract in CONTRACTS
    if contract["id"] == "plugins-use-the-api"
    for arrow in contract.get("ignore_imports", ())
}
"""Who imports what else of the core: each stands in the contract, for all to count."""


def imported_by(path):
    """Yield the absolute names of the modules that a file imports, at any depth of it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from (
                f"elastic_core.{alias.name}" if node.module == "elastic_core" else node.module for alias in node.names
            )


def test_imports_point_down_only(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("logging.config.dictConfig", lambda _: None)  # it would switch off the loggers of other tests
    assert lint_imports(no_cache=True) == 0, capsys.readouterr().out


def test_plugins_and_the_kit_import_the_api_only():
    assert {str(path): found for path in OUTSIDERS if (found := imported_beside_the_api(path))} == {}


def imported_beside_the_api(path):
    """Return what a plugin's file imports of the core that it should not."""
    module = ".".join(path.with_suffix("").parts[path.parts.index("src") + 1 :])
    excused = {target for source, target in EXCEPTIONS if source == module}
    if "elastic_torchrun" in path.parts:
        return set()  # embeds an agent: the contract "torchrun-embeds" lists what it imports beside the API
    of_workers = {"elastic_core.worker"} if "elastic_train" in path.parts else set()  # a script imports both
    ours = {name for name in imported_by(ROOT / path) if name.split(".")[0] == "elastic_core"}
    of_the_api = {name for name in ours if name.split(".")[:2] == ["elastic_core", "api"]}
    return ours - excused - of_the_api - of_workers


def test_the_plugins_are_found():
    """A pattern that matches nothing would let everything pass."""
    packages = {path.parts[path.parts.index("src") + 1] for path in OUTSIDERS}
    assert packages == {
        "elastic_backend_net",
        "elastic_doctor",
        "elastic_env_kubernetes",
        "elastic_env_slurm",
        "elastic_numa",
        "elastic_ops",
        "elastic_plugin_kit",
        "elastic_policy_rules",
        "elastic_rdzv_etcd",
        "elastic_rdzv_redis",
        "elastic_rdzv_static",
        "elastic_report",
        "elastic_standby",
        "elastic_torchrun",
        "elastic_train",
        "elastic_warm",
        "elastic_watch",
        "elastic_example_rendezvous_env",
        "elastic_example_rendezvous_file",
        "elastic_example_policy_never",
        "elastic_example_policy_exit_codes",
        "elastic_example_hook_jsonl",
        "elastic_example_hook_textfile",
        "elastic_example_environment_hostfile",
    }


def test_every_distribution_runs_without_the_kit():
    (contract,) = (contract for contract in CONTRACTS if contract["id"] == "kit-is-for-tests")
    packages = {path.parent.name for path in ROOT.glob("plugins/*/src/*/__init__.py")}
    assert set(contract["source_modules"]) == packages - {"elastic_plugin_kit"}
