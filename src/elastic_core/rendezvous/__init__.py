"""The rendezvous of a run: how agents find each other and agree on rounds."""


def __getattr__(name: str) -> object:
    if name == "registry":  # so that `elastic_core.rendezvous.registry.register` needs no import of its own
        import importlib

        return importlib.import_module(f"{__name__}.registry")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
