"""python-etcd for library users; if it is missing, the error is one line."""

import importlib
from typing import Any, Final

from elastic_core.api import PluginError
from elastic_core.api.rendezvous import RendezvousConnectionError
from elastic_torchrun.rendezvous.endpoint import parse_rendezvous_endpoint
from elastic_torchrun.rendezvous.parameters import RendezvousParameters

DEFAULT_PORT: Final = 2379
_READ_TIMEOUT_S: Final = 60


def import_etcd() -> Any:  # noqa: ANN401  # has no types
    """Return the module of python-etcd.

    Raises:
        PluginError: it is not installed.
    """
    try:
        module = importlib.import_module("etcd")
        assert module.Client is not None
    except (ImportError, AttributeError) as error:  # a folder of that name is a module, too
        raise PluginError(
            f"etcd's v2 API needs python-etcd, which can't be imported ({error})",
            hint="pip install 'python-etcd>=0.4.5,<0.5'",
        ) from error
    return module


def troubles(etcd: Any) -> tuple[type[Exception], ...]:  # noqa: ANN401  # the module
    """Return the exceptions of a client for a server that can't be reached, or does not respond."""
    http: type[Exception] = importlib.import_module("urllib3.exceptions").HTTPError  # python-etcd lets some through
    return etcd.EtcdException, http, OSError


def import_plugin() -> Any:  # noqa: ANN401  # the plugin's module
    """Return the module of the distribution with the etcd backends.

    Raises:
        PluginError: it is not installed.
    """
    try:
        return importlib.import_module("elastic_rdzv_etcd")  # the plugin that has the server of torch's name
    except ImportError as error:
        raise PluginError(
            f"the etcd backends are in elastic-rdzv-etcd, which can't be imported ({error})",
            hint="pip install -r sets/etcd.txt, in a checkout of elastic-core",
        ) from error


def make_client(params: RendezvousParameters) -> Any:  # noqa: ANN401  # python-etcd's
    """Return a client of etcd's v2 API.

    Its options are `read_timeout` (seconds, default 60), `protocol` (`http`, `https`), `ssl_cert`, `ssl_cert_key` and
    `ca_cert` (paths).

    Raises:
        ValueError: an option is invalid.
        RendezvousConnectionError: the server can't be reached.
        PluginError: python-etcd is not installed.
    """
    etcd = import_etcd()
    host, port = parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)
    timeout_s = params.get_as_int("read_timeout", _READ_TIMEOUT_S) or 0
    if timeout_s <= 0:
        raise ValueError(f"rendezvous option read_timeout={timeout_s}; expected seconds, more than 0")
    protocol = str(params.get("protocol", "http")).strip().lower()
    if protocol not in ("http", "https"):
        raise ValueError(f"rendezvous option protocol: {protocol!r}; expected http or https")
    cert, key = params.get("ssl_cert"), params.get("ssl_cert_key")
    try:
        return etcd.Client(
            host,
            port,
            read_timeout=timeout_s,
            protocol=protocol,
            cert=(cert, key) if cert and key else cert,
            ca_cert=params.get("ca_cert"),
            allow_reconnect=True,
        )
    except troubles(etcd) as error:
        raise RendezvousConnectionError(f"etcd at {host}:{port} can't be reached: {error}") from error
