"""Values of a state as JSON and bytes, and back: the same bits, types and identities."""

import json
import math
from collections import Counter, OrderedDict, defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_warm.state_errors import StateError
from elastic_warm.values import Values, flattened, info_of, offsets_of, skeleton, view_of

DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64),
    *(torch.complex128, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint64, torch.bool),
]


def through_bytes(value):
    """Return a value that went through JSON and one block of memory, as between two processes."""
    flat = flattened(value, "part")
    infos = [info_of(tensor) for tensor in flat.common]
    offsets, size = offsets_of(infos)
    block = torch.zeros(size, dtype=torch.uint8)
    for tensor, info, at in zip(flat.common, infos, offsets, strict=True):
        view_of(block, info, at).copy_(tensor)
    tree = json.loads(json.dumps(flat.tree))
    return Values(lambda index: view_of(block, infos[index], offsets[index]).clone(), lambda _: None).of(tree)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (3, 5)], ids=str)
def test_tensors_keep_their_bits(dtype, shape):
    size = math.prod(shape) * dtype.itemsize
    raw = torch.arange(size, dtype=torch.uint8) % 2 if dtype is torch.bool else torch.arange(size, dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
    found = through_bytes({"a": [tensor]})["a"][0]
    assert (found.dtype, found.shape) == (dtype, tensor.shape)
    assert torch.equal(found.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_strided_and_conjugated_tensors_keep_their_values():
    base = torch.arange(24.0).reshape(4, 6)
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    for tensor in (
        base.t(),
        base[::2, 1::3],
        base.expand(2, 4, 6),
        torch.randn(3, dtype=torch.complex64).conj(),
        image,
    ):
        assert torch.equal(through_bytes(tensor), tensor)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers(), st.text()), inner)
    ),
    max_leaves=12,
)


@given(plain)
@settings(max_examples=50)
def test_plain_values_keep_their_types(value):
    found = through_bytes(value)
    assert found == value
    assert repr(found) == repr(value)


def test_the_other_kinds_of_values():
    numpy = pytest.importorskip("numpy")
    value = {
        "counter": Counter(a=2),
        "ordered": OrderedDict(b=1),
        "default": defaultdict(list, c=[1]),
        "set": {1, 2},
        "frozen": frozenset({3}),
        "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "array": numpy.arange(6, dtype=">i4").reshape(2, 3),
        "scalar": numpy.float64(0.5),
        "bytearray": bytearray(b"ab"),
        "nan": [math.nan, -0.0, math.inf],
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    found = through_bytes(value)
    assert found["counter"] == Counter(a=2)
    assert type(found["counter"]) is Counter
    assert (type(found["ordered"]), type(found["default"])) == (OrderedDict, dict)
    assert (found["set"], found["frozen"], found["size"]) == ({1, 2}, frozenset({3}), torch.Size([2, 3]))
    assert (type(found["frozen"]), type(found["size"])) == (frozenset, torch.Size)
    assert (found["dtype"], found["device"]) == (torch.bfloat16, torch.device("cpu"))
    assert found["array"].dtype == ">i4"
    assert found["array"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert type(found["scalar"]) is numpy.float64
    assert found["bytearray"] == b"ab"
    assert repr(found["nan"]) == "[nan, -0.0, inf]"
    assert torch.equal(found["parameter"], torch.ones(2))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": [object()]}, r"state\.part\['a'\]\[0\] is a builtins\.object; expected a tensor"),
        ({object(): 1}, r"state\.a key of part is a builtins\.object"),
        (torch.ones(2).to_sparse(), "expected a dense tensor in memory"),
        (len, r"state\.part is a builtins\.builtin_function_or_method"),
    ],
)
def test_what_can_not_be_kept_is_one_line(value, words):
    with pytest.raises(StateError, match=words):
        flattened(value, "part")


def test_a_value_that_contains_itself_is_one_line():
    value = []
    value.append(value)
    with pytest.raises(StateError, match=r"^state\.part contains itself, or is nested too deeply\. Try: "):
        flattened(value, "part")


@pytest.mark.parametrize(
    "tree", [["os.system", "ls"], ["map", "dict", 3], ["dtype", "nothing"], ["numpy", False, "O", [1], "common", 0], []]
)
def test_a_malformed_tree_is_an_error_and_runs_nothing(tree):
    with pytest.raises(StateError, match="a copy of the state is malformed"):
        Values(lambda _: torch.zeros(8, dtype=torch.uint8), lambda _: None).of(tree)


def test_a_skeleton_has_the_structure_alone():
    first = flattened({"a": 1, "b": [torch.ones(2), "x"]}, "part").tree
    second = flattened({"a": 2.5, "b": [torch.zeros(2), None]}, "part").tree
    assert skeleton(first) == skeleton(second)
    assert skeleton(first) != skeleton(flattened({"a": 1, "c": [torch.ones(2), "x"]}, "part").tree)
