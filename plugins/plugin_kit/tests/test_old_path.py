"""`elastic_core.testing`, the path that the kit had in the core: it leads there, or says what to install."""

import subprocess
import sys

import pytest

import elastic_plugin_kit


def python(code):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("first", ["elastic_core.testing.conformance.kit", "elastic_plugin_kit.conformance.kit"])
def test_both_paths_lead_to_one_module(first):
    done = python(
        f"import {first}\n"
        "import elastic_core.testing.conformance.kit as old, elastic_plugin_kit.conformance.kit as new\n"
        "import elastic_core.testing, elastic_plugin_kit, sys\n"
        "assert old is new and new.__name__ == new.__spec__.name == 'elastic_plugin_kit.conformance.kit'\n"
        "assert elastic_core.testing is elastic_plugin_kit\n"
        "assert elastic_core.testing.conformance is elastic_plugin_kit.conformance\n"
        "names = {name: module for name, module in sys.modules.items() if name.startswith('elastic_core.testing.')}\n"
        "assert all(sys.modules[name.replace('elastic_core.testing', 'elastic_plugin_kit')] is module\n"
        "           for name, module in names.items()), names\n"
        "print(len(names))\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) >= 2


def test_every_name_is_the_same():
    done = python(
        "import elastic_core.testing as old, elastic_plugin_kit as new\n"
        "from elastic_core.testing import AgentHookConformance, MemoryStore, sample_failure\n"
        "assert AgentHookConformance is new.AgentHookConformance and MemoryStore is new.MemoryStore\n"
        "print(*sorted(old.__all__))\n"
    )
    assert (done.stdout.split(), done.stderr) == (sorted(elastic_plugin_kit.__all__), "")


def test_what_the_kit_does_not_have_is_not_there():
    done = python("import elastic_core.testing.simulation")
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'elastic_plugin_kit.simulation'"


def test_the_fakes_need_no_pytest():
    done = python("import sys, elastic_core.testing; print('pytest' in sys.modules)")
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize("path", ["elastic_core.testing", "elastic_core.testing.conformance"])
def test_without_the_distribution_a_line_says_what_to_install(path):
    done = python(f"import sys; sys.modules['elastic_plugin_kit'] = None; import {path}")
    needed = "elastic_core.testing comes with elastic-plugin-kit: pip install -r sets/testing.txt, in a checkout of "
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {needed}elastic-core"
    assert "The above exception" not in done.stderr
