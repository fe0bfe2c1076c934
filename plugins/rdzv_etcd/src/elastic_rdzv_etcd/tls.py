"""TLS on a connection, and what its failures mean."""

import ssl

from elastic_core.api import BackendError, BackendRefusedError, BackendUnavailableError
from elastic_rdzv_etcd.url import Tls

_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"})


def context_of(tls: Tls) -> ssl.SSLContext:
    """Return what wraps sockets; the files are read anew, so that they may be renewed.

    Raises:
        BackendRefusedError: a file can't be used.
    """
    try:
        context = ssl.create_default_context(cafile=tls.ca_cert or None)
    except OSError as error:
        raise _unusable("ca_cert", tls.ca_cert, error) from error
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert:
        try:
            # An empty pass phrase: OpenSSL would ask for one on the terminal.
            context.load_cert_chain(tls.cert, tls.key or None, password="")
        except OSError as error:
            raise _unusable("cert and key", f"{tls.cert}, {tls.key or tls.cert}", error) from error
    return context


def _unusable(option: str, path: str, error: OSError) -> BackendRefusedError:
    reason = error.strerror if error.strerror and not isinstance(error, ssl.SSLError) else "not a PEM file of that kind"
    return BackendRefusedError(
        f"cannot use {option} ({path}): {reason}", hint=f"--rdzv-conf {option.partition(' ')[0]}=PATH"
    )


def tls_failure(error: ssl.SSLError, peer: str) -> BackendError:
    """Return what a failure of TLS, in the handshake or (of a client's certificate) after it, means."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message or "verification failed"
        return BackendRefusedError(
            f"the certificate of {peer} is not trusted: {reason}", hint="--rdzv-conf ca_cert=PATH, or its right name"
        )
    if error.reason in _NO_TLS:
        return BackendRefusedError(f"{peer} does not speak TLS", hint="http:// in place of https://")
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return BackendUnavailableError(f"{peer} closed the connection during the TLS handshake")
    reason = (error.reason or "refused").lower().replace("_", " ")
    return BackendRefusedError(f"{peer} refused TLS: {reason}", hint="--rdzv-conf cert=PATH,key=PATH of a client")
