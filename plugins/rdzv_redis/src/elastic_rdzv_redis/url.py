"""The forms of a server's endpoint: URLs, hosts, several sentinels, and their credentials."""

import os
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote

from elastic_backend_net.endpoint import Endpoint, parse_endpoint
from elastic_backend_net.tls import Login, Tls
from elastic_core.api import ConfigError

__all__ = ["PORT", "SENTINEL_PORT", "Login", "Target", "Tls", "parse_target"]

PORT: Final = 6379
SENTINEL_PORT: Final = 26379
_SCHEMES: Final = ("redis", "rediss", "unix")
_FORMS: Final = f"HOST:{PORT}, redis://HOST:{PORT}/0, rediss://HOST:{PORT} for TLS, or unix:///PATH"


class Target(NamedTuple):
    """The server in an endpoint. `path` is for a unix socket, which has no hosts."""

    hosts: tuple[Endpoint, ...] = ()
    path: str = ""
    db: int = 0
    tls: bool = False
    login: Login = Login()

    def __str__(self) -> str:
        """Return it as text for people, without secrets."""
        place = f"unix:{self.path}" if self.path else ", ".join(map(str, self.hosts))
        return place + (f"/{self.db}" if self.db else "")


def parse_target(endpoint: str, *, sentinels: bool = False, environ: Mapping[str, str] | None = None) -> Target:
    """Return the server in an endpoint. An empty one means `$REDIS_URL`, else this host.

    Args:
        endpoint: A URL with the scheme redis, rediss or unix, or `HOST[:PORT]`.
        sentinels: Whether the hosts are sentinels; then there may be several, and the port has another default.
        environ: Source of `REDIS_URL`; default: this process's variables.

    Raises:
        ConfigError: it can't be read; the text shows no password.
    """
    environ = os.environ if environ is None else environ
    written = endpoint.strip()
    option = "--rdzv-endpoint" if written else "$REDIS_URL"
    written = written or environ.get("REDIS_URL", "").strip()
    scheme, separator, rest = written.partition("://") if "://" in written else ("redis", "", written)
    if scheme not in _SCHEMES:
        raise ConfigError(f"{option}: it has the scheme {scheme!r}; expected one of {', '.join(_SCHEMES)}", hint=_FORMS)
    login, place = _split_login(rest) if separator else (Login(), rest)
    place, _, query = place.partition("?")
    if scheme == "unix":
        return _unix(place, query, login, option)
    authority, slash, path = place.partition("/")
    default_port = SENTINEL_PORT if sentinels else PORT
    written_hosts = authority.split(",")
    hosts = tuple(parse_endpoint(host, default_port=default_port, option=option) for host in written_hosts)
    if len(hosts) > 1 and not sentinels:
        raise ConfigError(
            f"{option}: {len(hosts)} servers; expected one, unless they are sentinels",
            hint="--rdzv-conf sentinel_master=NAME",
        )
    return Target(hosts=hosts, db=_db(path if slash else "", query, option), tls=scheme == "rediss", login=login)


def _split_login(rest: str) -> tuple[Login, str]:
    """Return credentials and place. A password may contain any character; an `@` in a path belongs to the path."""
    if rest.startswith("/") or "@" not in rest:
        return Login(), rest
    user_info, _, place = rest.rpartition("@")
    username, _, password = user_info.partition(":")
    return Login(username=unquote(username), password=unquote(password)), place


def _unix(place: str, query: str, login: Login, option: str) -> Target:
    if not place.startswith("/"):
        raise ConfigError(
            f"{option}: it has no absolute path of a unix socket", hint="unix:///PATH, with three slashes"
        )
    return Target(path=unquote(place), db=_db("", query, option), login=login)


def _db(path: str, query: str, option: str) -> int:
    """Return the number of the database, from the path or from `?db=N`."""
    numbers = [path] if path else []
    for part in filter(None, query.split("&")):
        key, _, value = part.partition("=")
        if key != "db":
            raise ConfigError(f"{option}: it has the parameter {key!r}; expected db", hint="--rdzv-conf for TLS")
        numbers.append(value)
    for number in numbers:
        if not (number.isascii() and number.isdecimal()):
            raise ConfigError(f"{option}: it has the database {number!r}; expected a number", hint=_FORMS)
    if len(set(numbers)) > 1:
        raise ConfigError(
            f"{option}: the databases {' and '.join(numbers)}; expected one", hint=f"redis://HOST/{numbers[0]}"
        )
    return int(numbers[0]) if numbers else 0
