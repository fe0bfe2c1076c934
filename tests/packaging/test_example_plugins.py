"""Wheels into a fresh environment: the core, the static backend, the example plugins and the README's, found and run.

The environment borrows third-party packages from the one that runs the tests: nothing is downloaded.
"""

import json
import re
import tomllib

import pytest

from ports import free_port
from support import wait_for
from wheel_kit import EXAMPLES, OURS, ROOT, Environment, build, finish, version, write_script

pytestmark = [pytest.mark.xdist_group("packaging"), pytest.mark.timeout(600)]  # pip takes its time beside other work
README = (ROOT / "README.md").read_text()


def readme_plugin(folder):
    """Write the plugin that the README shows, as a reader would."""
    for name, text in re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL):
        (folder / name).write_text(text)
    assert sorted(path.name for path in folder.iterdir()) == ["oom_policy.py", "pyproject.toml"]
    return folder


@pytest.fixture(scope="module")
def wheels(tmp_path_factory, dist, example_dist):
    folder = tmp_path_factory.mktemp("wheels")
    build([readme_plugin(tmp_path_factory.mktemp("readme"))], folder)
    return sorted([*dist.glob("*.whl"), *example_dist.glob("*.whl"), *folder.glob("*.whl")], key=lambda path: path.name)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory, wheels):
    environment = Environment(tmp_path_factory.mktemp("fresh") / "venv")
    environment.install("--no-deps", *wheels)
    return environment


def described(project):
    """Return what a project's pyproject.toml says of it."""
    return tomllib.loads((project / "pyproject.toml").read_text())["project"]


def test_each_project_becomes_one_wheel_and_our_own_are_tied_to_the_core(wheels, fresh):
    names = {described(project)["name"].replace("-", "_") for project in (*OURS, *EXAMPLES)} | {"oom_policy"}
    assert [wheel.name.split("-")[0] for wheel in wheels] == sorted(names)
    (core,) = fresh.site.glob("elastic_core-*.dist-info/METADATA")
    for project in OURS[1:]:
        name = described(project)["name"]
        (metadata,) = fresh.site.glob(f"{name.replace('-', '_')}-*.dist-info/METADATA")
        assert f"Version: {version()}\n" in metadata.read_text()
        assert f"Requires-Dist: elastic-core=={version()}\n" in metadata.read_text()
    lines = [line for line in core.read_text().splitlines() if line.startswith("Requires-Dist:")]
    required = {re.split(r"[^\w-]", line.split()[1])[0] for line in lines if "extra ==" not in line}
    assert required == {"click", "msgspec", "pluggy"}


@pytest.mark.parametrize("project", EXAMPLES, ids=lambda project: project.name)
def test_an_example_requires_a_range_of_the_core_with_this_one_in_it(project):
    (core,) = [line for line in described(project)["dependencies"] if line.startswith("elastic-core")]
    major, minor = map(int, version().split(".")[:2])
    assert core == f"elastic-core>={major}.{minor},<{major}.{minor + 1}"


def test_the_command_runs_from_the_wheel_and_lists_all_plugins(fresh, tmp_path):
    code, out, err = fresh.run("plugins", "-v", cwd=tmp_path)
    assert (code, err) == (0, "")
    ours = [line for line in out.splitlines()[1:] if not line.endswith("hosted: written for torchrun")]
    lines = {tuple(line.split()[:1] + line.split()[-3:]) for line in ours}
    expected = {("stop-on-oom", "oom-policy", "1.0", "loaded")}
    for project in (*OURS, *EXAMPLES):
        said = described(project)
        names = [
            name
            for group, points in said.get("entry-points", {}).items()
            if group.startswith("elastic_core.") and group != "elastic_core.torch"  # parts of the launcher, no plugins
            for name in points
        ]
        expected |= {(name.split()[0], said["name"], said.get("version", version()), "loaded") for name in names}
    assert lines == expected


def test_the_code_comes_from_the_wheel_and_brings_the_worker_hooks(fresh, tmp_path):
    script = write_script(tmp_path, "import elastic_core\nprint(elastic_core.__file__)\nraise ValueError('boom')\n")
    code, out, err = fresh.run("run", script, cwd=tmp_path)
    assert code == 1
    assert out.strip() == str(fresh.site / "elastic_core/__init__.py")
    (incident,) = tmp_path.glob("runtime/*/*/incident.json")
    exception = json.loads(incident.read_text())["first"]["error"]
    assert (exception["type"], exception["message"], exception["source"]) == ("ValueError", "boom", "hook")
    assert "ValueError: boom" in err


def test_the_hook_writes_into_the_run_directory(fresh, tmp_path):
    script = write_script(tmp_path, "pass\n")
    code, _, err = fresh.run("run", "--nproc-per-node", 2, "--run-dir", tmp_path / "kept", script, cwd=tmp_path)
    assert code == 0, err
    moments = [json.loads(line) for line in (tmp_path / "kept/moments.jsonl").read_text().splitlines()]
    names = [moment["moment"] for moment in moments]
    assert names[0] == "AgentStarted"
    assert names[-1] == "AgentStopped"
    assert names.count("WorkerEnded") == 2
    assert moments[-1]["exit_code"] == 0


