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


def test_a_phrase_is_before_the_heading_that_has_it_else_after_the_title():
    text = search_words.with_entries("reference/differences", "# Title\n\nText.\n\n## A torchrun differences\n\nIt.\n")
    first, second = "```{index} ! differences from torchrun\n```\n", "```{index} ! torchrun differences\n```\n"
    assert text == f"# Title\n\n{first}\n\nText.\n\n{second}\n## A torchrun differences\n\nIt.\n"
    assert search_words.with_entries("index", "# Title\n\nText.\n") == "# Title\n\nText.\n"
