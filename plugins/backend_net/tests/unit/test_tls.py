"""What a failure of TLS means, what files are refused, and that a login shows no password."""

import pickle
import ssl

import pytest

from elastic_backend_net.tls import Login, Tls, tls_context, tls_failure
from elastic_core.api.stores import BackendRefusedError, BackendUnavailableError

PLAIN = "http:// in place of https://"


def failure(kind, reason=None):
    error = kind(1, "whatever OpenSSL says")
    error.reason = reason
    return tls_failure(error, "h:1", plain=PLAIN)


@pytest.mark.parametrize(
    ("kind", "reason", "means", "seen", "hint"),
    [
        (ssl.SSLError, "WRONG_VERSION_NUMBER", BackendRefusedError, "h:1 does not speak TLS", PLAIN),
        (ssl.SSLEOFError, None, BackendUnavailableError, "h:1 closed the connection", PLAIN),
        (ssl.SSLError, "TLSV13_ALERT_CERTIFICATE_REQUIRED", BackendRefusedError, "certificate required", "cert=PATH"),
        (ssl.SSLError, None, BackendRefusedError, "h:1 refused TLS: refused", "cert=PATH"),
    ],
)
def test_what_a_failure_means(kind, reason, means, seen, hint):
    error = failure(kind, reason)
    assert type(error) is means
    assert seen in str(error)
    assert hint in error.hint


def test_a_certificate_that_is_not_trusted():
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_message = "Hostname mismatch"
    told = tls_failure(error, "h:1", plain=PLAIN)
    assert isinstance(told, BackendRefusedError)
    assert "the certificate of h:1 is not trusted: Hostname mismatch" in str(told)
    assert "ca_cert=PATH" in told.hint


def test_files_that_cant_be_used_are_named(tmp_path):
    text = tmp_path / "text"
    text.write_text("no certificate")
    for tls, seen in (
        (Tls(ca_cert=str(tmp_path / "none")), "cannot use ca_cert"),
        (Tls(ca_cert=str(text)), "not a PEM file"),
        (Tls(cert=str(text)), "cannot use cert and key"),
    ):
        with pytest.raises(BackendRefusedError, match=seen) as caught:
            tls_context(tls)
        assert str(tmp_path) in str(caught.value)
        assert caught.value.hint


def test_whom_a_context_trusts():
    assert tls_context(Tls()).verify_mode is ssl.CERT_REQUIRED
    assert tls_context(Tls()).check_hostname
    assert tls_context(Tls(insecure=True)).verify_mode is ssl.CERT_NONE


def test_a_login_shows_no_password():
    login = Login(username="me", password="hunter2")
    assert "hunter2" not in f"{login} {login!r} {[login]}"
    assert repr(Login()) == "Login(username='', password='')"
    assert login.hidden_in("AUTH me hunter2") == "AUTH me ***"
    assert Login().hidden_in("as it is") == "as it is"
    assert pickle.loads(pickle.dumps(login)) == login
