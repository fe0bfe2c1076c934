"""Launcher and supervisor for elastic, fault-tolerant distributed PyTorch training.

Importing the package imports nothing else: each name is imported at its first use.
"""

from elastic_core._version import __version__

# Not from typing: every worker's hook imports this package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["__version__", "init_process_group"]

_ROOMS = frozenset(
    {
        "agent",
        "compat",
        "events",
        "launch",
        "launcher",
        "metrics",
        "processes",
        "rendezvous",
        "run",
        "timer",
        "worker",
    }
)


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def init_process_group(backend: "str | None" = None, **options: "Any") -> None:  # noqa: ANN401  # torch's own
    """Join the process group of this round's workers, with the environment that the agent has set.

    Args:
        backend: The backend's name for torch: `gloo`, `nccl`. If `None`, torch chooses.
        options: Other options of `torch.distributed.init_process_group`. Torch is imported by this call.

    Raises:
        ConfigError: torch is missing, or its release is not supported.
    """
    import importlib  # only workers import torch

    from elastic_core.torch_release import import_torch

    import_torch("elastic_core.init_process_group")
    importlib.import_module("torch.distributed").init_process_group(backend, **options)
