"""Imports plugins by entry point or by place (`module:Class`), and makes the errors about a single plugin.

Each error names the plugin and its distribution.
"""

import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from elastic_core._version import __version__
from elastic_core.errors import PluginError
from elastic_core.logger import print_line
from elastic_core.plugin_faults import PluginLabel, modules_of, text_of
from elastic_core.plugins.discovery import (
    ENVIRONMENTS_GROUP,
    HOOKS_GROUP,
    KINDS,
    RENDEZVOUS_GROUP,
    TORCH_GROUP,
    PluginEntry,
    core_name,
    find_entries,
    is_built_in,
    is_of_this_project,
)

IN_CODE: Final = "in code"
"""The distribution's name for plugins that were registered in code."""
NOT_INSTALLED: Final = "not installed"
"""The distribution's name for plugins that were given by place, `module:Class`."""
_NO_DISTRIBUTION: Final = frozenset((IN_CODE, NOT_INSTALLED, ""))

LINE_AFTER_S: Final = 5.0
"""Seconds of waiting after which a line names the plugin."""

HEAVY_MODULES: Final = ("torch", "numpy")
"""Modules that no hook and no policy may import into the supervisor, because they are slow and large."""


class Limit(NamedTuple):
    """The most seconds that a plugin's import, and then its constructor, may take.

    `flag` is the option that sets the limit, for a line while a user waits. If empty, no line is printed.
    """

    within_s: float
    flag: str = ""


HOOK_LIMIT: Final = Limit(5.0)
"""For plugins without which a run continues: the deadline of a hook's calls."""
CHOSEN_LIMIT: Final = Limit(60.0, "--connect-timeout")
"""For plugins that a run needs, without another setting."""


def limit_of(entry: PluginEntry, limit: Limit) -> Limit | None:
    """Return the limit for a foreign plugin. `None` for plugins of this project and version, which need no thread."""
    ours = is_built_in(entry) or (entry.version == __version__ and is_of_this_project(entry))
    return None if ours else limit


def import_entry(entry: PluginEntry, *, limit: Limit | None = None) -> object:
    """Import and return the object of an entry point.

    Args:
        entry: The entry point.
        limit: The most seconds of the import. `None` means no limit.

    Raises:
        PluginError: The import raised, or exceeded the limit.
    """
    return limited(entry, f"importing {entry.value}", lambda: _import(entry), limit)


def limited(entry: PluginEntry, what: str, call: Callable[[], object], limit: Limit | None) -> object:
    """Run code of a plugin. If it exceeds the limit, its thread is abandoned.

    Raises:
        PluginError: The code exceeded the limit. Its own exceptions are raised too.
    """
    if limit is None:
        return call()
    before = {name for name in HEAVY_MODULES if name in sys.modules}
    ended: list[tuple[object, BaseException | None]] = []

    def run() -> None:
        try:
            ended.append((call(), None))
        except BaseException as err:  # noqa: BLE001  # raised again in the waiting thread
            ended.append((None, err))

    thread = threading.Thread(target=run, daemon=True, name=f"{what.partition('ing')[0]} {entry.name}")
    thread.start()
    first_s = min(limit.within_s, LINE_AFTER_S) if limit.flag else limit.within_s
    thread.join(first_s)
    flag = f" ({limit.flag})" if limit.flag else ""
    if not ended and first_s < limit.within_s:
        fate = f"it is given up after {limit.within_s:g} s{flag}"
        print_line(f"elastic: {label_of(entry)}: {what} has not returned after {first_s:g} s; {fate}")
        thread.join(limit.within_s - first_s)
    if not ended:
        late = f"{what} takes longer than {limit.within_s:g} s{flag}"
        heavy = next((each for each in HEAVY_MODULES if each in sys.modules and each not in before), "")
        if heavy:
            raise too_heavy(entry, heavy, late=late)
        raise plugin_refusal(entry, late)
    answer, error = ended[0]
    if error is not None:
        raise error
    return answer


def _import(entry: PluginEntry) -> object:
    try:
        return import_value(entry.value)
    except (Exception, SystemExit) as err:
        what = f"importing {entry.value} raised {text_of(err, entry.value)}"
        raise plugin_refusal(entry, what, hint=_import_hint(entry, err)) from err


def _import_hint(entry: PluginEntry, err: BaseException) -> str:
    missing = (err.name or "" if isinstance(err, ModuleNotFoundError) else "").partition(".")[0]
    if not missing or missing == entry.value.partition(":")[0].strip().partition(".")[0]:
        lost = missing and entry.distribution == NOT_INSTALLED
        return f"the directory that has {missing}, or put it on PYTHONPATH" if lost else mend(entry)
    owner = entry.value if entry.distribution in _NO_DISTRIBUTION else entry.distribution
    return f"install what brings the module {missing!r}, which {owner} needs"


