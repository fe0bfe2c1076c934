"""Which versions of the plugin interfaces this core serves, and which of them it will soon serve no more.

The rules for authors are in docs/plugin_authors/stability.md.
"""

from collections.abc import Mapping
from typing import Final

from elastic_core.plugins.discovery import PluginEntry, core_name, find_entries
from elastic_core.plugins.entry_import import mend, refusal
from elastic_core.types import API_VERSION, Record


class ServedVersions(Record, frozen=True, kw_only=True):
    """All versions from `oldest` to `newest` are served; `leaving` has those of them that are deprecated.

    Each with the release of the core that drops it: `{1: "0.4"}`.
    """

    oldest: int
    newest: int
    leaving: Mapping[int, str] = {}

    def __contains__(self, version: object) -> bool:
        """Return whether plugins of this version are loaded; what is no whole number is no version."""
        return type(version) is int and self.oldest <= version <= self.newest

    def __str__(self) -> str:
        """Return what is needed, for messages: `1`, or `2 to 3`."""
        return str(self.newest) if self.oldest == self.newest else f"{self.oldest} to {self.newest}"

    def is_newer(self, version: object) -> bool:
        """Return whether it is the core that is too old for a plugin of this version."""
        return type(version) is int and version > self.newest

    def farewell(self, version: int) -> str:
        """Return what to tell of a plugin whose version is deprecated; empty: nothing."""
        if version not in self.leaving:
            return ""
        return (
            f"api_version {version}, which release {self.leaving[version]} of the core drops; {self.newest} is current"
        )


SERVED: Final = ServedVersions(oldest=1, newest=API_VERSION)
"""To deprecate a version: put it into `leaving`, with the second minor release from now. To drop it: raise `oldest`."""


def check_api_version(entry: PluginEntry, target: object) -> tuple[str, ...]:
    """Return a line for the user of a plugin whose version is deprecated.

    What counts is stated by the class or module itself: an inherited number says nothing about what its author had in
    mind.

    Raises:
        PluginError: none is stated, or one that is not served.
    """
    own = vars(target)
    name = target.__qualname__ if isinstance(target, type) else entry.value.partition(":")[0].strip()
    if "api_version" not in own:
        what = f"{name} states no api_version of its own; {SERVED} is needed"
        raise refusal(entry, what, hint=f"api_version = {API_VERSION} in {name}")
    version = own["api_version"]
    if version not in SERVED:
        what = f"{name} states api_version {version!r}; {SERVED} is needed"
        from elastic_core.plugins.install_hint import upgrade_hint

        core = core_name(find_entries())
        behind = core if SERVED.is_newer(version) else entry.distribution
        raise refusal(entry, what, hint=upgrade_hint(behind, core=core))
    abstract = sorted(getattr(target, "__abstractmethods__", ()))
    if abstract:
        raise refusal(entry, f"{name} does not define {', '.join(abstract)}", hint=mend(entry))
    farewell = SERVED.farewell(version)
    return (str(refusal(entry, f"{name} states {farewell}", hint=mend(entry))),) if farewell else ()
