"""The run's etcd and its credentials, from the endpoint and the options."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from elastic_core.api import ConfigError, OptionSpec, RendezvousSettings, WaitBudget
from elastic_core.api.stores import BackendRefusedError
from elastic_rdzv_etcd.url import Login, Target, Tls, parse_target

if TYPE_CHECKING:
    from elastic_rdzv_etcd.hosting.embedded import EmbeddedEtcd

OPTIONS: Final = (
    OptionSpec(name="username", help="etcd user; default: the user in the URL, else $ELASTIC_ETCD_USERNAME"),
    OptionSpec(name="password_file", help="file with the password, if the URL has none; read at each login"),
    OptionSpec(name="ca_cert", help="PEM file with the trusted authorities, for https://; default: the system's"),
    OptionSpec(name="cert", help="PEM file with this client's certificate, for https://"),
    OptionSpec(name="key", help="PEM file with the certificate's key, if it is not in `cert`"),
    OptionSpec(name="insecure", type="bool", default=False, help="trust any server, for https://; for tests"),
    OptionSpec(name="embedded", type="bool", default=False, help="run a private etcd, for agents on one machine"),
    OptionSpec(name="is_host", type="bool", help="whether this agent can run the etcd of embedded=true; default true"),
    OptionSpec(name="protocol", help="name in torch: https is the same as https:// in the endpoint; default http"),
    OptionSpec(name="cacert", help="name of ca_cert in torch"),
    OptionSpec(name="ssl_cert", help="name of cert in torch"),
    OptionSpec(name="ssl_cert_key", help="name of key in torch"),
)


class Reach:
    """The data for connections of a store. It connects to nothing, but starts an embedded etcd.

    Raises:
        ConfigError: the endpoint or an option can't be used.
    """

    def __init__(self, settings: RendezvousSettings, *, v2: bool = False) -> None:
        """Check endpoint and options; `v2`: an embedded etcd must serve the v2 API."""
        self.settings = settings
        self.embedded = _embedded(settings, v2=v2) if settings.options.get("embedded") else None
        self.target = Target(hosts=()) if self.embedded else self._named()
        self.tls = Tls(
            ca_cert=self.option("ca_cert", "cacert"),
            cert=self.option("cert", "ssl_cert"),
            key=self.option("key", "ssl_cert_key"),
            insecure=bool(settings.options.get("insecure")),
        )
        if self.tls != Tls() and not self.target.tls:
            place = "the run's own etcd" if self.embedded else str(self.target)
            raise ConfigError(
                f"options for TLS were given, but {place} is without TLS",
                hint=f"--rdzv-endpoint https://{'HOST:2379' if self.embedded else place}",
            )

    def option(self, *names: str) -> str:
        """Return an option by the first of its names that is given; empty if none is."""
        return next((str(value) for name in names if (value := self.settings.options.get(name))), "")

    def _named(self) -> Target:
        text = self.settings.endpoint
        protocol = self.option("protocol")
        if protocol not in ("", "http", "https"):
            raise ConfigError(f"--rdzv-conf protocol: {protocol!r}; expected http or https", hint="protocol=https")
        if protocol == "https" and text.strip() and "://" not in text:
            text = f"https://{text.strip()}"
        target = parse_target(text)
        return target._replace(tls=True) if protocol == "https" and not text.strip() else target

    @property
    def where(self) -> str:
        """Return `etcd at localhost:2379`."""
        if self.embedded is not None:
            return f"the run's own etcd at {self.settings.endpoint.strip() or 'localhost'}"
        return f"{self.settings.backend} at {self.target}" + (" (TLS)" if self.target.tls else "")

    def settle(self, wait: WaitBudget) -> bool:
        """Have an embedded etcd run. Return whether its address has changed.

        Raises:
            BackendError: it could not be started or found.
        """
        if self.embedded is None:
            return False
        before, self.target = self.target, parse_target(self.embedded.ensure(wait))
        return before != self.target

    def login(self) -> Login:
        """Return user and password, each from the URL, else from the options, else from the environment.

        Called: before each log-in.

        Raises:
            BackendRefusedError: the password's file can't be read.
        """
        own = self.target.login
        return Login(
            username=own.username or self.option("username") or os.environ.get("ELASTIC_ETCD_USERNAME", ""),
            password=own.password
            or _secret_of(self.option("password_file"))
            or os.environ.get("ELASTIC_ETCD_PASSWORD", ""),
        )

    @property
    def notices(self) -> Sequence[str]:
        """Lines for people about an embedded etcd."""
        return () if self.embedded is None else self.embedded.notices

    def close(self) -> None:
        """End an embedded etcd."""
        if self.embedded is not None:
            self.embedded.close()


def _embedded(settings: RendezvousSettings, *, v2: bool) -> "EmbeddedEtcd":
    from elastic_rdzv_etcd.hosting.embedded import EmbeddedEtcd  # brings what starts processes

    return EmbeddedEtcd(settings, v2=v2)


def _secret_of(path: str) -> str:
    """Return a file's text without its line end; empty without a file."""
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text in UTF-8"
        raise BackendRefusedError(
            f"cannot read password_file {path!r}: {reason}", hint="--rdzv-conf password_file=PATH"
        ) from error
