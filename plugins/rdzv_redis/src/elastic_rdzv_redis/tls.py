"""TLS on a connection to Redis, by elastic-backend-net, with advice for a server without TLS."""

import sys
from functools import partial
from typing import Final

from elastic_backend_net.tls import start_tls
from elastic_backend_net.tls import tls_failure as failure_of_tls
from elastic_core.api.stores import BackendError

PLAIN: Final = "redis:// in place of rediss://"

begin_tls = partial(start_tls, plain=PLAIN)
tls_failure = partial(failure_of_tls, plain=PLAIN)


def failure_in_tls(error: Exception, peer: str) -> BackendError | None:
    """Return the core's error for an error of TLS; `None` for any other, and for a connection that has only ended."""
    ssl = sys.modules.get("ssl")  # a connection without TLS does not import it
    if ssl is None or not isinstance(error, ssl.SSLError):
        return None
    return None if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) else tls_failure(error, peer)


def would_block(error: OSError) -> bool:
    """Return whether an error of a socket that does not block means that nothing has arrived."""
    ssl = sys.modules.get("ssl")
    return isinstance(error, BlockingIOError) or (ssl is not None and isinstance(error, ssl.SSLWantReadError))
