"""A reader who types the usual words into the site's search gets the page about them."""

import re

import pytest
import search_words

from page_kit import DOCS

# Endings that the search's stemmer takes away, as far as our phrases need it.
ENDINGS = re.compile(r"(?:ing|ed|s|e)$")


@pytest.mark.parametrize("page", search_words.PHRASES)
def test_all_words_of_a_phrase_are_on_its_page(page):
    words = re.findall(r"\w+", (DOCS / f"{page}.md").read_text().lower())
    there = {ENDINGS.sub("", word) for word in words}
    for phrase in search_words.PHRASES[page]:
        missing = {word for word in re.findall(r"\w+", phrase.lower()) if ENDINGS.sub("", word) not in there}
        assert not missing, f"{phrase!r}: not on {page}: {missing}"


def test_a_phrase_leads_to_one_page():
    phrases = [phrase.lower() for phrases in search_words.PHRASES.values() for phrase in phrases]
    assert len(phrases) == len(set(phrases))


def test_a_phrase_is_before_the_heading_that_has_it_else_after_the_title():
    text = search_words.with_entries("reference/differences", "# Title\n\nText.\n\n## A torchrun differences\n\nIt.\n")
    first, second = "```{index} ! differences from torchrun\n```\n", "```{index} ! torchrun differences\n```\n"
    assert text == f"# Title\n\n{first}\n\nText.\n\n{second}\n## A torchrun differences\n\nIt.\n"
    assert search_words.with_entries("index", "# Title\n\nText.\n") == "# Title\n\nText.\n"
