"""TLS on a connection to etcd: the core's, with what to do here about a server that has none."""

from functools import partial
from typing import Final

from elastic_core.api import start_tls
from elastic_core.api import tls_failure as failure_of_tls

PLAIN: Final = "http:// in place of https://"

begin_tls = partial(start_tls, plain=PLAIN)
tls_failure = partial(failure_of_tls, plain=PLAIN)
