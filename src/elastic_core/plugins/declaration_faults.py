"""Checks a plugin's declarations: its version and its options. elastic-plugin-kit checks its methods."""

import math
from typing import Final

from elastic_core.option_spec import OptionSpec
from elastic_core.plugins.conversion import OPTION_TYPES, fits, parse, wanted
from elastic_core.plugins.discovery import PluginEntry, core_name, find_entries
from elastic_core.plugins.entry_import import IN_CODE, NOT_INSTALLED, plugin_refusal
from elastic_core.types import API_VERSION


def check_api_version(entry: PluginEntry, target: object) -> None:
    """Check that a class or module states the version of the interfaces and defines all abstract methods.

    An inherited version does not count: its author may have meant another class.

    Raises:
        PluginError: No version or another version is stated, or a method is abstract.
    """
    name = target.__qualname__ if isinstance(target, type) else entry.value.partition(":")[0].strip()
    if "api_version" not in vars(target):
        what = f"{name} states no api_version of its own; expected {API_VERSION}"
        raise plugin_refusal(entry, what, hint=f"api_version = {API_VERSION} in {name}")
    version: object = vars(target)["api_version"]
    if type(version) is not int or version != API_VERSION:
        from elastic_core.plugins.missing import upgrade_hint

        what = f"{name} states api_version {version!r}; expected {API_VERSION}"
        # A newer plugin needs a newer core; if not, the plugin is too old.
        core = core_name(find_entries())
        behind = core if type(version) is int and version > API_VERSION else entry.distribution
        hint = "" if behind in (IN_CODE, NOT_INSTALLED) else upgrade_hint(behind, core=core)
        raise plugin_refusal(entry, what, hint=hint)
    abstract = sorted(getattr(target, "__abstractmethods__", ()))
    if abstract:
        raise plugin_refusal(entry, f"{name} does not define {', '.join(abstract)}")


_TYPES: Final = {"str": (str,), "int": (int,), "bool": (bool,), "float": (float, int), "duration": (float, int)}
# Characters that an option's name cannot have, because users type KEY=VALUE,KEY=VALUE.
_UNTYPABLE: Final = frozenset(" ,='\"\t\n")


def fault_of_options(declared: object) -> str:
    """Return what is wrong with a plugin's `options`, to follow its name. Empty if they are right."""
    if not isinstance(declared, (tuple, list)):
        return f"has options of type {type(declared).__name__}; expected a tuple of OptionSpec"
    seen: set[str] = set()
    for spec in declared:
        if not isinstance(spec, OptionSpec):
            return f"has {spec!r} in options; expected an OptionSpec"
        fault = fault_of_option(spec)
        if fault:
            return f"has an option {spec.name!r} {fault}"
        if spec.name in seen:
            return f"has two options named {spec.name!r}; expected one"
        seen.add(spec.name)
    return ""


def fault_of_option(spec: OptionSpec) -> str:
    """Return what is wrong with one declaration, to follow its name. Empty if it is right."""
    if not isinstance(spec.name, str) or not spec.name or _UNTYPABLE & set(spec.name):
        return "that can't be typed; expected letters, digits and underscores"
    if spec.type not in OPTION_TYPES:
        return f"with type {spec.type!r}; expected one of {', '.join(OPTION_TYPES)}"
    if not isinstance(spec.choices, (tuple, list)) or not all(isinstance(choice, str) for choice in spec.choices):
        return f"with choices {spec.choices!r}; expected a tuple of texts"
    if spec.default is None or _may_be_default(spec.default, spec):
        return ""
    return f"with default {spec.default!r}; expected {wanted(spec)}"


def _may_be_default(value: object, spec: OptionSpec) -> bool:
    if spec.many:
        return isinstance(value, str) and all(parse(part.strip(), spec) is not None for part in value.split(":"))
    if type(value) not in _TYPES[spec.type] or (isinstance(value, float) and not math.isfinite(value)):
        return False
    return str(value) in spec.choices if spec.choices else isinstance(value, str | float | int) and fits(value, spec)
