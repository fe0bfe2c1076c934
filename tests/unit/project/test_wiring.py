"""How the parts of the core get what they need: few parameters, nothing set from outside, no cycles of lambdas."""

import ast
from pathlib import Path

import pytest

CORE = Path(__file__).parents[3] / "src" / "elastic_core"
TREES = {str(path.relative_to(CORE)): ast.parse(path.read_text()) for path in sorted(CORE.rglob("*.py"))}
MOST_PARAMETERS = 9

CARRIERS = {
    "NamedHook": "a hook with the name and the distribution that users know it by",
    "StartedProcess": "a process, and how it is reaped where it is no child",
    "JoinFailed": "names the class of the error that a join ends with",
    "_Ends": "the ends of one worker's stream that the agent keeps, on their way to its tee",
    "Injected": "public: what a caller of the library has made itself",
    "RunOutcome": "public: what a caller of the library gets of a run, its error among it",
}
"""Records with a part of the run in them, each with its reason: they describe one thing, and wire nothing."""

SET_FROM_OUTSIDE = {
    "cli/run_command.py": {"ctx.params": "click reads it there"},
    "hooks/runner.py": {
        "member.abandoned": "a record of the runner's own, guarded by its lock",
        "member.feeds": "as above",
        "member.strikes": "as above",
        "member.stuck": "as above",
        "member.named.hook.run": "`AgentHook` documents it as bound by the agent",
        "task.refusal": "a record of the runner's own, guarded by its lock",
        "task.refused_by": "as above",
    },
    "launcher/job.py": {"handler.settings": "`RendezvousHandler` documents it as bound by the agent"},
    "plugin_faults.py": {"threading.excepthook": "Python's own hook"},
    "processes/errors/record_pipe.py": {"self._lane.path": "what its one lane is about at the moment, for people"},
    "processes/group.py": {
        "end.ready": "a record of the group's own",
        "worker.given_up": "as above",
        "worker.raised_s": "as above",
    },
    "processes/output/disk.py": {
        "lane.emptied": "a record of the disk's own",
        "lane.queued_bytes": "as above",
        "lane.relieved": "as above",
        "lane.scheduled": "as above",
        "lane.stalled": "as above",
        "lane.still_looks": "as above",
    },
    "processes/process.py": {"process.returncode": "subprocess would warn of a process that we reap"},
    "rendezvous/blocking.py": {
        "handler.services": "`RendezvousHandler` documents it as bound by the agent",
        "self._handler.wait": "as above",
    },
    "rendezvous/shell/driver.py": {"fault.__cause__": "of an exception"},
    "rendezvous/shell/member_rounds.py": {"self._changes.awaits": "a record of the rounds' own"},
    "rendezvous/shell/outcome.py": {"self._failure.__cause__": "of an exception"},
}
"""By file: attributes that are set on another object than `self`, each with its reason. A worker's own room is exempt:
it patches the interpreter of the script."""

RUN_SETTINGS = ("cli/", "launcher/", "options/", "embedding.py")
"""Who knows the whole settings of a run; all others get their section of them."""


CLASSES = [(file, node) for file, tree in TREES.items() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
CONSTRUCTORS = [
    (file, cls, each) for file, cls in CLASSES for each in cls.body if getattr(each, "name", "") == "__init__"
]


def is_record(cls):
    bases = {ast.unparse(base).rpartition(".")[2] for base in cls.bases}
    return bool(bases & {"Record", "Struct", "NamedTuple"}) or any(
        "dataclass" in ast.unparse(each) for each in cls.decorator_list
    )


def test_no_constructor_has_many_parameters():
    many = {}
    for file, cls, init in CONSTRUCTORS:
        given = init.args
        count = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs) - 1  # not `self`
        if count > MOST_PARAMETERS:
            many[f"{file}: {cls.name}"] = count
    assert many == {}


def test_no_record_only_carries_parts():
    records = [(file, cls) for file, cls in CLASSES if is_record(cls)]
    parts = {cls.name for _, cls, _ in CONSTRUCTORS} - {cls.name for _, cls in records} | {"Callable"}
    carriers = {}
    for file, cls in records:
        fields = [each for each in cls.body if isinstance(each, ast.AnnAssign)]
        named = {node.id for field in fields for node in ast.walk(field.annotation) if isinstance(node, ast.Name)}
        if found := named & parts:
            carriers[cls.name] = (file, found)
    assert carriers.keys() == CARRIERS.keys(), carriers


def set_from_outside(tree):
    """Yield each attribute that a statement sets on another object than `self`."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            continue
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(each, ast.Attribute) and ast.unparse(each.value) not in ("self", "cls"):
                    yield ast.unparse(each)


@pytest.mark.parametrize("file", [file for file in TREES if not file.startswith("worker/")])
def test_nothing_is_set_from_outside_after_construction(file):
    assert set(set_from_outside(TREES[file])) == set(SET_FROM_OUTSIDE.get(file, ()))


def test_no_lambda_returns_a_part_that_is_built_later():
    late = [
        f"{file}:{node.lineno} {ast.unparse(node)}"
        for file, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Lambda)
        and isinstance(node.body, ast.Attribute)
        and ast.unparse(node.body.value) == "self"
    ]
    assert late == []


def test_each_room_gets_its_section_of_the_settings_and_not_all():
    knowing = {
        file
        for file, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and any(alias.name == "RunSettings" for alias in node.names)
    }
    assert [file for file in sorted(knowing) if not file.startswith(RUN_SETTINGS)] == []
