"""`python -m elastic_core.launch`, as `python -m torch.distributed.launch`; needs elastic-torchrun."""

from typing import Any

__all__ = ["launch", "main", "parse_args", "process"]


def __getattr__(name: str) -> Any:  # noqa: ANN401  # classes and functions
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from elastic_core.plugins.torch_side import torch_import

    return getattr(torch_import("twin", needed_by=__name__), name)


if __name__ == "__main__":
    import sys

    from elastic_core.errors import PluginError
    from elastic_core.plugins.torch_side import torch_part

    try:
        twin = torch_part("twin", needed_by="elastic_core.launch")
    except PluginError as error:
        sys.exit(f"elastic: error: {error}")
    twin.process()
