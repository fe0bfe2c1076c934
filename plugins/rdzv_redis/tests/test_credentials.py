"""How a run's own store is protected: what its host makes, how others find it, and what each user may do there."""

import os
import socket
import subprocess
import threading
from contextlib import suppress

import msgspec
import pytest

from elastic_core.api import ConfigError, RendezvousSettings, WaitBudget
from elastic_core.api.stores import BackendRefusedError, BackendUnavailableError
from elastic_rdzv_redis import credentials, embedded
from elastic_rdzv_redis.credentials import FOLDER_VARIABLE, PROOF, SEALED, SOURCE, STEP_VARIABLE, TOKEN_VARIABLE
from elastic_rdzv_redis.embedded import EmbeddedStore
from elastic_rdzv_redis.munge import MungeError, sealed, unsealed
from elastic_rdzv_redis.public import USER, read_public
from elastic_rdzv_redis.server import find_program
from elastic_rdzv_redis.talk import Talk
from patience import patience
from ports import free_port
from support import lacks

LOCAL = "127.0.0.1"
MUNGE = """#!/bin/sh
[ "$1 $2" = "--restrict-uid {uid}" ] || exit 9
printf 'MUNGE:'; base64 -w0; echo :
"""
UNMUNGE = """#!/bin/sh
printf 'STATUS:          Replayed credential (17)\\nUID:             {uid}\\nLENGTH:          1\\n\\n'
sed 's/^MUNGE://; s/:$//' | base64 -d
exit 17
"""


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch, tmp_path):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    monkeypatch.setenv(STEP_VARIABLE, "0")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "secrets"))
    monkeypatch.setattr(embedded, "_OTHERS_GRACE_S", 0.0)
    try:
        program = find_program()
    except ConfigError:
        lacks("redis-server", install="apt-get install redis-server")
    monkeypatch.setattr(embedded, "find_program", lambda: program)
    (tmp_path / "bin").mkdir()
    for name in ("sh", "sed", "base64", "cat"):
        (tmp_path / "bin" / name).symlink_to(subprocess.check_output(["which", name], text=True).strip())
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.fixture
def munge(tmp_path):
    """Return what installs a MUNGE that keeps its promises badly: it shows on whose behalf a credential was made."""

    def munge(uid=None):
        uid = os.geteuid() if uid is None else uid
        for name, text in (("munge", MUNGE), ("unmunge", UNMUNGE)):
            (tmp_path / "bin" / name).write_text(text.format(uid=uid))
            (tmp_path / "bin" / name).chmod(0o755)

    return munge


@pytest.fixture
def make():
    port, made = free_port(LOCAL), []

    def make(*, is_host, run_id="4711.0", member=True, **options):
        known = {spec.name: spec.default for spec in EmbeddedStore.options}
        about = {"incarnation": os.urandom(16).hex(), "job": "slurm 4711", "attempt_given": True} if member else {}
        settings = RendezvousSettings(
            backend="c10d",
            run_id=run_id,
            endpoint=f"{LOCAL}:{port}",
            max_nodes=2,
            options=known | {"is_host": is_host} | options,
            **about,
        )
        made.append(EmbeddedStore(settings))
        return made[-1]

    make.port = port
    yield make
    for store in reversed(made):
        store.close()


def connect(store):
    store.connect(wait=WaitBudget.lasting(patience(20)))
    return store


def refused(store, kind=BackendRefusedError):
    with pytest.raises(kind) as caught:
        connect(store)
    return str(caught.value)


def elsewhere(monkeypatch, tmp_path, name="elsewhere"):
    """Have what begins from now on see another folder."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / name))


def no_folder(monkeypatch, tmp_path):
    """Have what begins from now on see a folder that can't be used."""
    (tmp_path / "open").mkdir(exist_ok=True)
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "open"))


def public(make):
    with Talk(LOCAL, make.port, timeout_s=5.0, wait=WaitBudget.lasting(patience(20))) as talk:
        return read_public(talk)[1]


def files(tmp_path):
    return list((tmp_path / "secrets").iterdir())


def open_passwords():
    """Return all that follows from what everybody knows."""
    return {credentials.derive_password(run_id, "") for run_id in ("4711.0", "4711", "", "0")}


# --- a secret that the host makes


def test_by_a_file_that_both_see(make, tmp_path):
    host = connect(make(is_host=True))
    guest = connect(make(is_host=False))
    assert host._credentials.password == guest._credentials.password
    assert host._credentials.password not in open_passwords()
    assert len(files(tmp_path)) == 1
    assert not host.notices
    host.close()
    assert not files(tmp_path)