def import_value(value: str) -> Any:  # noqa: ANN401  # a module, or whatever it has
    """Import the module or `module:attribute` of an entry point's value. Exceptions are not converted."""
    module_name, _, attributes = value.partition(":")
    target: object = importlib.import_module(module_name.strip())
    for attribute in filter(None, attributes.strip().split(".")):
        target = getattr(target, attribute)
    return target


def plugin_refusal(entry: PluginEntry, what: str, *, hint: str = "") -> PluginError:
    """Return an error that names the plugin and its distribution. Without a hint, it has the hint of `mend`."""
    off = f", or turn it off: -p no:{entry.name}" if _is_on_by_itself(entry) else ""
    if entry.group == ENVIRONMENTS_GROUP:
        off = ", or leave it out: --environment none"
    owner = f" ({entry.label})" if entry.label else ""
    return PluginError(f"{KINDS[entry.group]} {entry.name!r}{owner}: {what}", hint=f"{hint or mend(entry)}{off}")


def too_heavy(entry: PluginEntry, names: str, *, late: str = "") -> PluginError:
    """Return the error for a plugin that imports a heavy module. `late` says that its import was abandoned."""
    what = f"it imports {names} into the supervisor"
    hint = f"import {names} where it is used, in the worker"
    return plugin_refusal(entry, f"{late}: {what}" if late else what, hint=hint)


def _is_on_by_itself(entry: PluginEntry) -> bool:
    return entry.group == HOOKS_GROUP and entry.distribution != NOT_INSTALLED


def only_claim(claims: Iterable[PluginEntry]) -> PluginEntry | None:
    """Return the only entry point of a name. `None` if there is none.

    Raises:
        PluginError: Several distributions have the name.
    """
    found = list(claims)
    if len(found) > 1:
        owners = " and ".join(entry.label for entry in found)
        others = " or ".join(entry.distribution for entry in found if not is_built_in(entry))
        what = f"{KINDS[found[0].group]} {found[0].name!r} comes from {owners}"
        raise PluginError(what, hint=f"pip uninstall {others}")
    return found[0] if found else None


def label_of(entry: PluginEntry) -> PluginLabel:
    """Return a plugin's label for lines about a run."""
    off = f"-p no:{entry.name}, or " if _is_on_by_itself(entry) else ""
    kind = "backend" if entry.group == RENDEZVOUS_GROUP else KINDS[entry.group]
    own = entry.distribution in _NO_DISTRIBUTION
    hint = mend(entry) if own else f"report it to the authors of {entry.distribution}"
    return PluginLabel(kind, entry.name, entry.label, entry.value.partition(":")[0], f"{off}{hint}")


def owner_of(error: BaseException, places: Iterable[str] = ()) -> PluginLabel | None:
    """Return the plugin whose code raised an exception, by the innermost frame in a plugin. `None` if there is none.

    `places` are plugins that were given by place, `module:Class`.
    """
    entries = [*find_entries(), *(entry._replace(group=RENDEZVOUS_GROUP) for entry in find_entries(TORCH_GROUP))]
    entries += [PluginEntry(HOOKS_GROUP, place, place, NOT_INSTALLED, "") for place in places if ":" in place]
    for module in modules_of(error):
        top = module.partition(".")[0]
        theirs = [
            entry for entry in entries if entry.group in KINDS and _package(entry) == top and not is_built_in(entry)
        ]
        if len(theirs) > 1:  # several plugins of a distribution: prefer the one of this module
            near = [entry for entry in theirs if entry.value.partition(":")[0] == module]
            theirs = near if len(near) == 1 else theirs
        if len(theirs) == 1:
            return label_of(theirs[0])
        if theirs:
            return label_of(theirs[0])._replace(kind="distribution", name=theirs[0].label, distribution="")
    return None


def _package(entry: PluginEntry) -> str:
    return entry.value.partition(":")[0].partition(".")[0].strip()


def mend(entry: PluginEntry) -> str:
    """Return the hint for users of a broken plugin."""
    if entry.distribution in _NO_DISTRIBUTION:  # the user's own
        check = f", then elastic plugins check {entry.value}" if entry.distribution == NOT_INSTALLED else ""
        return f"mend {entry.value}{check}"
    from elastic_core.plugins.missing import upgrade_hint

    return f"{upgrade_hint(entry.distribution, core=core_name(find_entries()))}, or report it to its authors"


def entry_at(group: str, place: str) -> PluginEntry | None:
    """Return the entry of a plugin given by place, `module:Class`. `None` if the text is not a place.

    From then on, modules are searched in the working directory first, as with `python -m`.
    """
    module, colon, name = place.partition(":")
    if not colon or not all(word.isidentifier() for word in (*module.split("."), *name.split("."))):
        return None
    here = os.getcwd()  # noqa: PTH109  # sys.path has texts
    if not {"", here} & set(sys.path):
        sys.path.insert(0, here)
    return PluginEntry(group=group, name=place, value=place, distribution=NOT_INSTALLED, version="")
