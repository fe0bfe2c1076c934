"""What somebody else has put under a run's keys: one line that names the key, and no more memory than ours takes."""

import subprocess
import tracemalloc

import pytest
import redis

from foreign_content import VALUES, begin, errors, is_refused
from support import ELASTIC

PARTS = ("state", "seats", "leases", "records")
TAKEN = {
    # What is only compared may be any text; a revision that only a swap counts on, or a clock's time, any number.
    *((field, value) for field in ("birth", "version:round") for value in ("rubbish", "a number out of range")),
    *((field, "a number out of range") for field in ("heard", "kept", "revision:round")),
    *(("ttl", value) for value in VALUES),  # each renewal writes it anew
}
FIELDS = ("birth", "seat", "heard", "ttl", "keep", "kept", "revision:members", "revision:round", "value:control")
FIELDS = (*FIELDS, "value:round", "version:round")


@pytest.fixture
def client(redis_server):
    with redis.Redis(host=redis_server.host, port=redis_server.port) as client:
        yield client


@pytest.fixture
def begun(make_store, redis_server):
    """Begin a run of this name; give a store that knows it, one that does not, and the seat."""

    def begin_one(name):
        live = make_store(redis_server.endpoint, run=name)
        seat = begin(live)
        return live, make_store(redis_server.endpoint, run=name), seat

    return begin_one


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_the_state(begun, client, field):
    for name, value in VALUES.items():
        *stores, seat = begun(name)
        client.hset(stores[0]._keys[0], field, value)
        for store in stores:
            found = errors(store, seat)
            assert is_refused(found, f"elastic:{{{name.replace(' ', '%20')}}}:") or (field, name) in TAKEN, (
                name,
                found,
            )


@pytest.mark.parametrize("part", PARTS)
def test_a_key_of_another_kind(begun, client, part):
    *stores, seat = begun("r")
    client.set(f"elastic:{{r}}:{part}", b"rubbish")
    for store in stores:
        assert is_refused(errors(store, seat), "elastic:{r}:*")


@pytest.mark.parametrize("value", VALUES)
def test_a_members_record(begun, client, value):
    *stores, seat = begun("r")
    client.hset("elastic:{r}:records", "a", VALUES[value])
    for store in stores:
        found = errors(store, seat)
        assert "members" in found
        assert is_refused({"members": found["members"]}, "elastic:{r}:*")
        client.hset("elastic:{r}:records", "a", VALUES[value])  # which the update has put in order


@pytest.mark.parametrize(("name", "score"), [(b"\xff\xfe", 7), (b"x", 1.5), (b"x", "inf")])
def test_a_seat(begun, client, name, score):
    *stores, seat = begun("r")
    client.zadd("elastic:{r}:seats", {name: score})
    for store in stores:
        found = errors(store, seat)
        assert is_refused({"members": found["members"]}, "elastic:{r}:seats")


def test_what_is_too_large_stays_on_the_server(begun, client):
    live, new, seat = begun("r")
    client.hset("elastic:{r}:state", "value:control", VALUES["32 MiB"])
    errors(live, seat)  # imports what is needed
    tracemalloc.start()
    try:
        assert is_refused(errors(new, seat), "elastic:{r}:*")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("field", "value"), [("revision:control", "not UTF-8"), ("value:control", "32 MiB")])
def test_a_node_that_would_join_says_so_in_one_line(begun, client, redis_server, tmp_path, field, value):
    begun("r")
    client.hset("elastic:{r}:state", field, VALUES[value])
    done = subprocess.run(
        [*ELASTIC, "--rdzv-backend", "redis", "--rdzv-endpoint", redis_server.endpoint, "--rdzv-id", "r",
         "--nnodes", "2", "--no-python", "true"],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    (line,) = done.stderr.splitlines()
    assert "the run's content has something that this version did not write, at key 'elastic:{r}:" in line
    assert line.endswith("Try: another --rdzv-id")
