"""The agent: a pure state machine, the loop that runs it, and the guard that outlives it.

`server` is what users of the library call; it is loaded when it is first used.
"""


def __getattr__(name: str) -> object:
    if name == "server":
        import importlib  # the guard, which must stay tiny, imports this package

        return importlib.import_module(f"{__name__}.server")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
