"""What a Redis server that refuses a client makes of a connection."""

import traceback

import pytest

from elastic_core.api.stores import BackendRefusedError, Topic

ALL = tuple(Topic)
SECRET = "hunter2-of-the-test"


def enlist(store, wait, name="a"):
    return store.enlist(b"record", incarnation=name, ttl_s=30, wait=wait)


def refused(store, wait, secret=SECRET):
    """Return the text of a refusal; no form of it shows the secret."""
    with pytest.raises(BackendRefusedError) as caught:
        enlist(store, wait)
    error = caught.value
    assert error.hint
    assert secret not in "".join([str(error), repr(error), *traceback.format_exception(error)])
    assert "\n" not in str(error)
    return str(error)
