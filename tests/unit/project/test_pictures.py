"""The pictures of the README and of the pages show what the code and a real run show."""

import re

import benchmark_page
import diagrams
import elastic_docs
import join_picture
import pictures
import pytest
import readme_picture
import recordings
import report_picture
import warm_picture

PAGE_PX = 750
"""How wide the text column of the site is on a screen of 1,400 pixels, at least."""
CLASSES = ["user exception", "node lost", "user exception"]
"""Of the incidents in the report of the pictures."""


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


@pytest.mark.parametrize(("light", "dark"), [("crash-light.svg", "crash-dark.svg"), tuple(report_picture.FILES)])
def test_the_readme_has_a_picture_for_each_scheme(light, dark):
    readme = (pictures.ROOT / "README.md").read_text()
    assert f'<source media="(prefers-color-scheme: dark)" srcset="docs/pictures/{dark}">' in readme
    assert re.search(rf'<img [^>]*src="docs/pictures/{re.escape(light)}"', readme)


def test_the_pictures_of_a_report_are_of_the_page_as_it_is_now():
    assert report_picture.is_current(), "python docs/_ext/report_picture.py makes them again, with Chromium"


@pytest.mark.parametrize("name", report_picture.FILES)
def test_a_picture_of_a_report_is_small_enough_for_the_readme(name):
    assert 20_000 < (pictures.PICTURES / name).stat().st_size <= report_picture.MOST_BYTES


def test_the_report_of_the_pictures_is_of_a_run_that_failed_twice_and_lost_a_node():
    report = report_picture.stored()
    assert report.run.state == "failed"
    assert [row.incident.failure_class.value for row in report.incidents] == CLASSES
    assert {lane.node_id: lane.outcome for lane in report.nodes}["gpu-3"] == "lost"
    assert not report.missing


def test_without_chromium_the_pictures_of_an_older_page_are_kept(monkeypatch, capfd):
    before = {name: (pictures.PICTURES / name).read_bytes() for name in report_picture.FILES}
    monkeypatch.setattr(report_picture, "fingerprint", lambda: "of a newer page")
    monkeypatch.setattr(report_picture.shutil, "which", lambda _name: None)
    report_picture.renew()
    assert "report-light.png, report-dark.png are of an older page and are kept: chromium is" in capfd.readouterr().err
    assert before == {name: (pictures.PICTURES / name).read_bytes() for name in report_picture.FILES}


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
    document = benchmark_page.published()
    svg = pictures.as_svg(pictures.benchmark_picture(document), name="test")
    table = benchmark_page.figures(document)
    charted = [document["figures"][key] for key in pictures.CHARTED if key in document["figures"]]
    for one, name in benchmark_page.ours({"figures": dict(enumerate(charted))}):
        ours, torchs = (benchmark_page.number(one["launchers"][each]["median"]["value"]) for each in (name, "torchrun"))
        (row,) = (
            line
            for line in table.splitlines()
            if line.startswith(f"| {one['title']}, {one['unit']}{benchmark_page.variant(name)} |")
        )
        assert f"{ours} {one['unit']} (torchrun: {torchs})<" in svg
        assert f"| {ours} | {torchs} |" in row
        kept = one["launchers"][name]["kept"]
        assert ("kept" in row, "missed" in row) == (kept is True, kept is False)


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


@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_a_round_is_drawn_from_what_agent_and_workers_noted(kind):
    def step(at_s, event, **values):
        return {"at_s": at_s, "values": {"event": event, **values}}

    def noted(index, *moments, at_step=25):
        return {(index, what): (at_s, at_step) for what, at_s in moments}

    journal = [step(9.0, "RoundFormed"), step(9.1, "WorkersSpawned")]
    ends = [(1, 10.001), *([(0, 10.006)] if kind == "cold" else [])]
    journal += [step(at_s, "WorkerExited", exit={"local_rank": rank, "at_s": at_s}) for rank, at_s in ends]
    moments = {"DecisionMade": 10.002, "WorkersStopped": 10.01, "RoundFormed": 10.011, "WorkersSpawned": 10.013}
    journal += [step(at_s, event) for event, at_s in moments.items()]
    begins = (("begins", 10.02), ("has imported", 10.03))
    joins = (("enters", 10.04), ("has a group", 10.05), ("has the state", 10.06), ("trains", 10.07))
    survivor = noted(0, ("leaves", 10.003)) if kind == "warm" else {}
    survivor |= noted(1, *(() if kind == "warm" else begins), *joins)
    newcomer = noted(0, ("is killed", 10.0)) | noted(1, *begins, *joins)

    spans = warm_picture.round_spans(journal, [survivor, newcomer])

    parts = {row: [(span.label, round(span.to_ms)) for span in spans if span.row == row] for row in warm_picture.ROWS}
    training = [("process group, DDP", 50), ("state", 60), ("first step", 70), ("from step 25", 84)]
    anew = [("starts", 20), ("imports", 30), ("model, optimizer", 40), *training]
    kept = [("step 25", 3), ("leaves", 10), ("waits for its place", 40), *training]
    ended = [("step 25", 0), ("ends", 6), ("no process", 13), *anew]
    assert parts["rank 0"] == (kept if kind == "warm" else ended)
    assert parts["rank 1"] == [("step 25", 0), ("no process", 13), *anew]
    assert parts["agent"][1:-1] == [
        ("notices, decides", 2), ("stops workers", 10), ("rendezvous", 11), ("starts workers", 13),
    ]  # fmt: skip
    assert warm_picture.trains_again_ms(spans) == pytest.approx(70)
    assert "| both ranks | train again, after the kill | 70 | 70 |" in warm_picture.timeline_table(lambda _kind: spans)
