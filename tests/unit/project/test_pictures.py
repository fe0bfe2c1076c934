"""The pictures of the README and of the pages show what the code and a real run show."""

import re

import pictures
import pytest
import readme_picture


@pytest.fixture(scope="module")
def journal():
    return pictures.recorded_crash()


@pytest.fixture
def drawn(journal, monkeypatch):
    monkeypatch.setattr(pictures, "recorded_crash", lambda: journal)
    return readme_picture.of_readme()


@pytest.mark.parametrize("name", readme_picture.INKS)
def test_the_readmes_picture_is_the_one_that_would_be_drawn_now(drawn, name):
    stored = (pictures.PICTURES / name).read_text()
    assert pictures.texts(stored) == pictures.texts(drawn[name]), "python docs/_ext/readme_picture.py draws it again"
    assert {"ValueError: boom", "rank # fails", "both start again after # ms"} <= set(pictures.texts(stored))


def test_the_readmes_two_files_differ_in_the_colour_of_their_text_alone():
    texts = {name: (pictures.PICTURES / name).read_text() for name in readme_picture.INKS}
    for name, ink in readme_picture.INKS.items():
        assert texts[name].count(ink) == 1
        assert "currentColor" in texts[name]
        assert "prefers-color-scheme" not in texts[name]
    assert len({text.replace(readme_picture.INKS[name], "") for name, text in texts.items()}) == 1


def test_the_readme_has_a_picture_for_each_scheme():
    readme = (pictures.ROOT / "README.md").read_text()
    assert '<source media="(prefers-color-scheme: dark)" srcset="docs/pictures/crash-dark.svg">' in readme
    assert re.search(r'<img [^>]*src="docs/pictures/crash-light\.svg"', readme)


def test_a_picture_takes_the_colour_of_the_text_around_it(journal):
    for figure in (pictures.run_picture(), pictures.crash_picture(pictures.spans(journal))):
        svg = pictures.as_svg(figure, name="test")
        assert pictures.INK not in svg
        assert "currentColor" in svg


def test_a_crash_is_drawn_from_what_the_agent_did(journal):
    spans = pictures.spans(journal)
    agents = [span for span in spans if span.row == "agent"]
    assert [span.label for span in agents] == [
        "settle: does another fail?", "evidence, policy", "stop", "rendezvous", "start",
    ]  # fmt: skip
    assert [span.from_ms for span in agents[1:]] == [span.to_ms for span in agents[:-1]]
    assert {span.label for span in spans if span.row == "rank 0"} == {"round 0", "SIGTERM", "round 1"}
    assert {span.label for span in spans if span.row == "rank 1"} == {"round 0", "ValueError", "round 1"}


def test_figures_are_drawn_with_their_budgets():
    figures = {
        "floor": {"median": 2.0, "least": 1.0, "most": 3.0},
        "elastic run": {"median": 4.0, "least": 4.0, "most": 4.0},
    }
    result = {"measure": "a start", "unit": "ms", "budget": "<= 4 x floor", "kept": True, "launchers": figures}
    words = pictures.texts(pictures.as_svg(pictures.benchmark_picture([result]), name="test"))
    assert "a start, ms" in words
    assert any("kept" in word for word in words)
    assert any(word.endswith("elastic run") for word in words)