def test_two_runs_have_two_secrets(make):
    host = connect(make(is_host=True))
    first = host._credentials.password
    host.close()
    assert connect(make(is_host=True))._credentials.password != first


def test_a_command_of_the_user_finds_it(make, monkeypatch):
    connect(make(is_host=True))
    monkeypatch.delenv(STEP_VARIABLE)  # on the login host
    connect(make(is_host=False, member=False))


def test_a_command_of_the_user_finds_it_by_munge(make, monkeypatch, tmp_path, munge):
    munge()
    connect(make(is_host=True))
    monkeypatch.delenv(STEP_VARIABLE)
    elsewhere(monkeypatch, tmp_path)
    connect(make(is_host=False, member=False))
    connect(make(is_host=False, member=False))  # though it was read on this host before


def test_another_user_does_not(make, monkeypatch, tmp_path, munge):
    connect(make(is_host=True))
    monkeypatch.delenv(STEP_VARIABLE)
    elsewhere(monkeypatch, tmp_path)
    text = refused(make(is_host=False, member=False))
    theirs = f"made of the secret in the file {tmp_path / 'secrets'}/4711.0@slurm%204711.0.{make.port}"
    ours = f"no file of the run in {tmp_path / 'elsewhere'}"
    assert f"{theirs}; on this node: {ours}. Try: the run's --rdzv-id and user, and a folder" in text


def test_a_command_that_names_another_run_of_the_job_is_hinted_at_the_runs_id(make, monkeypatch):
    connect(make(is_host=True, run_id="bert"))
    monkeypatch.delenv(STEP_VARIABLE)
    text = refused(make(is_host=False, member=False, run_id="4711.0"))
    assert "not by run '4711.0'" in text
    assert "Try: the run's --rdzv-id and user, and " in text


def test_by_munge_where_no_folder_is_shared(make, monkeypatch, tmp_path, munge):
    munge()
    host = connect(make(is_host=True))
    elsewhere(monkeypatch, tmp_path)
    guest = connect(make(is_host=False))
    assert guest._credentials.password == host._credentials.password


def test_by_munge_alone(make, monkeypatch, tmp_path, munge):
    munge()
    no_folder(monkeypatch, tmp_path)
    host = connect(make(is_host=True))
    guest = connect(make(is_host=False))
    assert guest._credentials.password == host._credentials.password not in open_passwords()
    assert not host.notices
    assert public(make)[SOURCE] == "the secret from munge"


def test_a_credential_that_another_user_has_made_is_not_taken(make, monkeypatch, tmp_path, munge):
    munge()
    connect(make(is_host=True))
    munge(os.geteuid() + 1)
    elsewhere(monkeypatch, tmp_path)
    text = refused(make(is_host=False))
    assert "or from munge; on this node: " in text
    assert "another user has made the credential. Try: " in text


def test_a_credential_of_another_run_is_not_taken(make, monkeypatch, tmp_path, munge):
    munge()
    host = connect(make(is_host=True, run_id="4711.1"))
    elsewhere(monkeypatch, tmp_path)
    guest = make(is_host=False)
    assert not guest._credentials.choose(public(make), make.port)
    assert host._credentials.choose(public(make), make.port) == host._credentials.password
    assert not host._credentials.choose(public(make), make.port + 1)
    assert "from munge; on this node: no file of the run in" in refused(guest)


def test_two_nodes_without_anything_in_common_end_with_a_line_that_names_both(make, monkeypatch, tmp_path):
    connect(make(is_host=True))
    elsewhere(monkeypatch, tmp_path)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    assert refused(make(is_host=False)) == (
        f"c10d at {LOCAL}:{make.port}: port {make.port} is in use by a store of another run or user, "
        "protected by another password, not by run '4711.0': its password is made of the secret in the file "
        f"{tmp_path / 'secrets'}/4711.0@slurm%204711.0.{make.port}; on this node: no file of the run in "
        f"{tmp_path / 'elsewhere'}. Try: the run's --rdzv-id and user, and a folder that all its hosts share in "
        "$ELASTIC_C10D_SECRETS, or the same token in $ELASTIC_C10D_TOKEN or token_file"
    )


def test_a_token_of_one_node_alone_is_a_line_that_names_both(make, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "s3cret")
    host = connect(make(is_host=True))
    connect(make(is_host=False))
    monkeypatch.delenv(TOKEN_VARIABLE)
    text = refused(make(is_host=False))
    assert "its password is made of $ELASTIC_C10D_TOKEN; on this node: no file of the run in" in text
    host.close()
    connect(make(is_host=True))
    monkeypatch.setenv(TOKEN_VARIABLE, "s3cret")
    text = refused(make(is_host=False))
    assert "its password is made of the secret in the file" in text
    assert "; on this node: $ELASTIC_C10D_TOKEN. Try: " in text
    assert "s3cret" not in text


