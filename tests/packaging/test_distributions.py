"""Sdists and wheels of all our distributions: what is in them, what pip makes of them, one version, one name."""

import json
import re
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from elastic_torchrun.names import NAMES, is_package
from wheel_kit import (
    EXAMPLES,
    OURS,
    ROOT,
    Environment,
    build,
    checked,
    contents,
    metadata_of,
    tree_copy,
    version,
    wheel_of,
    write_script,
)

pytestmark = [pytest.mark.xdist_group("packaging"), pytest.mark.timeout(600)]  # pip takes its time beside other work

RECOVERS = """
import os
os.write(1, f"start {os.environ['RANK']}\\n".encode())
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise ValueError("boom")
"""


def named(projects):
    return {"argvalues": projects, "ids": [str(path.relative_to(ROOT)) for path in projects]}


@pytest.mark.parametrize("project", **named([*OURS, *EXAMPLES]))
def test_the_wheel_from_the_sdist_is_the_one_from_the_tree(project, dist, example_dist, tmp_path):
    checked([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=project)
    from_sdist = wheel_of(project, dist if project in OURS else example_dist)
    assert from_sdist.name == wheel_of(project, tmp_path).name
    assert contents(from_sdist) == contents(tmp_path / from_sdist.name)


@pytest.mark.parametrize("project", **named(OURS))
def test_wheel_and_sdist_hold_all_sources_and_the_licence(project, dist):
    wheel = wheel_of(project, dist)
    sources = {
        str(path.relative_to(project / "src"))
        for path in (project / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    stubs = compat_stubs() if project.name == "torchrun" else set()
    files = contents(wheel)
    package = wheel.name.split("-")[0]
    info = f"{package}-{version()}.dist-info"
    has_points = "\n[project.entry-points." in (project / "pyproject.toml").read_text()
    entry_points = {f"{info}/entry_points.txt"} if has_points else set()
    assert set(files) == sources | stubs | entry_points | {
        f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "licenses/LICENSE")
    }
    assert f"{package}/py.typed" in files
    assert files[f"{info}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    lines = metadata_of(wheel)
    assert {"License-Expression: BSD-3-Clause", "Requires-Python: >=3.11", "Classifier: Typing :: Typed"} <= set(lines)
    assert "Description-Content-Type: text/markdown" in lines
    assert any(re.fullmatch(r"Summary: \w.+", line) for line in lines)
    with tarfile.open(dist / f"{package}-{version()}.tar.gz") as archive:
        members = {name.partition("/")[2] for name in archive.getnames()}
    packed = set() if project == ROOT else {str(path.relative_to(project)) for path in project.glob("tests/*.py")}
    hook = "scripts/hatch_build.py" if project == ROOT else "hatch_build.py"
    assert {"LICENSE", "README.md", "PKG-INFO", "pyproject.toml", hook, *packed} <= members
    assert {f"src/{name}" for name in sources} <= members


def compat_stubs():
    """The stub package that is made from the table of torch's names."""
    paths = {f"{name.replace('.', '/')}{'/__init__' if is_package(name) else ''}.pyi" for name in NAMES}
    return {
        f"elastic_core-stubs/{path}" for path in ("py.typed", *(f"compat/{each}" for each in ("__init__.pyi", *paths)))
    }


def test_python_versions_that_are_tested_are_declared(dist):
    for project in OURS:
        declared = re.findall(
            r"^Classifier: Programming Language :: Python :: (3\.\d+)$", *metadata_text(project, dist)
        )
        assert declared == ["3.11", "3.12", "3.13"], project


def metadata_text(project, dist):
    return "\n".join(metadata_of(wheel_of(project, dist))), re.MULTILINE


# --- installed by name


TORCHRUN = ("backend_net", "numa", "ops", "rdzv_redis", "rdzv_static", "torchrun", "watch")
"""What sets/torchrun.txt has beside the core."""


def test_the_torchrun_set_as_wheels_runs_a_local_job(dist, tmp_path):
    fresh = Environment(tmp_path / "venv")
    fresh.install(*wheels_of(TORCHRUN, dist))
    installed = sorted(path.name for path in fresh.site.glob("elastic_*.dist-info"))
    assert installed == sorted(f"elastic_{name}-{version()}.dist-info" for name in ("core", *TORCHRUN))
    assert "elastic" not in fresh.pip("check").stdout
    code, out, err = fresh.run("plugins", "--json", cwd=tmp_path)
    assert (code, err) == (0, "")
    found = {(plugin["name"], plugin["distribution"]): plugin for plugin in json.loads(out)}
    for name, plugin in (("static", "static"), ("redis", "redis"), ("c10d", "redis")):
        row = found[name, f"elastic-rdzv-{plugin}"]
        assert (row["version"], row["status"]) == (version(), "loaded")
    script = write_script(tmp_path, RECOVERS)
    code, out, err = fresh.run("run", "--nproc-per-node", 2, "--max-restarts", 1, script, cwd=tmp_path)
    assert code == 0, err
    assert sorted(set(out.splitlines())) == ["start 0", "start 1"]


def wheels_of(names, dist):
    """Return the wheels of the core and of some plugins."""
    return [wheel_of(ROOT, dist), *(wheel_of(ROOT / "plugins" / name, dist) for name in names)]


def test_every_extra_of_the_core_can_be_met(dist, tmp_path):
    extras = [line.split()[1] for line in metadata_of(wheel_of(ROOT, dist)) if line.startswith("Provides-Extra:")]
    assert {"dev", "docs", "prometheus"} == set(extras)
    fresh = Environment(tmp_path / "venv")
    out = fresh.install("--dry-run", f"{wheel_of(ROOT, dist)}[{','.join(extras)}]")
    (line,) = [line for line in out.splitlines() if line.startswith("Would install")]
    assert line.split()[2:] == [f"elastic-core-{version()}"]


# --- without torch


def test_nothing_requires_torch(dist):
    for project in OURS:
        required = [line for line in metadata_of(wheel_of(project, dist)) if line.startswith("Requires-Dist:")]
        assert [line for line in required if re.match(r"Requires-Dist: torch\b", line)] == [], project


@pytest.fixture(scope="module")
def without_torch(dist, tmp_path_factory):
    """Make an environment with all distributions, and no torch."""
    fresh = Environment(tmp_path_factory.mktemp("torchless") / "venv", without=("torch", "functorch", "torchgen"))
    fresh.install(*(wheel_of(project, dist) for project in OURS))
    return fresh


def test_a_script_without_torch_runs_without_it(without_torch, tmp_path):
    script = write_script(tmp_path, RECOVERS)
    code, out, err = without_torch.run("run", "--nproc-per-node", 2, "--max-restarts", 1, script, cwd=tmp_path)
    assert code == 0, err
    assert sorted(set(out.splitlines())) == ["start 0", "start 1"]


@pytest.mark.parametrize(
    "command", [["plugins"], ["runs"], ["status"], ["incidents"], ["k8s", "--help"], ["run", "--dry-run", "x.py"]]
)
def test_a_login_node_needs_no_torch(without_torch, tmp_path, command):
    (tmp_path / "x.py").touch()
    code, out, err = without_torch.run(*command, cwd=tmp_path)
    assert (code, err) == (0, "")
    assert out


def test_doctor_reports_that_there_is_none(without_torch, tmp_path):
    code, out, _ = without_torch.run("doctor", cwd=tmp_path)
    assert code == 0
    assert re.search(r"warn +torch +.*not installed", out), out


@pytest.mark.parametrize(
    ("text", "object_"),
    [
        ("from elastic_train import init_process_group; init_process_group()", "init_process_group"),
        ("import elastic_core; elastic_core.init_process_group()", "elastic_core.init_process_group"),
        ("from elastic_train import Checkpointer; Checkpointer('x').load()", "Checkpointer.load"),
        ("from elastic_train import ElasticSampler; next(iter(ElasticSampler(8)))", "ElasticSampler"),
        (
            "from elastic_core.compat.elastic.utils.data import ElasticDistributedSampler",
            "ElasticDistributedSampler",
        ),
    ],
)
def test_the_first_use_of_torch_is_one_line(without_torch, tmp_path, text, object_):
    script = write_script(tmp_path, f"{text}\n")
    code, _, err = without_torch.run("run", script, cwd=tmp_path)
    assert code == 1
    pattern = (
        rf"Error: {re.escape(object_)}: no torch is installed for \S+; expected torch 2\.13 to 2\.15\. Try: pip install"
    )
    assert re.search(pattern, " ".join(err.split())), err


@pytest.fixture
def strange_index(tmp_path):
    """Make an index where `elastic-core` is another project's empty version 0, as on the public one."""
    page = tmp_path / "index" / "elastic-core"
    page.mkdir(parents=True)
    wheel = page / "elastic_core-0-py3-none-any.whl"
    info = "elastic_core-0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: elastic-core\nVersion: 0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    (page / "index.html").write_text(f'<!DOCTYPE html><a href="{wheel.name}">{wheel.name}</a>\n')
    return page.parent.as_uri()


def test_a_strangers_project_of_our_name_is_not_taken(dist, strange_index, tmp_path):
    fresh = Environment(tmp_path / "venv")

    def would_install(*args):
        done = fresh.pip("install", "--isolated", "--dry-run", "--index-url", strange_index, *args)
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("Would install")] or [""]
        return line.split()[2:], done.stderr

    assert would_install("elastic-core")[0] == ["elastic-core-0"]  # else the rest would show nothing
    chosen, _ = would_install(*wheels_of(TORCHRUN, dist))
    assert chosen == sorted(f"elastic-{name.replace('_', '-')}-{version()}" for name in ("core", *TORCHRUN))
    chosen, error = would_install(wheel_of(ROOT / "plugins/numa", dist))
    assert chosen == []
    assert f"elastic-core=={version()}" in error


# --- one place for the version, one for the name


def test_make_wheels_gives_all_distributions_the_version_of_one_file(tmp_path):
    tree = tree_copy(tmp_path / "tree")
    (tree / "Makefile").write_text((ROOT / "Makefile").read_text())
    (tree / "src/elastic_core/_version.py").write_text('"""Another."""\n\n__version__ = "7.8.9"\n')
    (tree / "dist").mkdir()
    (tree / "dist/elastic_core-7.8.8-py3-none-any.whl").touch()
    environment = tree / "build/wheels-venv"
    environment.mkdir(parents=True)
    for name in ("bin", "lib", "pyvenv.cfg"):
        (environment / name).symlink_to(Path(sys.prefix, name))
    (environment / ".for-wheels").touch()  # or make would make one with hatchling of an index
    checked(["make", "--no-print-directory", "wheels"], cwd=tree)
    built = {path.name for path in (tree / "dist").iterdir()}
    names = [wheel_of(project, tree / "dist").name.split("-")[0] for project in OURS]
    assert built == {f"{name}-7.8.9{end}" for name in names for end in (".tar.gz", "-py3-none-any.whl")}
    for project in OURS:
        lines = metadata_of(wheel_of(project, tree / "dist"))
        assert "Version: 7.8.9" in lines
        among_us = [line for line in lines if re.match("Requires-Dist: elastic-", line)]
        assert bool(among_us) == (project != ROOT), project
        assert [line for line in among_us if "==7.8.9" not in line] == []


def test_the_core_can_be_published_under_another_name(tmp_path):
    tree = tree_copy(tmp_path / "tree")
    place = tree / "pyproject.toml"
    old = place.read_text()
    assert old.count('\nname = "elastic-core"\n') == 1
    place.write_text(old.replace('\nname = "elastic-core"\n', '\nname = "acme-elastic"\n'))
    build([tree / project.relative_to(ROOT) for project in OURS], tmp_path / "dist")
    required = [line for line in metadata_of(wheel_of(tree / "plugins/numa", tmp_path / "dist")) if "Dist" in line]
    assert required == [f"Requires-Dist: acme-elastic=={version()}"]
    fresh = Environment(tmp_path / "venv")
    plugins = [wheel_of(tree / "plugins" / name, tmp_path / "dist") for name in TORCHRUN]
    fresh.install(wheel_of(tree, tmp_path / "dist"), *plugins)
    assert sorted(path.name.split("-")[0] for path in fresh.site.glob("*elastic*.dist-info")) == sorted(
        ["acme_elastic", *(f"elastic_{name}" for name in TORCHRUN)]
    )
    code, out, err = fresh.run("plugins", cwd=tmp_path)
    assert (code, err) == (0, "")
    assert re.search(rf"^acme-elastic {re.escape(version())}\b", out, flags=re.MULTILINE), out
    script = write_script(tmp_path, RECOVERS)
    code, out, err = fresh.run("run", "--max-restarts", 1, script, cwd=tmp_path)
    assert (code, out) == (0, "start 0\nstart 0\n"), err
    checked([sys.executable, "-m", "pip", "--python", fresh.bin / "python", "uninstall", "-y", "elastic-rdzv-static"])
    several = ["--nnodes", 2, "--node-rank", 0, "--rdzv-backend", "static", "--rdzv-endpoint", "127.0.0.1:1"]
    code, _, err = fresh.run("run", *several, script, cwd=tmp_path)
    assert code == 3
    assert "Try: pip install -r sets/torchrun.txt, in a checkout of acme-elastic" in " ".join(err.split())


def test_a_plugin_of_another_version_than_the_core_is_refused_by_pip(dist, tmp_path):
    tree = tree_copy(tmp_path / "tree")
    (tree / "src/elastic_core/_version.py").write_text('__version__ = "7.8.9"\n')
    checked([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=tree / "plugins/numa")
    newer = tmp_path / "elastic_numa-7.8.9-py3-none-any.whl"
    fresh = Environment(tmp_path / "venv")
    done = fresh.pip("install", "--no-index", wheel_of(ROOT, dist), newer)
    assert done.returncode == 1
    assert "elastic-numa 7.8.9 depends on elastic-core==7.8.9" in done.stdout
    assert list(fresh.site.glob("elastic*")) == []
