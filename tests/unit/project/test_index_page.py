"""The front page of the site: few ways to continue, and each page at one place of the sidebar."""

import re
from collections import Counter

from page_kit import DOCS

INDEX = (DOCS / "index.md").read_text()


def listed():
    for block in re.findall(r"^```\{toctree\}\n(.*?)^```", INDEX, re.M | re.S):
        for entry in block.split("\n\n", 1)[1].split():
            yield [str(page.relative_to(DOCS).with_suffix("")) for page in sorted(DOCS.glob(f"{entry}.md"))]


def test_it_offers_at_most_twelve_ways_to_continue():
    (table,) = re.findall(r"^\| --- .*?\n((?:\|.*\n)+)", INDEX, re.M)
    assert 5 <= len(table.splitlines()) <= 12


def test_each_page_has_one_place_in_the_sidebar_and_decisions_are_behind_one():
    places = Counter(entry for entries in listed() for entry in entries if len(entries) == 1)
    assert {page: count for page, count in places.items() if count > 1} == {}
    every = {page for entries in listed() for page in entries}
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.glob("[a-z]*/*.md")}
    assert pages - every == {page for page in pages if re.match(r"decisions/\d", page)}


def test_the_glossary_defines_each_term_once():
    terms = re.findall(r"^### (.+)$", (DOCS / "reference" / "glossary.md").read_text(), re.M)
    assert len(terms) > 40
    assert Counter(terms).most_common(1)[0][1] == 1
