"""`elastic plugins new`: what it writes passes its own tests, and the commands that it prints do what they should."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from elastic_core._version import __version__
from elastic_core.cli.main import COMPLETE_VARIABLE, main
from elastic_core.plugins.discovery import COMMANDS_GROUP, find_entries
from elastic_plugin_kit import scaffold
from wheel_kit import ROOT, Environment, checked, contents

pytestmark = pytest.mark.xdist_group("plugins_new")

KINDS = {"rendezvous": "elastic-rdzv-own", "failure": "acme.Rules", "hook": "pager_duty", "command": "my-count",
         "environment": "my_cluster"}  # fmt: skip
NAMES = {"rendezvous": "my-store"}
"""What is chosen by another name than the distribution's, by `--name`."""
TRIALS = {
    "command": " runs on this machine have failed",
    "environment": "My cluster: the first of MY_CLUSTER_HO",
}
"""What the last of the printed commands prints; of the others, what `platform` does."""
POINTS = {"environment": "MY_CLUSTER_JOB"}
"""The name of the entry point, where it is not the plugin's."""
LONG = "acme-cluster-scheduler-{kind}"


def plain_environment(**more):
    dropped = ("PET_", "ELASTIC_", "TORCHELASTIC_", "PYTEST", "PYTHON", "PIP_", "OMP_")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)} | more