def test_a_run_that_is_open_is_a_line(make, monkeypatch, tmp_path):
    no_folder(monkeypatch, tmp_path)
    host = connect(make(is_host=True))
    connect(make(is_host=False))
    (line,) = host.notices
    assert line == (
        "any user who reaches this node can read and stop run '4711.0': its store has no secret (folder "
        f"{tmp_path / 'open'} can be written by other users (mode 0777); munge: No such file or directory). Try: "
        "export ELASTIC_C10D_TOKEN=$(openssl rand -hex 32) before the job is submitted, or --rdzv-conf token_file=PATH"
    )


def test_a_node_that_has_a_source_does_not_join_an_open_store(make, monkeypatch, tmp_path):
    no_folder(monkeypatch, tmp_path)
    connect(make(is_host=True))
    elsewhere(monkeypatch, tmp_path)
    text = refused(make(is_host=False))
    assert "its password is made of the run's id alone; on this node: " in text
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("wanted", [True, False])
def test_outside_slurm_a_secret_is_made_on_demand(make, monkeypatch, tmp_path, wanted):
    monkeypatch.delenv(STEP_VARIABLE)
    host = connect(make(is_host=True, make_secret=wanted or None))
    connect(make(is_host=False, make_secret=wanted or None))
    assert (host._credentials.password in open_passwords()) is not wanted
    assert (tmp_path / "secrets").exists() is wanted
    assert not host.notices


def test_a_host_that_is_begun_again_has_another_secret_and_its_guests_find_it(make, tmp_path):
    killed = connect(make(is_host=True))
    guest = connect(make(is_host=False))
    killed._server.stop()  # its agent is killed, too: its file stays
    host = connect(make(is_host=True))
    before, killed._server = guest._credentials.password, None
    connect(guest)
    assert guest._credentials.password == host._credentials.password != before
    assert guest.load("key", wait=WaitBudget.lasting(patience(20))) is None


def test_a_server_that_died_is_begun_again_with_the_same_secret(make, monkeypatch, tmp_path, munge):
    munge()
    host = connect(make(is_host=True))
    guest = connect(make(is_host=False))
    before = (guest._credentials.password, public(make))
    host._server.stop()
    (tmp_path / "bin" / "munge").unlink()
    (tmp_path / "secrets").chmod(0o777)  # no source is left
    for store in (host, guest):
        connect(store)
    assert (guest._credentials.password, public(make)) == before
    assert not host.notices


def test_a_credential_of_an_earlier_attempt_is_for_commands_alone(make, monkeypatch, tmp_path, munge):
    munge()
    host = connect(make(is_host=True))
    elsewhere(monkeypatch, tmp_path)
    shown, later = public(make), make(is_host=False)
    later._credentials._settings = msgspec.structs.replace(later.settings, attempt=1)
    assert not later._credentials.choose(shown, make.port)
    command = make(is_host=False, member=False)
    assert command._credentials.choose(shown, make.port) == host._credentials.password


@pytest.mark.parametrize("shown", ["nothing", "what the host showed before", "open", "a source without a secret"])
def test_a_process_that_has_taken_the_port_is_shown_no_password_and_not_joined(make, monkeypatch, munge, shown):
    munge()
    host = connect(make(is_host=True))
    guest = connect(make(is_host=False))
    secret_of = {"nothing": {}, "open": {SOURCE: credentials.OPEN}, "a source without a secret": {SOURCE: "the secret"}}
    recorded = public(make) | {PROOF: "0" * 64}
    host._server.stop()
    seen = []
    pairs = [word for pair in secret_of.get(shown, recorded).items() for word in pair]
    with socket.create_server((LOCAL, make.port)) as taken:
        listing = f"*{len(pairs)}\r\n" + "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in pairs)

        def say_yes():
            with suppress(ConnectionError), taken.accept()[0] as connection:  # it may hang up in the middle of a reply
                while words := connection.recv(4096):
                    seen.append(words)
                    connection.sendall(listing.encode() if b"HGETALL" in words else b"+OK\r\n")

        accepting = threading.Thread(target=say_yes)
        accepting.start()
        refused(guest)
        accepting.join()
    passwords = {guest._credentials.password, host._credentials.password} - {""}
    assert passwords
    assert not [words for words in seen for each in passwords if each.encode() in words]
    host._server = None


