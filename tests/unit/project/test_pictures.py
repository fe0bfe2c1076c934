"""The pictures of the README and of the pages show what the code and a real run show."""

import json
import re

import benchmark_table
import diagrams
import elastic_docs
import join_picture
import pictures
import pytest
import readme_picture
import recordings

PAGE_PX = 750
"""How wide the text column of the site is on a screen of 1,400 pixels, at least."""


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
    for figure in (diagrams.run_picture(), pictures.crash_picture(pictures.spans(journal))):
        svg = pictures.as_svg(figure, name="test")
        assert pictures.INK not in svg
        assert "currentColor" in svg


def test_a_crash_is_drawn_from_what_the_agent_did(journal):
    spans = pictures.spans(journal)
    agents = [span for span in spans if span.row == "agent"]
    assert [span.label for span in agents] == [
        "wait for other failures", "evidence, policy", "stop rank 0", "rendezvous", "start both",
    ]  # fmt: skip
    assert [span.from_ms for span in agents[1:]] == [span.to_ms for span in agents[:-1]]
    assert {span.label for span in spans if span.row == "rank 0"} == {"round 0", "SIGTERM", "round 1"}
    assert {span.label for span in spans if span.row == "rank 1"} == {"round 0", "ValueError", "round 1"}


def test_the_chart_and_the_table_of_the_benchmarks_have_the_same_figures():
    results = json.loads((pictures.PICTURES / "benchmarks.json").read_text())["results"]
    svg = pictures.as_svg(pictures.benchmark_picture(results), name="test")
    table = benchmark_table.benchmarks()
    for one in results:
        row = next(line for line in table.splitlines() if line.startswith(f"| {one['measure']}, {one['unit']} |"))
        for launcher, figures in one["launchers"].items():
            figure = pictures.number(figures["median"])
            assert f"{figure} {one['unit']}  {launcher}<" in svg
            assert f"| {figure} |" in row
        assert ("kept" in row, "exceeded" in row) == (one["kept"] is True, one["kept"] is False)


@pytest.mark.parametrize("name", elastic_docs.PICTURES)
def test_letters_are_at_least_eleven_pixels_high_on_a_page(name):
    svg = pictures.as_svg(elastic_docs.PICTURES[name][0](), name=name)
    width = float(re.search(r'viewBox="0 0 ([\d.]+) ', svg)[1])
    sizes = {float(size) for size in re.findall(r"font(?:-size)?: (?:\w+ )*([\d.]+)px", svg)}
    assert sizes
    assert min(sizes) * PAGE_PX / width >= 11


@pytest.mark.parametrize("name", recordings.RECORDERS)
def test_a_stored_recording_is_what_a_picture_needs(name):
    spans = recordings.stored(name)
    assert all(span.from_ms <= span.to_ms for span in spans)
    assert "agent" in spans[0].row or any("agent" in span.row for span in spans)


def test_a_join_is_drawn_from_what_both_agents_did():
    def step(at_s, event, **values):
        return {"at_s": at_s, "values": {"event": event, **values}}

    def ended(rank, at_s):
        return step(at_s, "WorkerExited", exit={"global_rank": rank, "at_s": at_s})

    a = [step(1.0, "RoundFormed"), step(1.1, "WorkersSpawned"), step(2.0, "RoundChanged")]
    a += [ended(1, 2.01), ended(0, 2.02)]
    a += [step(2.03, "WorkersStopped"), step(2.04, "RoundFormed"), step(2.06, "WorkersSpawned")]
    b = [step(1.9, "JoinAllowed"), step(2.05, "RoundFormed"), step(2.07, "WorkersSpawned")]
    spans = join_picture.join_spans({"a": a, "b": b})
    assert [(span.label, round(span.to_ms)) for span in spans if span.row == "agent a" and span.label] == [
        ("stops its workers", 30), ("round 1 is formed", 40), ("starts workers", 60),
    ]  # fmt: skip
    assert {span.row for span in spans if span.label == "round 1"} == {"rank 0", "rank 1", "rank 2", "rank 3"}
    assert [round(span.to_ms) for span in spans if span.label == "round 0"] == [20, 10]
