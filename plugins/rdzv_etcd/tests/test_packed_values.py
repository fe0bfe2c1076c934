"""What the keys of a run hold is packed and unpacked; what this version did not write is refused by its key."""

import zlib

import pytest

from elastic_core.api.stores import BackendRefusedError
from elastic_rdzv_etcd import messages
from elastic_rdzv_etcd.content import Content
from elastic_rdzv_etcd.messages import Keys

KEY = b"/elastic/r/doc/round/"


@pytest.mark.parametrize("length", [0, 1, 5_000, messages.LARGEST_BYTES])
def test_what_was_packed_is_unpacked(length):
    value = bytes(length)
    assert messages.unpack(messages.pack(value), KEY) == value


@pytest.mark.parametrize(
    "stored",
    [b"", b"rubbish", b"zrubbish", b"z" + zlib.compress(b"cut off" * 1000)[:-5]],
    ids=["nothing", "no mark", "not packed", "cut off"],
)
def test_what_is_not_ours_is_one_line_that_names_the_key(stored):
    with pytest.raises(BackendRefusedError) as caught:
        messages.unpack(stored, KEY)
    assert str(caught.value) == (
        "the run's content has something that this version did not write, at key '/elastic/r/doc/round/'. "
        "Try: another --rdzv-id"
    )


def test_a_small_value_does_not_unpack_to_a_large_one(monkeypatch):
    monkeypatch.setattr(messages, "LARGEST_BYTES", 1 << 20)
    with pytest.raises(BackendRefusedError, match="did not write"):
        messages.unpack(b"z" + zlib.compress(bytes(20 << 20), 9), KEY)


@pytest.mark.parametrize("keep", [b"rubbish", b"\xff", b"[]", b"{}", b'{"lease": 1, "ttl": "soon"}'])
def test_a_lease_that_can_not_be_read_names_its_key(keep):
    with pytest.raises(BackendRefusedError, match=r"at key '/elastic/r/told/keep'"):
        Content(Keys("/elastic/", "r"), b"birth", keep)
