"""The options of runs whose nodes meet in a store: attempt, spares, what may differ, and the store's trouble."""

from typing import Final

from elastic_core.errors import ConfigError
from elastic_core.options.draft import Draft
from elastic_core.options.table import BY_DEST
from elastic_core.options.values import integer, one_of, seconds

_CONF_KEYS: Final = ("join_timeout", "connect_timeout")
"""Options that are short for keys of `--rdzv-conf`."""
_COORDINATED_ONLY: Final = (
    "spares",
    "rdzv_attempt",
    "allow_mismatch",
    "agent_port",
    "max_membership_changes",
    "store_outage_grace",
    "on_store_loss",
    *_CONF_KEYS,
)


def settle_coordination(draft: Draft) -> None:
    """Settle the fields that matter where nodes meet in a store; elsewhere say what has no effect.

    Raises:
        ConfigError: a value is malformed, or two say different things.
    """
    choices = draft.choices
    draft.take("spares", _count(draft, "spares"))
    draft.take("rdzv_attempt", _count(draft, "rdzv_attempt") or 0)
    draft.take("allow_mismatch", _allowed(choices.texts("allow_mismatch")))
    port = integer(choices, "agent_port", at_least=0, at_most=65535) if choices.chosen("agent_port") else 0
    draft.take("agent_port", port)
    draft.take("max_membership_changes", _count(draft, "max_membership_changes"))
    draft.take("store_outage_grace_s", seconds(choices, "store_outage_grace"), "store_outage_grace")
    draft.take("on_store_loss", one_of(choices, "on_store_loss", BY_DEST["on_store_loss"].choices))
    for key in filter(choices.chosen, _CONF_KEYS):
        seconds(choices, key, above_zero=True)  # refused here, by the name that the user knows


def settle_store(draft: Draft, conf: dict[str, str]) -> None:
    """Settle what only a run with a store needs: the backend's options, and which attempt at the run this is.

    Raises:
        ConfigError: an option was given in two ways, with different values.
    """
    from elastic_core.rendezvous.identity import attempt_from_environment  # milliseconds that other runs save

    draft.take("rdzv_conf", _shorthands(draft, conf))
    if not draft.choices.chosen("rdzv_attempt"):
        attempt = attempt_from_environment(draft.environ)
        draft.set("rdzv_attempt", attempt.number, "derived: the scheduler's count" if attempt.number else "default")
        draft.set("rdzv_job", attempt.job, "derived: the scheduler's name of the job" if attempt.job else "default")
        draft.set("rdzv_attempt_given", attempt.given, "derived: the scheduler's" if attempt.given else "default")
    else:
        draft.set("rdzv_attempt_given", True, "derived: --rdzv-attempt")


def _shorthands(draft: Draft, conf: dict[str, str]) -> dict[str, str]:
    """Return the backend's options with those that have a flag of their own.

    Raises:
        ConfigError: both were given, with different values.
    """
    choices = draft.choices
    full = dict(conf)
    for key in filter(choices.chosen, _CONF_KEYS):
        text = (choices.text(key) or "").strip()
        typed = conf.get(key, text)
        sources = [choices.origin(dest).partition(" ")[0] for dest in (key, "rdzv_conf")]
        if _same(typed, text) or sources == ["flag", "env"]:
            full[key] = text
        elif sources[0] == sources[1]:
            raise ConfigError(
                f"{draft.name(key)} {text} and {key}={typed} in {draft.name('rdzv_conf')} say different things",
                hint="one of them",
            )
    return full


def tell_without_store(draft: Draft, backend: str) -> None:
    """Say which options have no effect, for want of a store in which nodes meet."""
    ignored = [draft.name(dest) for dest in _COORDINATED_ONLY if draft.choices.chosen(dest)]
    if ignored:
        draft.tell(f"{', '.join(ignored)} without effect with {backend!r}: there is no store in which nodes meet")


def _count(draft: Draft, dest: str) -> int | None:
    return integer(draft.choices, dest, at_least=0) if draft.choices.chosen(dest) else None


def _allowed(texts: tuple[str, ...]) -> tuple[str, ...]:
    if not texts:
        return ()
    from elastic_core.rendezvous.identity import parse_allow_mismatch

    return tuple(sorted(parse_allow_mismatch(texts)))


def _same(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return one == other
