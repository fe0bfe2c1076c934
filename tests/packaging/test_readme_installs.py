"""The README's installations, each in an environment of its own that has nothing of ours."""

import re
from pathlib import Path

import pytest

from wheel_kit import ROOT, Environment, checked, write_script

pytestmark = [pytest.mark.timeout(600)]

README = (ROOT / "README.md").read_text()
IMPORTS = {
    ".": "elastic_core",
    "sets/torchrun.txt": "elastic_torchrun, elastic_rdzv_redis, elastic_rdzv_static",
    "sets/train.txt": "elastic_train",
    "sets/testing.txt": "elastic_plugin_kit",
}
"""What each installation is for, as modules."""


@pytest.mark.parametrize("what", IMPORTS)
def test_a_set_of_the_readme_installs_what_it_is_for(tmp_path, monkeypatch, what):
    command = "pip install " + ("" if what == "." else "-r ") + what
    assert re.search(rf"(?m)^{re.escape(command)}(?:  .*)?$|`{re.escape(command)}`", README)
    monkeypatch.chdir(ROOT)
    environment = Environment(tmp_path / "venv")
    environment.install("--no-build-isolation", *command.split()[2:])
    checked([environment.bin / "python", "-c", f"import {IMPORTS[what]}"], cwd=tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    code, out, err = environment.run("run", write_script(folder, "print('trained')\n"), cwd=folder)
    assert (code, out) == (0, "trained\n"), err


def test_the_torch_of_the_readme_is_the_one_of_the_makefile():
    (torch,) = re.findall(r"^TORCH \?= (\S+)$", Path(ROOT / "Makefile").read_text(), re.MULTILINE)
    assert f"\npip install {torch}  " in README
