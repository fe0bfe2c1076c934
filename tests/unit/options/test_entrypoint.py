"""What each worker executes, and what is refused before anything starts."""

import os
import sys
from pathlib import Path

import pytest

from elastic_core.errors import ConfigError
from elastic_core.options.entrypoint import make_entrypoint

PATH = {"PATH": os.environ["PATH"]}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(script, **options):
    with pytest.raises(ConfigError) as raised:
        make_entrypoint(script, (), environ=options.pop("environ", PATH), **options)
    assert "\n" not in str(raised.value)
    return str(raised.value)


# --- scripts ---


def test_a_script_runs_unbuffered_with_its_arguments_untouched(here):
    (here / "train.py").write_text("")
    entrypoint = make_entrypoint("train.py", ("--", "-m", "${local_rank}"), environ=PATH)
    assert entrypoint.argv == (sys.executable, "-u", "train.py", "--", "-m", "${local_rank}")
    assert (entrypoint.script, entrypoint.module, entrypoint.python) == ("train.py", None, True)


def test_another_interpreter_by_variable(here):
    (here / "train.py").write_text("")
    assert make_entrypoint("train.py", (), environ={**PATH, "PYTHON_EXEC": "/bin/sh"}).argv[0] == "/bin/sh"
    assert make_entrypoint("train.py", (), environ={**PATH, "PYTHON_EXEC": "sh"}).argv[0] == "sh"
    text = refusal("train.py", environ={**PATH, "PYTHON_EXEC": "/no/python"})
    assert text.startswith("PYTHON_EXEC: '/no/python'; expected an executable file. Try: unset it")


def test_a_missing_script_names_the_nearest_file(here):
    (here / "train.py").write_text("")
    assert refusal("trian.py") == f"script 'trian.py' not found in '{here}'. Try: train.py"
    assert refusal("sub/train.py").startswith(
        f"script 'sub/train.py' not found in '{here}': there is no directory 'sub'"
    )
    assert "-m package.train if it is a module" in refusal("package.train")
    assert refusal("/nowhere/x.py").startswith("script '/nowhere/x.py' not found: there is no directory '/nowhere'")


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("train.sh", b"echo", "script 'train.sh' is a shell script, not Python. Try: --no-python ./train.sh"),
        ("prog", b"\x7fELF\x02", "script 'prog' is a program, not Python. Try: --no-python ./prog"),
        ("a.ipynb", b"{}", "script 'a.ipynb' is a notebook, not Python. Try: jupyter nbconvert --to script a.ipynb"),
        ("a.yaml", b"", "script 'a.yaml' is a file of settings, not Python. Try: train.py a.yaml"),
    ],
)
def test_a_file_that_is_no_python_is_refused_with_what_was_meant(here, name, content, told):
    Path(name).write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        make_entrypoint(name, ["train.py"], environ={})
    assert str(raised.value) == told


@pytest.mark.parametrize("name", ["python", "python3.11", "/nowhere/bin/python3"])
def test_an_interpreter_in_front_of_the_script_is_one_too_many(here, name):
    with pytest.raises(ConfigError, match=rf"Try: train.py, without {name!r}"):
        make_entrypoint(name, ["train.py", "--lr", "1"], environ={})


def test_directories_need_a_main(here):
    (here / "code").mkdir()
    (here / "code" / "train.py").write_text("")
    assert refusal("code") == "script 'code' is a directory without __main__.py. Try: code/train.py"
    (here / "code" / "__main__.py").write_text("")
    assert make_entrypoint("code", (), environ=PATH).script == "code"


def test_broken_links_and_unreadable_scripts_are_named(here, monkeypatch):
    (here / "link.py").symlink_to("gone.py")
    assert refusal("link.py").startswith("script 'link.py' is a link to 'gone.py', which does not exist")
    (here / "locked.py").write_text("")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert refusal("locked.py") == "script 'locked.py' can't be read by this user. Try: chmod u+r locked.py"


