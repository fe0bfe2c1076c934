"""The pictures of the README and of the pages say what is so."""

import pictures
import pytest


@pytest.fixture(scope="module")
def drawn():
    return pictures.of_readme()


@pytest.mark.parametrize("name", ["run.svg", "crash.svg"])
def test_the_readmes_pictures_are_those_that_would_be_drawn_now(drawn, name):
    stored = (pictures.PICTURES / name).read_text()
    assert pictures.texts(stored) == pictures.texts(drawn[name]), "python docs/_ext/pictures.py draws them again"


def test_a_picture_takes_the_colour_of_the_text_around_it(drawn):
    for svg in drawn.values():
        assert pictures.INK not in svg
        assert "currentColor" in svg


def test_a_crash_is_drawn_from_what_the_agent_did(drawn):
    spans = pictures.spans(pictures.recorded_crash())
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
