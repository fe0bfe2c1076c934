"""The migration page has all of torch: its modules, its names, their parameters, its options and its variables."""

import ast
import enum
import importlib
import inspect
import pkgutil
import re
import warnings
from pathlib import Path

import migration_tables
import pytest
import reference_tables
import torch_map

from elastic_core.options.hook_options import all_hook_options
from elastic_core.options.table import OPTIONS

ROOT = Path(__file__).resolve().parents[5]
ROOTS = ("torch.distributed.elastic", "torch.distributed.launcher", "torch.numa")
ALONE = ("torch.distributed.run", "torch.distributed.launch")
LOGGERS = {"log", "logger"}
VARIABLE = re.compile(r"\"([A-Z]+_[A-Z_]+|LOGLEVEL)\"")
NO_VARIABLES = {"ASSIGN_WORKER_RANKS"}


def load(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        return importlib.import_module(name)


def torch_modules():
    found = list(ALONE)
    for root in ROOTS:
        found += [root, *(each.name for each in pkgutil.walk_packages(load(root).__path__, f"{root}."))]
    return sorted(name for name in found if not name.rpartition(".")[2].startswith("_"))


def source(module):
    path = getattr(module, "__file__", None)
    return Path(path).read_text() if path else ""


def defined(body, module):
    """Yield what a module defines; a package also what it exports of its own modules."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.If() | ast.Try():
                yield from defined([*node.body, *node.orelse], module)
            case ast.ImportFrom() if hasattr(module, "__path__"):
                if node.level or (node.module or "").startswith(module.__name__):
                    yield from (each.asname or each.name for each in node.names)


def public_names(name):
    module = load(name)
    names = set(getattr(module, "__all__", ())) | set(defined(ast.parse(source(module)).body, module))
    return {
        each
        for each in names
        if not each.startswith("_")
        and each not in LOGGERS
        and hasattr(module, each)
        and not inspect.ismodule(getattr(module, each))
    }


@pytest.fixture(scope="module")
def torchs():
    return {name: names for name in torch_modules() if (names := public_names(name))}


def test_every_name_is_here_or_explained(torchs):
    listed = {name: {*module.names, *module.compat_only, *module.absent} for name, module in torch_map.MODULES.items()}
    missing = {name: sorted(names - listed.get(name, set())) for name, names in torchs.items()}
    assert not {name: names for name, names in missing.items() if names}, "add these to docs/_ext/torch_map.py"
    gone = {name: sorted(names - torchs.get(name, set())) for name, names in listed.items()}
    assert not {name: names for name, names in gone.items() if names}, "torch has these no more"
    assert all(reason.strip() for module in torch_map.MODULES.values() for reason in module.absent.values())


def test_counterparts_are_where_the_page_says():
    assert [fault for name in torch_map.MODULES for fault in faults_of_counterparts(name)] == []


def faults_of_counterparts(name):
    """Yield a line for each name of a module of torch's whose counterpart is not where the page says."""
    module = torch_map.MODULES[name]
    ours = load(torch_map.compat(name)) if module.names or module.compat_only else None
    yield from (
        f"{ours.__name__} has no {each}" for each in (*module.names, *module.compat_only) if not hasattr(ours, each)
    )
    for each in module.names:
        beside = getattr(load(module.room), each)
        if beside is not getattr(ours, each) and (module.room, each) != ("elastic_core.run", "main"):
            yield f"{module.room}.{each} is another than that of {ours.__name__}"
    yield from (f"{name}: {each} is there: move it to the names" for each in module.absent if hasattr(ours, each))


def callables(name):
    """Yield path, torch's and ours of each function, class and public method that both should have."""
    module = torch_map.MODULES[name]
    torchs, ours = load(name), load(torch_map.compat(name))
    for each in (*module.names, *module.compat_only):
        theirs, own = getattr(torchs, each), getattr(ours, each)
        if inspect.isfunction(theirs):
            yield f"{name}.{each}", theirs, own
        elif inspect.isclass(theirs) and not issubclass(theirs, enum.Enum):
            if theirs.__init__ is not object.__init__:
                yield f"{name}.{each}", theirs, own
            for attribute, value in inspect.getmembers(theirs):
                if not attribute.startswith("_"):
                    found = getattr(own, attribute, None)
                    yield f"{name}.{each}.{attribute}", value, found if hasattr(own, attribute) else Absent


class Absent:
    """Stands for an attribute that is not there."""


def parameters(function):
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of the C API
        return None
    return {name: each for name, each in signature.parameters.items() if name not in ("self", "cls")}


def plain(default):
    if isinstance(default, enum.Enum):
        return default.value
    if isinstance(default, type) or inspect.isfunction(default):
        return default.__name__
    return type(default).__name__ if " object at " in repr(default) else repr(default)


def deviations(theirs, own):
    """Yield in what a call that suits torch would not suit ours."""
    torchs, ours = parameters(theirs), parameters(own)
    if torchs is None or ours is None:
        return
    kinds = {each.kind for each in ours.values()}
    for name, parameter in torchs.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            if parameter.kind not in kinds:
                yield f"no {parameter}"
        elif name not in ours:
            if parameter.VAR_KEYWORD not in kinds:
                yield f"no {name}"
        elif parameter.default is not parameter.empty and plain(parameter.default) != plain(ours[name].default):
            yield f"{name}={plain(parameter.default)}, ours {plain(ours[name].default)}"
    yield from (
        f"{name} is required"
        for name, each in ours.items()
        if name not in torchs
        and each.default is each.empty
        and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    )
    positional = [name for name, each in torchs.items() if each.kind is each.POSITIONAL_OR_KEYWORD and name in ours]
    in_order = [name for name, each in ours.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    if in_order[: len(positional)] != positional:
        yield f"in another order: {in_order}"


def test_calls_that_suit_torch_suit_ours():
    found = {}
    for path, theirs, own in (each for name in torch_map.MODULES for each in callables(name)):
        if own is Absent:
            owner = path.rpartition(".")[0]
            if path not in torch_map.ATTRIBUTES and f"{owner}.*" not in torch_map.ATTRIBUTES:
                found[path] = "is not there"
        elif path not in torch_map.PARAMETERS and (differences := list(deviations(theirs, own))):
            found[path] = differences
    assert not found


def test_enumerations_and_constants_have_torchs_values():
    values = {}
    for name, module in torch_map.MODULES.items():
        for each in (*module.names, *module.compat_only):
            theirs, own = getattr(load(name), each), getattr(load(torch_map.compat(name)), each)
            if inspect.isclass(theirs) and issubclass(theirs, enum.Enum):
                theirs, own = ({item.name: item.value for item in each} for each in (theirs, own))
            if isinstance(theirs, (str, int, dict)):
                values[f"{name}.{each}"] = (theirs, own)
    assert {each: found for each, found in values.items() if found[0] != found[1]} == {}


def test_reasons_are_of_what_torch_has(torchs):
    differ = {
        path for name in torch_map.MODULES for path, theirs, own in callables(name) if list(deviations(theirs, own))
    }
    assert set(torch_map.PARAMETERS) <= differ
    for path in (*torch_map.PARAMETERS, *torch_map.ATTRIBUTES):
        module = max((name for name in torchs if path.startswith(f"{name}.")), key=len)
        assert path.removeprefix(f"{module}.").partition(".")[0] in torchs[module], path


def test_every_option_of_torchrun_and_of_its_twin_is_taken():
    from torch.distributed.launch import parse_args as twins
    from torch.distributed.run import get_args_parser

    from elastic_core.launch import parse_args

    dests = {action.dest for action in get_args_parser()._actions if action.option_strings} - {"help"}
    ours = {row.name for row in (*OPTIONS, *all_hook_options()) if row.torch}
    assert not [dest for dest in dests if dest not in ours]
    text = migration_tables.options()
    assert not [dest for dest in dests if f"--{dest.replace('_', '-')}`" not in text]
    assert set(vars(twins(["train.py"]))) <= set(vars(parse_args(["train.py"])))


@pytest.mark.parametrize("name", torch_map.SINCE)
def test_versions_are_those_of_the_table(name):
    from torch.distributed.run import get_args_parser

    if name.startswith("--"):
        found = any(name in action.option_strings for action in get_args_parser()._actions)
    elif name.startswith("worker server: "):
        found = name.removeprefix("worker server: ") in load("torch._C._distributed_c10d")._get_handler_names()
    else:
        owner, _, attribute = name.rpartition(".")
        module, _, each = owner.rpartition(".")
        cls = getattr(load(module), each)
        found = hasattr(cls, attribute) or attribute in getattr(cls, "__dataclass_fields__", ())
    assert found == torch_map.has(name)


def test_a_namespace_of_our_parser_is_as_torchs():
    from torch.distributed.run import parse_args as theirs

    from elastic_core.compat.run import parse_args as ours

    for line in (
        ["t.py"],
        ["--nnodes=2:3", "-r", "3", "--max_restarts", "2", "--duplicate-stdout-filters", "a,b", "x"],
    ):
        mine = vars(ours(line))
        assert {dest: mine[dest] for dest in vars(theirs(line))} == vars(theirs(line))


def test_every_variable_of_torch_is_explained(torchs):
    used = {name for module in torchs for name in VARIABLE.findall(source(load(module)))} - NO_VARIABLES
    ours = (reference_tables.WORKER_VARIABLES, reference_tables.VARIABLES_OF_HOOKS, reference_tables.READ_VARIABLES)
    known = {name for table in (*ours, torch_map.VARIABLES) for name in table}
    assert not sorted(used - known), "explain these in docs/_ext"


def test_every_table_is_shown():
    page = (ROOT / "docs" / "reference" / "migration.md").read_text()
    assert [name for name, table in migration_tables.GENERATORS.items() if not table().strip()] == []
    assert [name for name in migration_tables.GENERATORS if f"<!-- table: {name} -->\n" not in page] == []
