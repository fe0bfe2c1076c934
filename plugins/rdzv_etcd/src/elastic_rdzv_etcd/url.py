"""The forms of an etcd cluster's endpoint: hosts, URLs, lists of both, and their credentials."""

import os
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote

from elastic_backend_net.endpoint import Endpoint, parse_endpoint
from elastic_backend_net.tls import Login, Tls
from elastic_core.api import ConfigError

__all__ = ["ENVIRONMENT", "PORT", "Login", "Target", "Tls", "parse_target"]

PORT: Final = 2379
ENVIRONMENT: Final = ("ELASTIC_ETCD_ENDPOINTS", "ETCDCTL_ENDPOINTS")
"""The variables with endpoints if none are written; the first that is set counts."""
_SCHEMES: Final = ("http", "https")
_FORMS: Final = f"HOST:{PORT}, HOST:{PORT},HOST2:{PORT}, or https://HOST:{PORT} for TLS"


class Target(NamedTuple):
    """The members of the cluster in an endpoint."""

    hosts: tuple[Endpoint, ...]
    tls: bool = False
    login: Login = Login()

    def __str__(self) -> str:
        """Return it as text for people, without secrets: `a:2379,b:2379`."""
        return ",".join(map(str, self.hosts))


def parse_target(text: str, *, environ: Mapping[str, str] | None = None) -> Target:
    """Return the cluster in an endpoint. An empty one means the environment's, else this host.

    Args:
        text: `HOST[:PORT]`, `http://HOST[:PORT]`, `https://USER:PASSWORD@HOST[:PORT]`, or several separated by commas.
            Scheme and credentials before the first host are also those of hosts without a scheme.
        environ: Source of `ELASTIC_ETCD_ENDPOINTS` and `ETCDCTL_ENDPOINTS`; default: this process's variables.

    Raises:
        ConfigError: it can't be read; the text shows no password.
    """
    environ = os.environ if environ is None else environ
    option, written = "--rdzv-endpoint", text.strip()
    for name in ENVIRONMENT:
        if not written:
            option, written = f"${name}", environ.get(name, "").strip()
    if not written:
        return Target(hosts=(Endpoint(host="localhost", port=PORT),))
    schemes: list[str] = []
    logins: list[Login] = []
    hosts: list[Endpoint] = []
    for part in _parts(written):
        scheme, login, place = _split(part, option)
        schemes += [scheme] if scheme else []
        logins += [login] if login != Login() else []
        if not place:
            raise ConfigError(f"{option}: it has a part without a host; expected HOST or HOST:PORT", hint=_FORMS)
        hosts.append(parse_endpoint(place, default_port=PORT, option=option))
    if len(set(schemes)) > 1:
        raise ConfigError(
            f"{option}: it has members with TLS and without it; expected one of both",
            hint="http:// or https:// for all of them",
        )
    if len(set(logins)) > 1:
        raise ConfigError(
            f"{option}: it has more than one user and password; expected one", hint="https://USER:PASSWORD@HOST,HOST2"
        )
    return Target(
        hosts=tuple(dict.fromkeys(hosts)), tls=schemes[:1] == ["https"], login=logins[0] if logins else Login()
    )


def _parts(written: str) -> list[str]:
    """Return the members of a list; commas before the last `@` of the first one belong to its password."""
    user_info, at, rest = written.rpartition("@") if written.count("://") < 2 else ("", "", written)
    first, *others = rest.split(",")
    return [part.strip() for part in (f"{user_info}{at}{first}", *others)]


def _split(part: str, option: str) -> tuple[str, Login, str]:
    """Return scheme, credentials and place of one member; empty texts if they are missing."""
    scheme, separator, rest = part.partition("://")
    if not separator:
        scheme, rest = "", part
    if separator and scheme.lower() not in _SCHEMES:
        # Not shown: without `//` before it, a password may be what stands there.
        known = scheme if scheme.isalnum() else "…"
        raise ConfigError(f"{option}: it has the scheme {known!r}; expected http or https", hint=_FORMS)
    user_info, at, place = rest.rpartition("@")
    if at and not separator:
        raise ConfigError(f"{option}: it has a user, but no scheme", hint=f"https://USER:PASSWORD@HOST:{PORT}")
    username, _, password = user_info.partition(":")
    place, slash, path = place.partition("/")
    if slash and path.strip("/"):
        raise ConfigError(f"{option}: it has a path after the host; expected none", hint=_FORMS)
    return scheme.lower(), Login(username=unquote(username), password=unquote(password)), place
