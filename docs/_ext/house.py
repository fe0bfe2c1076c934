"""Where is what: the rooms of the core and the distributions beside it, drawn from the tree."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from page_parts import table

from elastic_core.plugins.missing import install_hint

ROOT: Final = Path(__file__).resolve().parents[2]
CORE: Final = ROOT / "src" / "elastic_core"
USERS: Final = {
    "elastic-core": "every installation: `elastic run` on one node, restarts, logs, the first failure, `elastic runs`",
    "elastic-rdzv-redis": "runs of several nodes with Redis or Valkey, or with `c10d`, which needs no server",
    "elastic-rdzv-etcd": "runs of several nodes with etcd",
    "elastic-rdzv-static": "runs of a fixed set of nodes without a server",
    "elastic-env-slurm": "Slurm: `srun elastic run train.py` starts a run on all nodes of a job; "
    "requeueing of preempted jobs, `elastic slurm submit`",
    "elastic-torchrun": "programs that import `torch.distributed.elastic`; `torchrun` with our backends; "
    "`--run-path`, torch's timers and health checks",
    "elastic-ops": "operators: `elastic status`, `incidents`, `ctl`, `stop`, `drain`, `logs`, "
    "the control plane, metrics, events",
    "elastic-doctor": "`elastic doctor`, which checks whether a node, or all nodes of a run, can run a training",
    "elastic-env-kubernetes": "pods of Jobs and JobSets, with `elastic run train.py` as their command; "
    "`elastic k8s`, which writes and applies manifests, and shows the pods",
    "elastic-watch": "scripts that send heartbeats; `--hang-timeout`, which detects hanging workers "
    "and keeps their stacks; `elastic ctl RUN stacks`",
    "elastic-standby": "`--standby`: restarts without the time of the import of torch",
    "elastic-numa": "`--numa-binding`",
    "elastic-policy-rules": "restart policies as rule files, and their trial before a run (`elastic policy`)",
    "elastic-train": "training scripts that save and resume: planned stops at the same step on all ranks, "
    "the process group, checkpoints, samplers",
    "elastic-plugin-kit": "authors of plugins",
    "elastic-backend-net": "authors of backends with a server: endpoints, connections, TLS, "
    "servers hosted by an agent; required by the backends above",
}
"""Each of our distributions: the purpose for which it is installed."""


def rooms() -> str:
    """Return a table of the core's folders, and what each is."""
    folders = (CORE, *sorted(path.parent for path in CORE.rglob("*/__init__.py")))
    rows = ((f"`{folder.relative_to(ROOT)}`", _first_line(folder / "__init__.py")) for folder in folders)
    return table(("room", "what"), rows)


def distributions() -> str:
    """Return a table of our distributions: what each is, and what it registers."""
    rows = []
    for path in [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]:
        project = tomllib.loads(path.read_text())["project"]
        offers = [f"{group}: {', '.join(names)}" for group, names in project.get("entry-points", {}).items()]
        folder = path.parent.relative_to(ROOT)
        rows.append((project["name"], f"`{folder}`", project["description"], "; ".join(offers)))
    return table(("distribution", "folder", "what", "registers"), rows)


def users() -> str:
    """Return a table of our distributions: the purpose of each, and the command that installs it from a checkout."""
    rows = (
        (f"`{name}`", user, f"`{install_hint(name).partition(', in a checkout')[0]}`") for name, user in USERS.items()
    )
    return table(("distribution", "purpose", "in a checkout"), rows)


def imports_by_string() -> Iterator[tuple[str, str, str]]:
    """Yield file, target and reason of each import by string in our sources: what no contract of imports sees.

    The reason is the comment on its line or on the line before; empty where a module of ours is named without one.
    """
    for path in sorted([*CORE.rglob("*.py"), *ROOT.glob("plugins/*/src/**/*.py")]):
        text = path.read_text()
        rows = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or ast.unparse(node.func).split(".")[-1] != "import_module":
                continue
            row, before = rows[node.lineno - 1], rows[node.lineno - 2].strip()
            reason = row.partition("  # ")[2] or (before.removeprefix("# ") if before.startswith("# ") else "")
            yield str(path.relative_to(ROOT)), ast.unparse(node.args[0]), reason or _usual_reason(node.args[0])


def _usual_reason(target: ast.expr) -> str:
    if not isinstance(target, ast.Constant):
        return "named by an entry point, a table or an argument"
    return "" if str(target.value).startswith("elastic_") else "heavy, or optional: imported where it is used"


def string_imports() -> str:
    """Return the imports by string as a table."""
    rows = ((f"`{file}`", f"`{target}`", reason) for file, target, reason in imports_by_string())
    return table(("file", "what", "why"), rows)


def _first_line(path: Path) -> str:
    doc = ast.get_docstring(ast.parse(path.read_text())) or ""
    return doc.split("\n", 1)[0]