def test_standard_input_is_no_script():
    assert "can't share standard input" in refusal("-")


def test_an_empty_word_is_no_script():
    assert refusal("") == "SCRIPT: ''; expected the path of a script. Try: elastic run train.py"


def test_a_name_that_is_too_long_is_one_line():
    assert "File name too long" in refusal("x" * 5000 + ".py")


def test_the_macro_is_checked_for_rank_0(here):
    (here / "train_0.py").write_text("")
    assert make_entrypoint("train_${local_rank}.py", (), environ=PATH).argv[-1] == "train_${local_rank}.py"
    assert "train_00.py" in refusal("train_0${local_rank}.py")


# --- programs ---


def test_programs_run_as_they_are(here):
    program = here / "tool"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    entrypoint = make_entrypoint("./tool", ("-x",), no_python=True, environ=PATH)
    assert (entrypoint.argv, entrypoint.python, entrypoint.script) == (("./tool", "-x"), False, None)
    assert make_entrypoint("sh", (), no_python=True, environ=PATH).argv == ("sh",)
    assert refusal("tool", no_python=True) == "program 'tool' not found on PATH. Try: ./tool"
    assert refusal("./tol", no_python=True).endswith("Try: ./tool")
    program.chmod(0o644)
    assert refusal("./tool", no_python=True).startswith("program './tool' is not executable. Try: chmod u+x ./tool")
    (here / "folder").mkdir()
    assert refusal("./folder", no_python=True).startswith("program './folder' is a directory")


def test_module_and_program_exclude_each_other():
    assert refusal("x", module=True, no_python=True).startswith(
        "--module and --no-python are both given; expected one of both"
    )


# --- modules ---


@pytest.fixture
def package(here):
    """`pack.sub.leaf`, whose packages can't be imported, and a namespace package `space`."""
    folder = here / "pack" / "sub"
    folder.mkdir(parents=True)
    for init in (here / "pack" / "__init__.py", folder / "__init__.py"):
        init.write_text("raise RuntimeError('imported')\n")
    (folder / "leaf.py").write_text("")
    (here / "space" / "inner").mkdir(parents=True)
    (here / "space" / "inner" / "tool.py").write_text("")


@pytest.mark.parametrize("name", ["pack.sub.leaf", "space.inner.tool", "json.tool", "timeit", "pip"])
def test_modules_are_found_without_importing_their_packages(package, name):
    before = set(sys.modules)
    entrypoint = make_entrypoint(name, ("a",), module=True, environ=PATH)
    assert entrypoint.argv == (sys.executable, "-u", "-m", name, "a")
    assert (entrypoint.module, entrypoint.script) == (name, None)
    assert not {"pack", "pack.sub", "pip"} & (set(sys.modules) - before)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pakc.sub", "module 'pakc.sub' not found by "),
        ("train.py", "module 'train.py' looks like a file. Try: no -m, or -m train"),
        ("code/train.py", "module 'code/train.py' looks like a file. Try: no -m, or -m code.train"),
        ("a-b", "module 'a-b'; expected a module name"),
        ("nowhere_at_all", "module 'nowhere_at_all' not found by "),
    ],
)
def test_missing_modules_are_named(package, name, text):
    assert refusal(name, module=True).startswith(text)


def test_the_nearest_module_of_this_directory_is_named(package):
    assert refusal("pakc.sub", module=True).endswith(". Try: -m pack")


@pytest.mark.parametrize("name", ["pack.sub.laef", "pack.other.leaf", "pack.sub.leaf.deep", "pack.sub"])
def test_what_is_in_a_package_is_left_to_the_interpreter(package, name):
    assert make_entrypoint(name, (), module=True, environ=PATH).module == name


def test_modules_of_another_interpreter_are_its_own_matter():
    environ = {**PATH, "PYTHON_EXEC": "/bin/sh"}
    assert make_entrypoint("nowhere_at_all", (), module=True, environ=environ).argv[0] == "/bin/sh"
