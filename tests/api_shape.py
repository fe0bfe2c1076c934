"""What a version of the plugin API consists of, as plain data; and what of an older one a newer one has broken.

    python tests/api_shape.py > tests/packaging/frozen/api_2.json    # once, when there is an API_VERSION 2

A parameter is written `name`, `name=` (it has a default), `*name` (keyword only) or `*name=`; a field of a record is
written `name` or `name=`.
"""

import enum
import importlib
import inspect
import json
import sys
import types
from collections.abc import Iterator
from typing import Any

import msgspec

MODULES = ("elastic_core.api", "elastic_core.testing")
SEAMS = frozenset({"RendezvousHandler", "CoordinationStore", "FailureHandler", "AgentHook"})
"""What plugins derive from: the core calls these methods, so that an argument more would be one too many."""

Shape = dict[str, Any]


def shape() -> Shape:
    """Return what there is now."""
    modules = {name: importlib.import_module(name) for name in MODULES}
    public = {name for module in modules.values() for name in module.__all__}
    return {
        name: {own: _of(getattr(module, own), public) for own in sorted(module.__all__)}
        for name, module in modules.items()
    }


def _of(thing: object, public: set[str]) -> Shape:
    if isinstance(thing, types.UnionType):
        return {"kind": "union", "of": [member.__name__ for member in thing.__args__]}
    if not isinstance(thing, type):
        return {"kind": "function", "takes": _parameters(thing)} if inspect.isfunction(thing) else {"kind": "value"}
    bases = sorted({base.__name__ for base in thing.__mro__[1:]} & public)
    if issubclass(thing, enum.Enum):
        return {"kind": "enum", "members": {member.name: member.value for member in thing}}
    if issubclass(thing, msgspec.Struct):
        fields = [field.name + "=" * (not field.required) for field in msgspec.structs.fields(thing)]
        return {"kind": "record", "fields": fields, "methods": _methods(thing), "bases": bases}
    abstract = sorted(getattr(thing, "__abstractmethods__", ()))
    return {"kind": "class", "methods": _methods(thing), "abstract": abstract, "bases": bases}


def _methods(cls: type) -> Shape:
    made_elsewhere = issubclass(cls, msgspec.Struct) or getattr(cls, "_is_protocol", False)
    constructor = [] if made_elsewhere else ["__init__"]
    everybody = {*dir(BaseException), *getattr(cls, "__struct_fields__", ())}
    names = {name for name in {*dir(cls), *inspect.get_annotations(cls)} if not name.startswith(("_", "test_"))}
    found: Shape = {}
    for name in (*constructor, *sorted(names - everybody)):
        value = inspect.getattr_static(cls, name, None)
        value = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        found[name] = _parameters(value) if inspect.isfunction(value) else "attribute"
    return found


def _parameters(function: Any) -> list[str]:
    return [
        "*" * (parameter.kind is parameter.KEYWORD_ONLY) + name + "=" * (parameter.default is not parameter.empty)
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in ("self", "cls")
    ]


def broken(old: Shape, new: Shape) -> list[str]:
    """Return a line for each promise of the old shape that the new one breaks."""
    return [
        line
        for module, names in old.items()
        for name, was in names.items()
        for line in _broken(f"{module}.{name}", name, was, new.get(module, {}).get(name))
    ]


def _broken(where: str, name: str, was: Shape, now: Shape | None) -> Iterator[str]:
    if now is None or now["kind"] != was["kind"]:
        yield f"{where} is gone" if now is None else f"{where} was a {was['kind']} and is a {now['kind']}"
        return
    for key in ("of", "bases", "members"):
        missing = [item for item in was.get(key, ()) if item not in now[key]]
        if missing:
            yield f"{where} has lost {', '.join(missing)}"
    yield from (
        f"{where}.{member} was {value!r} and is {now['members'][member]!r}"
        for member, value in was.get("members", {}).items()
        if now["members"].get(member, value) != value
    )
    added = sorted(set(now.get("abstract", ())) - set(was.get("abstract", ())))
    if added:
        yield f"{where} demands {', '.join(added)}"
    if "fields" in was:
        yield from _changed(where, was["fields"], now["fields"])
    if "takes" in was:
        yield from _changed(f"{where}()", was["takes"], now["takes"])
    for method, took in was.get("methods", {}).items():
        takes = now["methods"].get(method)
        if takes is None or isinstance(takes, str) != isinstance(took, str):
            yield f"{where}.{method} is gone" if takes is None else f"{where}.{method} is something else"
        elif isinstance(took, list):
            yield from _changed(f"{where}.{method}()", took, takes, exactly=name in SEAMS and method != "__init__")


def _changed(where: str, was: list[str], now: list[str], *, exactly: bool = False) -> Iterator[str]:
    if exactly and was != now:
        yield f"{where} took ({', '.join(was)}) and takes ({', '.join(now)})"
    elif not exactly:
        plain = {item.strip("*="): item for item in now}
        known = {item.strip("*=") for item in was}
        for item in was:
            name = item.strip("*=")
            if name not in plain:
                yield f"{where} has lost {name}"
            elif item.endswith("=") and not plain[name].endswith("="):
                yield f"{where} now demands {name}"
            elif plain[name].startswith("*") and not item.startswith("*"):
                yield f"{where} takes {name} by keyword only"
        for item in now:
            if item.strip("*=") not in known and not item.endswith("="):
                yield f"{where} now demands {item.strip('*')}"


def text(found: Shape) -> str:
    """Return a shape as JSON, a line for each name."""
    modules = (
        f'"{module}": {{\n' + ",\n".join(f'"{name}": {json.dumps(was)}' for name, was in names.items()) + "\n}"
        for module, names in found.items()
    )
    return "{\n" + ",\n".join(modules) + "\n}\n"


if __name__ == "__main__":
    sys.stdout.write(text(shape()))
