"""Plain English: a count of words that slow readers down, which can only fall."""

from collections import Counter

import prose
import pytest

CEILING = 18
"""Names of data in the stores; it was 1,297 at first."""


def test_the_count_of_unclear_words_only_falls():
    found = prose.findings()
    assert len(found) <= CEILING, Counter(each.path for each in found).most_common(10)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nobody is told.", ["nobody", "told"]),
        ("The word `hello`; the word counts.", ["the word"]),
        ("It stands for a rank. It stands here.", ["stands"]),
        ("Who waits is admitted.", ["Who"]),
        ("Who waits?", []),
        ("a node whose agent ended", []),
        ("An agent is lost. Whose workers run on is unknown.", [". Whose"]),
        ("| who | what |", ["| who"]),
    ],
)
def test_what_is_counted(text, expected):
    found = [match[0].strip() for pattern in (prose.WORDS, prose.SUBJECTS) for match in pattern.finditer(text)]
    assert found == expected
