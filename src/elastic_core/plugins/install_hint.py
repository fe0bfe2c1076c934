"""How distributions of this project are installed, for hints: from its tree, since no public index has them.

There their names are anybody's, and `elastic-core` is a stranger's: no hint says to install one of them by name.
"""

from typing import Final

_PREFIX: Final = "elastic-"
CORE: Final = f"{_PREFIX}core"
_SETS: Final = {
    "elastic-ops": "ops",
    "elastic-plugin-kit": "testing",
    "elastic-rdzv-etcd": "etcd",
    "elastic-rdzv-redis": "redis",
    "elastic-rdzv-redis[embedded]": "torchrun",
    "elastic-rdzv-static": "torchrun",
    "elastic-torchrun": "torchrun",
}
"""The file in the folder `sets` that brings a distribution with all that it needs; of others, the folder is enough."""
_FOLDERS: Final = ("hangs", "numa", "policy_rules", "standby")


def install_hint(distribution: str, *, core: str = CORE, newer: bool = False) -> str:
    """Return what installs a distribution of this project, as README has it.

    Args:
        distribution: As its metadata spells it, an extra in brackets behind it.
        core: The name under which the core was published.
        newer: An installed one is too old.
    """
    folder = distribution.removeprefix(_PREFIX).replace("-", "_")
    file = _SETS.get(distribution)
    what = "." if distribution == core else f"-r sets/{file}.txt" if file else f". ./plugins/{folder}"
    return f"pip install {what}, in a {'newer ' if newer else ''}checkout of {core}"


def upgrade_hint(distribution: str, *, core: str = CORE) -> str:
    """Return what installs a newer version of a distribution that is installed, ours or another's."""
    if distribution in (core, *_SETS) or distribution.removeprefix(_PREFIX).replace("-", "_") in _FOLDERS:
        return install_hint(distribution, core=core, newer=True)
    return f"pip install --upgrade {distribution}"
