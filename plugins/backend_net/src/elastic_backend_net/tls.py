"""TLS and credentials for backends that make their sockets with `dial`, and texts for their failures.

`ssl` is imported at its first use: a backend chosen at start-up reads options first, and connects later.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from elastic_backend_net.interrupt import Interrupt
from elastic_core.api import Record, WaitBudget
from elastic_core.api.stores import BackendError, BackendRefusedError, BackendUnavailableError

if TYPE_CHECKING:
    import ssl

_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"})


class Login(Record, frozen=True, kw_only=True):
    """A user and a password that no text shows; empty means none."""

    username: str = ""
    """The user; empty means none."""
    password: str = ""
    """The password; empty means none."""

    def __repr__(self) -> str:
        """Return text that shows whether there is a password, but not the password."""
        return f"Login(username={self.username!r}, password={'***' if self.password else ''!r})"

    def hidden_in(self, text: str) -> str:
        """Return a server's text without the password."""
        return text.replace(self.password, "***") if self.password else text


class Tls(Record, frozen=True, kw_only=True):
    """The files with which a client trusts a server, and authenticates itself.

    Paths of PEM files; empty means the system's authorities, and no certificate. `insecure` trusts any server.
    """

    ca_cert: str = ""
    """The file with certificates to trust; empty means the system's."""
    cert: str = ""
    """The file with the client's certificate; empty means none."""
    key: str = ""
    """The file with its key; empty means that the key is in `cert`."""
    insecure: bool = False
    """Whether any server certificate is accepted."""


def tls_context(tls: Tls) -> "ssl.SSLContext":
    """Return the context that wraps sockets. The files are read each time, so that they may be renewed.

    Raises:
        BackendRefusedError: a file can't be used.
    """
    import ssl

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
    import ssl

    reason = error.strerror if error.strerror and not isinstance(error, ssl.SSLError) else "not a PEM file of that kind"
    return BackendRefusedError(
        f"cannot use {option} ({path}): {reason}", hint=f"--rdzv-conf {option.partition(' ')[0]}=PATH"
    )


def start_tls(
    sock: socket.socket,
    tls: Tls,
    *,
    host: str,
    peer: str,
    plain: str,
    timeout_s: float,
    interrupt: Interrupt,
    wait: WaitBudget,
) -> "ssl.SSLSocket":
    """Return a connected socket with TLS on it. The given socket is used up, also after a failure.

    Args:
        sock: The socket from `dial`.
        tls: The files.
        host: The name that the server's certificate must have.
        peer: Name of the server in texts.
        plain: Advice for a server without TLS (`http:// in place of https://`).
        timeout_s: Time limit of the handshake.
        interrupt: Interrupts the handshake when `wait` is cancelled.
        wait: The budget of the call.

    Raises:
        BackendUnavailableError, BackendRefusedError: the handshake failed, with the text of `tls_failure`.
        WaitCancelledError: from `wait`.

    Threading: blocks its caller.
    """
    import ssl

    sock.settimeout(max(0.001, timeout_s))
    context = tls_context(tls)
    failure: OSError
    try:
        # A server that has died since it was reached: wrapping would raise that, too, and leave a socket open.
        sock.getpeername()
        sock = wrapped = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
        with interrupt.by(wait, waker(wrapped)):
            wrapped.do_handshake()
    except OSError as error:
        failure = error
    else:
        return wrapped
    sock.close()
    if wait.cancelled:
        wait.check()
    if isinstance(failure, ssl.SSLError):
        raise tls_failure(failure, peer, plain=plain) from failure
    what = "no answer from {} in time" if isinstance(failure, TimeoutError) else "{} closed the connection"
    raise BackendUnavailableError(f"{what.format(peer)} during the TLS handshake", hint=plain) from failure


def waker(sock: socket.socket) -> Callable[[], None]:
    """Return a function with which another thread ends any blocked call on a socket."""

    def wake() -> None:
        with suppress(OSError):  # it is over already
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # TLS's own would take part in it

    return wake


def tls_failure(error: "ssl.SSLError", peer: str, *, plain: str) -> BackendError:
    """Return the error for a TLS failure, in the handshake or (because of a client's certificate) after it.

    `plain` as in `start_tls`.
    """
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message or "verification failed"
        return BackendRefusedError(
            f"the certificate of {peer} is not trusted: {reason}", hint="--rdzv-conf ca_cert=PATH, or its right name"
        )
    if error.reason in _NO_TLS:
        return BackendRefusedError(f"{peer} does not speak TLS", hint=plain)
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return BackendUnavailableError(f"{peer} closed the connection during the TLS handshake", hint=plain)
    reason = (error.reason or "refused").lower().replace("_", " ")
    return BackendRefusedError(f"{peer} refused TLS: {reason}", hint="--rdzv-conf cert=PATH,key=PATH of a client")
