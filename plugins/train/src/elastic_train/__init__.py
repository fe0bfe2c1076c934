"""What a training script may use, each name alone: importing it loads nothing, a name is fetched when first used."""

_PLACES: dict[str, str] = {}
"""The module of each public name."""

__all__: list[str] = []


def __getattr__(name: str) -> object:
    module = _PLACES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
