"""What is the same failure again, and what is another one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.failure.fingerprint import MAX_CHARS, fingerprint, normalised


def of(message="boom", **changes):
    fields = {"failure_class": "user exception", "exception_type": "ValueError", "place": "train.py:12"}
    return fingerprint(message=message, **(fields | changes))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("loss is nan at step 1200", "loss is nan at step 7"),
        ("tried to allocate 2.50 GiB", "tried to allocate 512.00 GiB"),
        ("tensor at 0x7f3a", "tensor at 0xdeadbeef01"),
        ("peer 10.0.0.1:29500 is gone", "peer 10.0.0.27:40123 is gone"),
        ("id 0d3f9a77c1 lost", "id 99f1ab23cd lost"),
        ("a\n  b", "a b"),
        ("lr is 1e-05", "lr is 3.2e-4"),
        ("[Errno 2] No such file: '/tmp/job-17/a01.jpg'", "[Errno 2] No such file: '/tmp/job-18/a01.jpg'"),
        ("[Errno 98] Address in use: '10.0.0.1:7'", "[Errno 98] Address in use: '10.0.0.2:8'"),
    ],
)
def test_what_changes_from_one_to_the_next_does_not_count(first, second):
    assert of(first) == of(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"message": "loss is nan"}, {"message": "loss is inf"}),
        ({"message": "[Errno 2] No such file: '/d/01.jpg'"}, {"message": "[Errno 2] No such file: '/d/02.jpg'"}),
        ({"message": "the facade is gone"}, {"message": "the decade is gone"}),
        ({"place": "train.py:12"}, {"place": "train.py:13"}),
        ({"exception_type": "ValueError"}, {"exception_type": "KeyError"}),
        ({"failure_class": "hang"}, {"failure_class": "signal"}),
    ],
)
def test_another_failure_has_another_one(first, second):
    assert of(**first) != of(**second)


def test_long_messages_stay_apart_in_bounded_text():
    first, second = of("a" * 1000 + "x"), of("a" * 1000 + "y")
    assert first != second
    assert len(first) == len(second) == MAX_CHARS


@given(st.text())
def test_any_message_has_one_and_normalising_twice_changes_nothing(message):
    assert len(of(message)) <= MAX_CHARS
    assert normalised(normalised(message)) == normalised(message)