def test_a_hook_is_off_when_told(fresh, tmp_path):
    script = write_script(tmp_path, "pass\n")
    code, _, err = fresh.run("run", "-p", "no:jsonl", "--run-dir", tmp_path / "kept", script, cwd=tmp_path)
    assert code == 0, err
    assert not (tmp_path / "kept/moments.jsonl").exists()


@pytest.mark.parametrize(("error", "starts"), [("ValueError", 1), ("KeyError", 3)])
def test_the_policy_decides(fresh, tmp_path, error, starts):
    script = write_script(tmp_path, f"print('start', flush=True)\nraise {error}('x')\n")
    options = ["--max-restarts", 2, "--policy", "never", "--policy-conf", "exceptions=ValueError:TypeError"]
    code, out, err = fresh.run("run", *options, script, cwd=tmp_path)
    assert code == 1, err
    assert out.count("start") == starts
    assert ("ValueError is never retried" in " ".join(err.split())) == (error == "ValueError")


def test_the_policy_of_the_readme_works(fresh, tmp_path):
    script = write_script(
        tmp_path,
        """
import os
print("start", flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise KeyError("x")
class OutOfMemoryError(RuntimeError):
    __module__ = "torch"
raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
""",
    )
    code, out, err = fresh.run("run", "--policy", "stop-on-oom", "--max-restarts", 3, script, cwd=tmp_path)
    assert code == 1, err
    assert out.count("start") == 2
    assert "the batch is too large for the memory of the device" in " ".join(err.split())


def test_an_option_that_the_policy_does_not_declare_is_refused_before_anything_starts(fresh, tmp_path):
    script = write_script(tmp_path, "print('start', flush=True)\n")
    code, out, err = fresh.run("run", "--policy", "never", "--policy-conf", "exception=A", script, cwd=tmp_path)
    assert (code, out) == (2, "")
    assert "has no option 'exception'" in err
    assert "Try: --policy-conf exceptions=" in err


MEET = """
import os
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
         "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"]
os.write(1, (" ".join(os.environ[name] for name in names) + os.linesep).encode())  # whole, beside another worker's
"""


@pytest.mark.parametrize("backend", ["static", "env"])
def test_two_agents_form_one_world_without_a_server(fresh, tmp_path, backend):
    script = write_script(tmp_path, MEET)
    port = free_port()
    agents = []
    for node in (0, 1):
        folder = tmp_path / f"node{node}"
        folder.mkdir()
        common = ["run", "--nnodes", 2, "--nproc-per-node", 2, "--rdzv-backend", backend]
        if backend == "static":
            agent = fresh.elastic(
                *common, "--rdzv-endpoint", f"127.0.0.1:{port}", "--node-rank", node, script, cwd=folder
            )
        else:
            place = {"NODE_RANK": str(node), "NNODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            agent = fresh.elastic(*common, "--rdzv-id", "two", script, cwd=folder, **place)
        agents.append(agent)
    results = [finish(agent) for agent in agents]
    assert [code for code, _, _ in results] == [0, 0], results
    lines = sorted(line.split() for _, out, _ in results for line in out.splitlines())
    assert lines == [
        [str(rank), "4", str(rank % 2), str(rank // 2), "2", "127.0.0.1", str(port), "False", "0"] for rank in range(4)
    ]


def test_a_static_node_restarts_alone(fresh, tmp_path):
    """Node 1 fails once and restarts; node 0, which is told nothing, keeps its worker."""
    script = write_script(
        tmp_path,
        """
import os, pathlib, sys, threading
name = os.environ["GROUP_RANK"] + "." + os.environ["TORCHELASTIC_RESTART_COUNT"]
shared = pathlib.Path(sys.argv[1])
(shared / name).write_text(os.environ["RANK"])
if name == "1.0":
    sys.exit(3)
while not (shared / "1.1").exists():
    threading.Event().wait(0.02)
""",
    )
    agents = []
    port = free_port()
    for node in (0, 1):
        folder = tmp_path / f"node{node}"
        folder.mkdir()
        place = ["--nnodes", 2, "--node-rank", node, "--master-addr", "127.0.0.1", "--master-port", port]
        agents.append(
            fresh.elastic("run", *place, "--rdzv-backend", "static", "--max-restarts", 1, script, tmp_path, cwd=folder)
        )
    wait_for(lambda: (tmp_path / "1.1").exists(), within_s=30)
    results = [finish(agent) for agent in agents]
    assert [code for code, _, _ in results] == [0, 0], results
    assert sorted(path.name for path in tmp_path.glob("?.?")) == ["0.0", "1.0", "1.1"]
