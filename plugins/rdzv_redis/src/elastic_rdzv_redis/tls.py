"""TLS on a connection to Redis, by elastic-backend-net, with advice for a server without TLS."""

from functools import partial
from typing import Final

from elastic_backend_net.tls import start_tls
from elastic_backend_net.tls import tls_failure as failure_of_tls

PLAIN: Final = "redis:// in place of rediss://"

begin_tls = partial(start_tls, plain=PLAIN)
tls_failure = partial(failure_of_tls, plain=PLAIN)