def test_no_file_is_there_before_the_port_is_the_hosts(make, tmp_path):
    with subprocess.Popen(
        [embedded.find_program(), "--port", str(make.port), "--bind", LOCAL, "--save", "", "--requirepass", "x"],
        stdout=subprocess.DEVNULL,
    ) as taken:
        try:
            with Talk(LOCAL, make.port, timeout_s=5.0, wait=WaitBudget()) if _up(make.port) else None as talk:
                assert talk.ask("PING") == b"-NOAUTH Authentication required."
            refused(make(is_host=True))
            assert not (tmp_path / "secrets").exists() or not files(tmp_path)
        finally:
            taken.kill()


def _up(port):
    wait = WaitBudget.lasting(patience(20))
    while True:
        try:
            Talk(LOCAL, port, timeout_s=1.0, wait=wait).__exit__()
        except BackendUnavailableError:
            wait.sleep(0.02)
        else:
            return True


# --- what each user of the server may do


@pytest.fixture
def talk(make):
    talks = []

    def talk(*login):
        talks.append(Talk(LOCAL, make.port, timeout_s=5.0, wait=WaitBudget.lasting(patience(20))))
        assert not login or talks[-1].ask("AUTH", *login) == b"+OK"
        return talks[-1].ask

    yield talk
    for each in talks:
        each.__exit__()


HARMFUL = [
    ("CONFIG", "SET", "requirepass", "x"),
    ("CONFIG", "GET", "dir"),
    ("REPLICAOF", "192.0.2.1", "1"),
    ("SHUTDOWN",),
    ("BGREWRITEAOF",),
    ("ACL", "LIST"),
    ("SAVE",),
    ("FLUSHALL",),
    ("KEYS", "*"),
    ("MONITOR",),
    ("CLIENT", "LIST"),
    ("MODULE", "LIST"),
    ("SCRIPT", "FLUSH"),
    ("SET", "elastic:x", "1"),
]


def test_nobody_has_a_command_without_a_password(make, talk):
    connect(make(is_host=True))
    for words in [*HARMFUL, ("PING",), ("HGETALL", "elastic:public")]:
        assert talk()(*words).startswith(b"-NOAUTH")
    for password in ("", "x", *open_passwords()):
        for user in ("default", USER):
            assert talk()("AUTH", user, password).startswith(b"-WRONGPASS")


def test_the_runs_user_has_what_the_driver_needs(make, talk):
    host = connect(make(is_host=True))
    ask = talk(USER, host._credentials.password)
    for words in HARMFUL:
        assert ask(*words).startswith(b"-NOPERM"), words
        script = "return redis.call(" + ", ".join(f"'{word}'" for word in words) + ")"
        assert ask("EVAL", script, "0").startswith(b"-"), words
    assert ask("HGETALL", "other").startswith(b"-NOPERM")
    assert ask("PING") == b"+PONG"


def test_anybody_may_read_how_it_is_protected_and_no_more(make, talk, munge):
    munge()
    host = connect(make(is_host=True))
    ask = talk("public", "anything")
    shown = ask("HGETALL", "elastic:public")
    assert shown[::2] == [SOURCE.encode(), SEALED.encode(), PROOF.encode()]
    assert all(host._credentials.password.encode() not in each for each in shown)
    for words in [*HARMFUL, ("PING",), ("HGETALL", "elastic:{4711.0}:state"), ("EVAL", "return 1", "0")]:
        assert ask(*words).startswith(b"-NOPERM"), words
    assert ask("HSET", "elastic:public", SOURCE, "mine").startswith(b"-NOPERM")


def test_what_a_strange_host_shows_is_cleaned(make, monkeypatch):
    guest = make(is_host=False)
    assert "\x1b" not in guest._credentials.difference({SOURCE: "\x1b[2J" + "x" * 900})
    assert len(guest._credentials.difference({SOURCE: "x" * 900})) < 400
    assert guest._credentials.difference({}) == ""


# --- munge itself


def test_a_munge_that_is_not_there_says_so(munge, tmp_path):
    with pytest.raises(MungeError, match="munge: No such file or directory"):
        sealed("text")
    munge()
    assert unsealed(sealed("some\n\ntext")) == "some\n\ntext"
    (tmp_path / "bin" / "munge").write_text("#!/bin/sh\necho 'munge: Error: Failed to access socket' >&2; exit 6\n")
    with pytest.raises(MungeError, match=r"^munge: Failed to access socket$"):
        sealed("text")
