"""What somebody else has written into a run's keys: one line that names the key, and no more memory than ours takes."""

import base64
import subprocess
import uuid
import zlib

import pytest

from foreign_content import VALUES, begin, errors, is_refused
from support import ELASTIC

# --- on a server


@pytest.fixture
def write(etcd_server):
    """Put bytes under a key, as etcdctl would."""

    def put(key, value):
        body = {"key": base64.b64encode(key).decode(), "value": base64.b64encode(value).decode()}
        etcd_server.call("kv/put", body)

    return put


@pytest.fixture
def run_id():
    """A short one: begun watches fit into one read of the server's."""
    return uuid.uuid4().hex[:8]


@pytest.fixture
def begun(make_store, etcd_server):
    """Begin a run; give a store that knows it, one that does not, and the seat."""
    live = make_store(etcd_server.endpoint)
    seat = begin(live)
    return live, make_store(etcd_server.endpoint), seat


def stored(value):
    """Return what is written for a value: the largest only packed, a server takes no request as long."""
    raw = VALUES[value]
    return b"z" + zlib.compress(raw, 1) if len(raw) > 1 << 20 else raw


KEYS = ("told/birth", "told/keep", "told/control", "told/departures", "told/round", "told.members")
KEYS = (*KEYS, "member/a", "told0control/value", "told0control/version", "told0round/value", "told0round/version")
TAKEN = {
    # What is only compared may be any text, and a revision any number.
    *(
        (key, value)
        for key in KEYS
        for value in ("rubbish", "a number out of range")
        if key.endswith(("birth", "version"))
    ),
    *((key, "a number out of range") for key in KEYS if key.startswith("told") and key != "told/keep"),
}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_a_live_run(begun, write, key, value):
    live, new, seat = begun
    whole = live._keys.base + key.encode()
    write(whole, stored(value))
    for store in (live, new):
        found = errors(store, seat)
        assert is_refused(found, whole.decode()) or (key, value) in TAKEN, found
        write(whole, stored(value))  # an update has put it in order


@pytest.mark.parametrize("folder", ["member/", "alive/"])
def test_a_name_that_is_not_utf_8(begun, write, folder):
    live, new, seat = begun
    write(live._keys.base + folder.encode() + b"\xff\xfe", b"=rubbish")
    for store in (live, new):
        found = errors(store, seat)
        assert is_refused(found, live._keys.base.decode() + folder) or folder == "alive/", found


def test_a_node_that_would_join_says_so_in_one_line(begun, write, etcd_server, run_id, tmp_path):
    live, _, _ = begun
    write(live._keys.birth, b"\xff\xfe")
    done = subprocess.run(
        [*ELASTIC, "--rdzv-backend", "etcd", "--rdzv-endpoint", etcd_server.endpoint, "--rdzv-id", run_id,
         "--nnodes", "2", "--no-python", "true"],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    (line,) = done.stderr.splitlines()
    key = live._keys.birth.decode()
    assert f"the run's content has something that this version did not write, at key {key!r}. Try: another" in line
