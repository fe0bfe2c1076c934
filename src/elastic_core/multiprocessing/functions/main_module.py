"""The caller's main module in a worker: it is imported there, and must not start workers meanwhile."""

from elastic_core.errors import ConfigError

_importing: list[str] = []
"""The main module that this process, a worker, is importing on its caller's behalf; at most one."""


def begin_import(main: str) -> None:
    """Note that the module is being imported: by its path, or its name. Called: in a worker."""
    _importing.append(main)


def end_import() -> None:
    """Note that it has been."""
    _importing.clear()


def refuse_while_importing(name: str) -> None:
    """Refuse to start workers from a main module that a worker is only importing.

    Without this, each worker would begin the whole run again. Called: before anything of a run begins.

    Args:
        name: The entry point, for people.

    Raises:
        ConfigError: the call is not below the module's guard.
    """
    if _importing:
        raise ConfigError(
            f"{name!r}: a worker imports the main module {_importing[0]!r}, and that starts workers itself",
            hint='put what starts them below `if __name__ == "__main__":`',
        )
