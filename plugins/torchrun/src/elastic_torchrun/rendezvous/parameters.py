"""The parameters that torch passes to the creator of a rendezvous handler."""

from typing import Any, Final


def run_id_of(run_id: object) -> str:
    """Return a run's id as text. Torch accepts numbers, too; `None` means no id."""
    return "" if run_id is None else str(run_id)


_YES: Final = frozenset({"1", "true", "t", "yes", "y"})
_NO: Final = frozenset({"0", "false", "f", "no", "n"})


class RendezvousParameters:
    """The parameters of a rendezvous, checked.

    Args:
        backend: Name of the backend.
        endpoint: Its endpoint, usually `HOST[:PORT]`.
        run_id: The run's id.
        min_nodes: The fewest nodes.
        max_nodes: The most nodes.
        local_addr: This node's address, as the others reach it.
        **config: The backend's own options.

    Raises:
        ValueError: the backend has no name, or the numbers of nodes are invalid.
    """

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        **config: Any,  # noqa: ANN401  # as various as backends are
    ) -> None:
        """Keep the parameters."""
        if not backend:
            raise ValueError("the name of the rendezvous backend is empty")
        if min_nodes < 1:
            raise ValueError(f"min_nodes={min_nodes}; expected at least 1")
        if max_nodes < min_nodes:
            raise ValueError(f"max_nodes={max_nodes}; expected at least min_nodes={min_nodes}")
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.local_addr = local_addr
        self.config = config

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401  # as various as options are
        """Return an option, or `default` if it is not given."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """Return an option as a bool: 1, true, t, yes, y, or 0, false, f, no, n, in any case.

        Raises:
            ValueError: it is none of these.
        """
        value = self.get(key, default)
        if value is None or isinstance(value, bool):
            return value
        text = str(value).lower() if isinstance(value, (int, str)) else ""
        if text in _YES:
            return True
        if text in _NO:
            return False
        raise ValueError(f"rendezvous option {key}: {value!r}; expected true or false")

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """Return an option as a whole number.

        Raises:
            ValueError: it is not a whole number.
        """
        value = self.get(key, default)
        if value is None:
            return None
        try:
            return int(value)
        except ValueError as error:
            raise ValueError(f"rendezvous option {key}: {value!r}; expected a whole number") from error
