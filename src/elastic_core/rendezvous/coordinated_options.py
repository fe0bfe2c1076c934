"""The `--rdzv-conf` keys that every backend on a `CoordinationStore` accepts, in addition to its own."""

from collections.abc import Mapping
from typing import Final

from elastic_core.errors import ConfigError
from elastic_core.option_spec import OptionSpec

DEFAULT_LEASE_TTL_S: Final = 5.0
DEFAULT_JOIN_TIMEOUT_S: Final = 600.0
DEFAULT_CONNECT_TIMEOUT_S: Final = 60.0

COORDINATED_OPTIONS: Final = (
    OptionSpec(
        name="lease_ttl",
        type="duration",
        above=0,
        default=DEFAULT_LEASE_TTL_S,
        unit="seconds",
        help="how long a node counts as alive after its last renewal; the same on every node",
    ),
    OptionSpec(
        name="last_call_timeout",
        type="duration",
        above=0,
        unit="seconds",
        help="how long to wait for more nodes after the minimum has joined; default 30 before a run's first round, 2 "
        "after; the same on every node",
    ),
    OptionSpec(
        name="join_timeout",
        type="duration",
        above=0,
        default=DEFAULT_JOIN_TIMEOUT_S,
        unit="seconds",
        help="how long to wait for the fewest nodes",
    ),
    OptionSpec(
        name="connect_timeout",
        type="duration",
        above=0,
        default=DEFAULT_CONNECT_TIMEOUT_S,
        unit="seconds",
        help="how long to try to reach the store at first",
    ),
)
"""The options. A `last_call_timeout` of `None` means 30 s before a run's first round and 2 s after it."""

COORDINATED_KEYS: Final = frozenset(spec.name for spec in COORDINATED_OPTIONS)


def check_coordinated(options: Mapping[str, object], *, backend: str, min_ttl_s: float) -> None:
    """Reject a `lease_ttl` in resolved options that is shorter than the backend's server supports.

    Raises:
        ConfigError: `lease_ttl` is shorter than `min_ttl_s`; the text names the backend.
    """
    lease_s = options.get("lease_ttl")
    if isinstance(lease_s, (int, float)) and lease_s < min_ttl_s:
        raise ConfigError(
            f"--rdzv-conf lease_ttl: {lease_s:g} s; expected at least {min_ttl_s:g} s with backend {backend!r}",
            hint=f"--rdzv-conf lease_ttl={max(DEFAULT_LEASE_TTL_S, min_ttl_s):g}",
        )
