"""A reader who types the usual words into the site's search gets the page about them."""

import pytest
import search_words

from page_kit import DOCS


@pytest.mark.parametrize("page", search_words.PHRASES)
def test_the_pages_of_the_phrases_exist(page):
    assert (DOCS / f"{page}.md").exists()


def test_a_phrase_leads_to_one_page():
    phrases = [phrase.lower() for phrases in search_words.PHRASES.values() for phrase in phrases]
    assert len(phrases) == len(set(phrases))


def test_the_phrases_follow_the_title():
    text = search_words.with_entries("reference/differences", "# Title\n\nText.\n")
    assert text.startswith("# Title\n\n```{index} ! torchrun differences\n```\n")
    assert text.endswith("\n\nText.\n")
    assert search_words.with_entries("index", "# Title\n\nText.\n") == "# Title\n\nText.\n"