class Author:
    """Somebody with an environment of their own, core and kit as their developers have them, and no package index."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = Environment(folder / "venv")
        for name in ("elastic_core", "elastic_plugin_kit"):
            (info,) = Path(sysconfig.get_path("purelib")).glob(f"{name}-*.dist-info")
            (self.environment.site / info.name).symlink_to(info)
        (self.environment.site / "ours.pth").write_text(f"{ROOT / 'src'}\n{ROOT / 'plugins/plugin_kit/src'}\n")
        for name, module in (("pip", "pip"), ("pytest", "pytest"), ("elastic", "elastic_core")):
            script = self.environment.bin / name
            script.write_text(f'#!/bin/sh\nexec "{self.environment.bin}/python" -m {module} "$@"\n')
            script.chmod(0o755)
        self.printed = {}

    def types(self, *lines, background=False):
        """Type lines into a shell in the author's folder; return what they printed, or the running shell."""
        home = self.folder / "home"
        home.mkdir(mode=0o700, exist_ok=True)
        env = plain_environment(
            PATH=f"{self.environment.bin}{os.pathsep}{os.environ['PATH']}",
            HOME=str(home),
            XDG_RUNTIME_DIR=str(home),
            TMPDIR=str(home),
            PIP_NO_INDEX="1",
            PIP_NO_BUILD_ISOLATION="0",  # pip's spelling of no isolation: nothing is downloaded
        )
        command = ["bash", "-e", "-c", "\n".join(lines)]
        if background:
            return subprocess.Popen(
                command, cwd=self.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        return checked(command, cwd=self.folder, env=env)


@pytest.fixture(scope="module")
def author(tmp_path_factory):
    """Somebody who has begun a plugin of each kind."""
    somebody = Author(tmp_path_factory.mktemp("author"))
    for kind, name in KINDS.items():
        named = f" --name {NAMES[kind]}" if kind in NAMES else ""
        somebody.printed[kind] = somebody.types(f"elastic plugins new {name} --kind {kind}{named}")
    return somebody


def folder_of(author, kind):
    return author.folder / re.sub(r"[._]", "-", KINDS[kind]).lower()


@pytest.mark.parametrize("kind", KINDS)
def test_the_commands_that_are_printed_install_test_and_use_it(author, kind):
    printed = author.printed[kind]
    files = [line.strip() for line in printed.partition("\nnext:\n")[0].splitlines()[1:]]
    assert sorted(files) == sorted(
        str(path.relative_to(author.folder)) for path in folder_of(author, kind).rglob("*") if path.is_file()
    )
    commands = [line[2:] for line in printed.partition("\nnext:\n")[2].splitlines() if line.startswith("  ")]
    words = [[word for word in command.split() if "=" not in word] for command in commands]
    assert [first for first, *_ in words] == ["cd", "pip", "pytest", "elastic"]
    out = author.types(*commands)
    assert re.search(r"^=+ \d+ passed", out, re.M), out
    assert not re.search(r"^=.*\b(failed|error)", out, re.M), out
    assert TRIALS.get(kind, "Linux") in out
    listed = author.types("elastic plugins -v")
    distribution = folder_of(author, kind).name
    plugin = POINTS.get(kind) or NAMES.get(kind, distribution)
    assert re.search(rf"^{plugin} .* {distribution} +0\.1\.0 +loaded$", listed, re.M), listed


@pytest.mark.parametrize("kind", KINDS)
def test_its_wheel_has_the_types_and_one_entry_point(author, kind, tmp_path):
    folder = folder_of(author, kind)
    checked([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=folder)
    (wheel,) = tmp_path.glob("*.whl")
    files = contents(wheel)
    package = folder.name.replace("-", "_")
    assert f"{package}/py.typed" in files
    assert not [name for name in files if name.startswith("test") or name.endswith(".tmpl")]
    points = files[f"{package}-0.1.0.dist-info/entry_points.txt"].decode().split("\n")
    assert points[0].startswith("[elastic_core.")
    module = {"command": f"{package}.command", "rendezvous": f"{package}.store"}.get(kind, package)
    plugin = POINTS.get(kind) or NAMES.get(kind, folder.name)
    assert points[1].startswith(f"{plugin} = {module}:")
    torchrun = ["[torchrun.handlers]", f"{plugin} = {package}.torchrun:handler"]
    assert [line for line in points if "torchrun" in line] == (torchrun if kind == "rendezvous" else [])


def test_what_is_in_it_is_called_by_its_own_name(author):
    folder = folder_of(author, "rendezvous")
    there = [path for path in folder.rglob("*") if ".pytest_cache" not in path.parts]  # another test has run its tests
    texts = {path.name: path.read_text() for path in there if path.suffix in {".md", ".py"}}
    assert "class MyStore(CoordinationStore)" in texts["store.py"]
    assert 'NAME = "my-store"' in texts["test_elastic_rdzv_own.py"]
    assert texts["README.md"].startswith("# elastic-rdzv-own\n")
    assert "--rdzv-backend my-store" in texts["README.md"]


def test_torchrun_finds_the_handler_of_a_backend(author):
    """As torch asks: the entry point's function gives the one that is handed the parameters."""
    out = author.types(
        "pip install -q elastic-rdzv-own/",
        """python -c '
import sys
from importlib.metadata import entry_points
(entry,) = entry_points(group="torchrun.handlers", name="my-store")
make = entry.load()()
print("core loaded:", "elastic_core" in sys.modules)
try:
    make(object())
except Exception as err:
    print(err)
'""",
    )
    assert "core loaded: False" in out
    assert "a rendezvous of ours for torchrun ('my-store') comes with elastic-torchrun" in out


def test_its_workflow_takes_the_core_from_its_tree_and_runs_the_kit(author):
    for kind in KINDS:
        text = (folder_of(author, kind) / ".github/workflows/tests.yml").read_text()
        steps = [line.partition("run: ")[2] for line in text.splitlines() if "run: " in line]
        install, *checks = steps
        assert (install, checks[-2:]) == ("pip install -r sets/testing.txt", ["mypy", "pytest"])
        assert "${{ matrix.python }}" in text
        assert (ROOT / "sets/testing.txt").exists()
        assert not [line for line in steps if "install elastic" in line]


@pytest.fixture(scope="module")
def both_lengths(tmp_path_factory):
    """Packages of each kind with a short and a long name: lines grow with it."""
    folder = tmp_path_factory.mktemp("styled")
    for kind in KINDS:
        for name in ("x1", LONG.format(kind=kind)):
            assert main(["plugins", "new", name, "--kind", kind, "--directory", str(folder / f"{kind}-{name}")]) == 0
    return sorted(folder.iterdir())


def test_its_style_is_ruffs_and_ours(both_lengths):
    for project in both_lengths:
        ruff = [sys.executable, "-m", "ruff"]
        checked([*ruff, "check", "--no-cache", "."], cwd=project)
        checked([*ruff, "format", "--no-cache", "--check", "."], cwd=project)
        ours = ["--config", ROOT / "pyproject.toml"]
        theirs = ["--config", "lint.isort.known-first-party = []"]  # the core is a stranger there
        checked([*ruff, "check", "--no-cache", *ours, *theirs, "."], cwd=project)


def test_its_types_are_strict(both_lengths, tmp_path):
    for project in both_lengths:
        assert "strict = true" in (project / "pyproject.toml").read_text()
        checked([sys.executable, "-m", "mypy", "--cache-dir", tmp_path], cwd=project, env=plain_environment())


def test_it_requires_a_range_of_the_core(author):
    major, minor = map(int, __version__.split(".")[:2])
    for kind in KINDS:
        text = (folder_of(author, kind) / "pyproject.toml").read_text()
        assert f'dependencies = ["elastic-core>={major}.{minor},<{major}.{minor + 1}"]' in text


@pytest.mark.parametrize(
    ("version", "bounds"),
    [("0.1.0", ">=0.1,<0.2"), ("0.9.3", ">=0.9,<0.10"), ("1.4.2", ">=1.4,<2"), ("0.2.0.dev3", ">=0.2.0.dev3,<0.3")],
)
def test_the_range_ends_where_interfaces_may_change(version, bounds):
    assert scaffold._bounds(version) == bounds


# --- what goes wrong is one line


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "what", "hint"),
    [
        (["a b!", "--kind", "hook"], "'a b!' can't be a distribution's name", "elastic plugins new a-b --kind hook"),
        (["-", "--kind", "hook"], "'-' can't be", "elastic plugins new my-plugin"),
        (["été", "--kind", "hook"], "'été' can't be", "elastic plugins new t"),
        (["3d", "--kind", "hook"], "'3d' can't be imported", "elastic plugins new my-3d"),
        (["class", "--kind", "hook"], "'class' can't be imported", "elastic plugins new my-class"),
        (["json", "--kind", "hook"], "there is a package 'json' already", "elastic plugins new my-json"),
        (["elastic-core", "--kind", "hook"], "there is a package 'elastic_core' already", "my-elastic-core"),
        (["intensity", "--kind", "failure"], "there is a policy 'intensity' already, of elastic-core", "my-intensity"),
        (["x", "--kind", "scheduler"], "'scheduler'; expected one of", "Try: --kind environment"),
        (["runs", "--kind", "command"], "there is a command 'runs' already", "elastic plugins new my-runs"),
        (["x"], "--kind: not given; expected a kind of plugin", "--kind rendezvous or failure or hook"),
        (["x", "--kind", ""], "--kind: not given; expected a kind of plugin", "--kind rendezvous or failure or hook"),
        (["x", "--kind", "hooks"], "'hooks'; expected one of rendezvous, failure, hook", "Try: --kind hook"),
        (["x", "--kind", "Failur"], "'Failur'; expected one of", "Try: --kind failure"),
        (["x", "--kind", "polcy"], "'polcy'; expected one of", "Try: --kind failure"),
        (["x", "--kind", "backend"], "'backend'; expected one of", "Try: --kind rendezvous"),
        (["x", "--kind", "q"], "'q'; expected one of", "Try: --kind rendezvous"),
        (
            ["redis2", "--kind", "rendezvous", "--name", "redis"],
            "'redis' already",
            "redis2 --kind rendezvous --name my-red",
        ),
        (["json", "--kind", "hook", "--name", "j"], "a package 'json'", "plugins new my-json --kind hook --name j"),
        (["x", "--kind", "hook", "--name", "3 d"], "--name '3 d' can't be", "plugins new x --kind hook --name my-3-d"),
        (["--kind", "hook"], "elastic plugins new: missing argument 'NAME'", "elastic plugins new --help"),
        (["x", "y", "--kind", "hook"], "unexpected extra argument", "elastic plugins new --help"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(here, capsys, words, what, hint):
    assert main(["plugins", "new", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("elastic: error: ")
    assert what in err
    assert hint in err
    assert not list(here.iterdir())


@pytest.mark.parametrize("occupant", ["folder", "file", "link"])
def test_nothing_is_overwritten(here, capsys, occupant):
    match occupant:
        case "folder":
            (here / "x1").mkdir()
            (here / "x1" / "thesis.txt").write_text("years of work")
        case "file":
            (here / "x1").write_text("years of work")
        case "link":
            (here / "x1").symlink_to("nowhere")
    before = sorted(here.rglob("*"))
    assert main(["plugins", "new", "x1", "--kind", "hook"]) == 2
    assert re.search(r"'x1' exists and is .*; nothing is overwritten. Try: --directory", capsys.readouterr().err)
    assert sorted(here.rglob("*")) == before


def test_an_empty_folder_may_be_filled_where_one_stands(here, capsys):
    assert main(["plugins", "new", "x1", "--kind", "hook", "--directory", "."]) == 0
    assert (here / "src/x1/hook.py").exists()
    assert "  cd" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "kind", "class_name"),
    [
        ("agent", "hook", "MyAgentHook"),  # AgentHook is the base class
        ("coordination-store", "rendezvous", "MyCoordinationStore"),
        ("x.y_z", "failure", "XYZPolicy"),
        ("k8s-policy", "failure", "K8sPolicy"),
    ],
)
def test_the_class_is_named_like_the_plugin_and_hides_no_other(here, name, kind, class_name):
    assert main(["plugins", "new", name, "--kind", kind, "--directory", "made"]) == 0
    (point,) = re.findall(r"^\S+ = \"\w+(?:\.store)?:(\w+)\"$", (here / "made/pyproject.toml").read_text(), re.M)
    assert point == class_name
    (module,) = [path for path in here.glob("made/src/*/*.py") if f"class {class_name}(" in path.read_text()]
    compile(module.read_text(), str(module), "exec")


# --- the rest of `elastic plugins` is as it was


def test_other_commands_do_not_pay_for_it():
    code = "import sys; from elastic_core.cli.main import main; main(sys.argv[1:]); print(*sys.modules)"
    for words, light in (
        (["--help"], "elastic_core.cli.plugins_command"),
        (["plugins", "-h"], "elastic_plugin_kit"),
    ):
        loaded = checked([sys.executable, "-c", code, *words]).splitlines()[-1].split()
        assert "elastic_core.cli.main" in loaded
        assert light not in loaded


@pytest.mark.parametrize("words", [["plugins", "nwe"], ["plugins", "--json", "new", "x1", "--kind", "hook"]])
def test_a_line_without_sense_is_refused(here, capsys, words):
    assert main(words) == 2
    assert capsys.readouterr().err.endswith("Try: elastic plugins --help\n")
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("elastic plugins n", {"new"}),
        ("elastic plugins new x --ki", {"--kind"}),
        ("elastic plugins new x --kind f", {"failure"}),
    ],
)
def test_a_shell_can_complete_it(monkeypatch, capsys, words, expected):
    monkeypatch.setenv(COMPLETE_VARIABLE, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0
    assert {line.partition(",")[2] for line in capsys.readouterr().out.split()} == expected


# --- without the kit


@pytest.fixture
def without_the_kit(monkeypatch):
    commands = [entry for entry in find_entries(COMMANDS_GROUP) if entry.distribution != "elastic-plugin-kit"]
    monkeypatch.setattr("elastic_core.plugins.commands.find_entries", lambda _: commands)


@pytest.mark.usefixtures("without_the_kit")
def test_without_the_kit_a_line_says_what_to_install(here, capsys):
    assert main(["plugins", "new", "x1", "--kind", "hook"]) == 3
    needed = "`elastic plugins new` comes with elastic-plugin-kit. Try: pip install -r sets/testing.txt"
    assert capsys.readouterr().err == f"elastic: error: {needed}, in a checkout of elastic-core\n"
    assert not list(here.iterdir())


@pytest.mark.usefixtures("without_the_kit")
def test_without_the_kit_the_rest_of_the_command_is_there(capsys):
    assert main(["plugins", "--help"]) == 0
    assert "Commands" not in capsys.readouterr().out
    assert main(["plugins", "nwe"]) == 2
    assert "elastic plugins has no command 'nwe'; it has check, new" in capsys.readouterr().err
