"""TLS on a connection to etcd: that of elastic-backend-net, with what to do here about a server that has none."""

from functools import partial
from typing import Final

from elastic_backend_net.tls import start_tls
from elastic_backend_net.tls import tls_failure as failure_of_tls

PLAIN: Final = "http:// in place of https://"

begin_tls = partial(start_tls, plain=PLAIN)
tls_failure = partial(failure_of_tls, plain=PLAIN)
