"""The interpreter that tests fork workers from: torch is imported in each child from its first line."""

import subprocess
import sys

from patience import patience
from torch_server import IMPORTS, torch_python  # noqa: F401


def run(python, code):
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, timeout=patience(60))


def test_a_child_has_the_modules_of_the_server_before_its_first_line(torch_python):  # noqa: F811
    code = f"import sys; print([name for name in {IMPORTS!r} if name not in sys.modules])"
    done = run(torch_python, code)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert run(sys.executable, code).stdout == f"{[*IMPORTS]!r}\n", "an interpreter has none of them"


def test_a_child_computes_with_torch_and_its_exit_code_is_the_programs(torch_python):  # noqa: F811
    done = run(torch_python, "import sys, torch; print(torch.ones(2).sum().item()); sys.exit(7)")
    assert (done.returncode, done.stdout) == (7, "2.0\n"), done.stderr
