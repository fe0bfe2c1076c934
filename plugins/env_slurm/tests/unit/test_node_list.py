"""Lists of nodes in Slurm's notation."""

import pytest

from elastic_env_slurm.node_list import node_names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu-a,gpu-b", ["gpu-a", "gpu-b"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[08-10,17],login", ["gpu08", "gpu09", "gpu10", "gpu17", "login"]),
        ("login,gpu[7]", ["login", "gpu7"]),
        ("rack[1-2]n[03-04]", ["rack1n03", "rack1n04", "rack2n03", "rack2n04"]),
        ("n[1-2]-ib.example", ["n1-ib.example", "n2-ib.example"]),
        ("127.[1-2]", ["127.1", "127.2"]),
    ],
)
def test_names(text, names):
    assert node_names(text) == names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        ("gpu[1-", "not closed"),
        ("gpu1]", "a bracket too many at ']'"),
        ("gpu[[1]]", "a bracket too many"),
        ("gpu[a-b]", "'a-b' in brackets; expected a range"),
        ("gpu[]", "'' in brackets; expected a range"),
        ("gpu[3-1]", "'3-1' in brackets; expected a range"),
        ("gpu[1-999999999]", "expected a range"),
        ("a[1-9999]b[1-9999]", "too many names"),
        ("gpu 1", "'gpu 1'; expected a name"),
        ("gpu1,,gpu2", "''; expected a name"),
    ],
)
def test_what_is_no_list(text, words):
    with pytest.raises(ValueError, match=words.replace("[", r"\[").replace("]", r"\]")):
        node_names(text)
