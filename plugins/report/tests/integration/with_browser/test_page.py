"""What a reader gets from the page: content, dark mode, paper, a phone. The page loads and runs nothing else."""

import itertools
import re

import pytest

import report_samples

HOSTILE = "</script><script>window.broken = 1</script>"
CALM = {"reduced_motion": "reduce"}


@pytest.fixture
def medium(opened):
    return opened(report_samples.medium(), **CALM)


def test_the_result_and_its_evidence_come_first(medium):
    page = medium.page
    assert page.title() == "bert-7: failed - elastic report"
    assert page.locator("h1").inner_text() == "bert-7"
    assert page.locator(".state").inner_text() == "✕ failed"
    result = page.locator("#result").inner_text()
    assert "rank 17 on gpu-02 hung in all_reduce" in result
    assert "consequence" in result
    assert "rank 17: quiet for 600 s" in page.locator(".evidence").inner_text()
    assert page.locator("#result").bounding_box()["y"] < 900


def test_the_ledger_is_a_picture_with_a_table_and_both_formulas_by_name(medium):
    page = medium.page
    names = page.locator("#ledger-table tbody th").all_inner_texts()
    assert [name.strip() for name in names[:4]] == ["productive", "redone", "hung", "queued"]
    figures = page.locator(".figures").inner_text()
    assert "Goodput, Google's formula\n81.0 %" in figures
    assert "Goodput, NVIDIA's formula\n82.0 %" in figures
    assert page.locator(".ledger-bar").get_attribute("role") == "img"
    widths = page.evaluate(
        "[...document.querySelectorAll('.ledger-bar > g > rect')].map(r => parseFloat(r.getAttribute('width')))"
    )
    assert sum(widths) == pytest.approx(100, abs=0.1)


def test_an_incident_shows_what_an_engineer_on_call_asks_for(medium):
    text = medium.page.locator("#incident-1").inner_text()
    for expected in (
        "rank 26 (local rank 2, pid 4026) on gpu-03 (gpu-03.cluster)",
        "95 other workers stopped because of it",
        "restart after 0.5 s, by the rule max-restarts",
        "Time to detect\n0.8 s",
        "Time to recover\n1 min 59 s",
        "Lost, all nodes\n3 h 38 min",
        "04:25:08, 14 min 48 s before",
        "ValueError: loss is nan",
        "first cause",
        "consequence",
    ):
        assert expected in text
    assert "did not recover" in medium.page.locator("#incident-3").inner_text()


def test_differences_options_and_what_is_missing_are_shown(medium):
    page = medium.page
    assert "2.12.1+cu128" in page.locator("#differences").inner_text()
    options = page.locator("#options tbody th").all_text_contents()
    assert options[:4] == ["--nproc-per-node", "--max-restarts", "--rdzv-backend", "--rdzv-endpoint"]
    assert "--monitor-interval" not in page.locator("#options").inner_text(), "defaults are behind a summary"
    assert "The ledger of gpu-07 is missing" in page.locator("#missing").inner_text()
    assert "ahead of that of gpu-00 by 3.2 s" in page.locator("#missing").inner_text()


def test_a_log_file_that_exists_is_a_link_and_another_one_is_text(opened):
    page = opened(report_samples.small()).page
    link = page.locator("#incident-1 a.mono")
    assert link.get_attribute("href") == "file:///tmp/elastic-laptop/digits/round_0/1/stderr.log"
    elsewhere = opened(report_samples.medium()).page.locator("#incident-2 .grid")
    assert "gpu-07.cluster:/tmp/elastic/bert-7/round_0/0/stderr.log" in elsewhere.inner_text()
    assert elsewhere.locator("a.mono").count() == 0


def test_times_are_in_the_zone_of_the_reader_with_utc_in_the_title(medium):
    first = medium.page.locator("time").first
    assert first.inner_text() == "2026-11-26 03:34:56"
    assert first.get_attribute("title") == "2026-11-26 02:34:56.250 UTC"
    assert "Times are in Europe/Berlin." in medium.page.locator(".when").inner_text()


def test_a_range_is_shown_as_a_range(opened):
    small = report_samples.small()
    ranges = report_samples.account(small.nodes, bound_s=9.0)
    page = opened(report_samples.replaced(small, account=ranges)).page
    assert "33.0 % to 77.9 %" in page.locator(".figures").inner_text()
    rows = page.locator("#ledger-table tbody").inner_text()
    assert "6.6 s to 15.6 s" in rows
    assert "0 s to 9 s" in rows
    assert "reports no step numbers" in page.locator("#ledger").inner_text()


@pytest.mark.parametrize("sample", ["small", "medium", "hostile"])
def test_nothing_is_requested_and_the_browser_complains_about_nothing(opened, sample):
    found = opened(getattr(report_samples, sample)(), **CALM)
    page = found.page
    page.locator("#zoom-in").click()
    page.locator("#search").fill("node")
    page.locator("#search").press("Enter")
    found.until("location.hash.startsWith('#view=')")
    assert [url for url in found.requests if not url.startswith(("file:///", "data:image/svg+xml"))] == []
    assert len([url for url in found.requests if url.startswith("file:")]) == 1
    assert found.complaints == []
    assert "://" not in re.sub(r"file://|xmlns='http://www.w3.org/2000/svg'|redis://:", "", page.content())


def test_the_browser_runs_no_script_but_those_of_the_page(opened):
    html = report_samples.html("small").replace("</main>", "<script>window.broken = 1</script></main>")
    found = opened(html)
    assert found.data("window.broken") is None
    assert any("Content Security Policy" in text for text in found.complaints)


def test_texts_of_scripts_are_shown_as_text(opened):
    found = opened(report_samples.hostile(), **CALM)
    page = found.page
    assert found.data("window.broken") is None
    assert page.locator("img").count() == 0
    assert page.locator("b").count() == 0
    assert HOSTILE in page.locator("h1").inner_text()
    traceback = page.locator("#incident-1 pre").inner_text()
    assert HOSTILE in traceback
    assert "onerror='window.broken=2'>\\x1b[31m\\u202e\\x00\n<!-- \\udcff" in traceback
    content = page.content()
    assert [sign for sign in "\x00\x1b\u202e" if sign in content] == []
    node_id = found.data("JSON.parse(document.getElementById('data').textContent).nodes[0].id")
    assert node_id == "node\"'><b>\\u202e&1"
    page.locator("#lanes").press("ArrowDown")
    assert page.locator("#chosen").inner_text().startswith(f"{node_id}: ")


def test_dark_mode_has_a_dark_page_and_readable_text(opened):
    dark = opened(report_samples.medium(), color_scheme="dark").page
    light = opened(report_samples.medium(), color_scheme="light").page
    for page, darker in ((dark, True), (light, False)):
        page_colour, text = page.evaluate(
            "() => { const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]; }"
        )
        assert contrast(page_colour, text) > 7
        assert (luminance(page_colour) < 0.05) is darker
        quiet = page.evaluate("() => getComputedStyle(document.querySelector('.quiet')).color")
        assert contrast(page_colour, quiet) > 4.5
        link = page.evaluate("() => getComputedStyle(document.querySelector('nav a')).color")
        assert contrast(page_colour, link) > 4.5


def test_the_timeline_is_drawn_again_when_the_colours_change(opened):
    found = opened(report_samples.medium(), color_scheme="light", **CALM)
    page = found.page
    pixel = """() => { const c = document.getElementById('canvas');
        return [...c.getContext('2d').getImageData(40, c.height - 20, 1, 1).data].join() +
               [...c.getContext('2d').getImageData(300, 12, 1, 1).data].join(); }"""
    found.until(f"({pixel})() !== '0,0,0,00,0,0,0'")
    before = page.evaluate(pixel)
    page.emulate_media(color_scheme="dark")
    found.until(f"({pixel})() !== '{before}'")


def test_on_paper_tables_expand_and_the_timeline_is_a_picture(opened):
    page = opened(report_samples.medium(), **CALM).page
    assert not page.locator(".printed svg").is_visible()
    assert page.locator("#live-timeline").is_visible()
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".printed svg").is_visible()
    assert page.locator(".printed svg path").count() > 30
    assert not page.locator("#live-timeline").is_visible()
    assert not page.locator(".tools").is_visible()
    assert page.locator("details:not([open])").count() == 0
    assert page.locator("#events tbody tr").last.is_visible()
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0
    assert page.pdf(format="A4").startswith(b"%PDF")


@pytest.mark.parametrize("sample", ["small", "medium", "hostile"])
def test_a_phone_never_scrolls_the_page_sideways(opened, sample):
    phone = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "has_touch": True, "is_mobile": True}
    found = opened(getattr(report_samples, sample)(), **phone, **CALM)
    page = found.page
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    page.evaluate("document.querySelectorAll('details').forEach(each => (each.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.evaluate("document.getElementById('canvas').clientWidth") <= 360
    page.locator("#zoom-in").tap()
    found.until("location.hash.startsWith('#view=')")


def test_without_javascript_all_but_the_moving_timeline_is_there(opened):
    page = opened(report_samples.medium(), java_script_enabled=False).page
    assert "rank 17 on gpu-02 hung" in page.locator("#result").inner_text()
    assert page.locator(".ledger-bar").is_visible()
    assert page.locator(".printed svg").is_visible()
    assert page.locator("#incident-1").is_visible()
    assert page.locator("time").first.inner_text() == "2026-11-26 02:34:56 UTC"
    for useless in (".tools", ".keys", ".live"):
        assert not page.locator(useless).first.is_visible()


@pytest.mark.parametrize("sample", ["small", "medium"])
def test_pictures_headings_and_tables_are_readable_without_eyes(opened, sample):
    page = opened(getattr(report_samples, sample)(), **CALM).page
    assert page.locator("html").get_attribute("lang") == "en"
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll('img, canvas, svg, [role=img]')]
            .filter(e => !e.closest('[aria-hidden=true]') && !e.parentElement.closest('svg'))
            .filter(e => !e.getAttribute('alt') && !e.getAttribute('aria-label') &&
                !document.getElementById(e.getAttribute('aria-labelledby'))?.textContent).map(e => e.outerHTML)"""
    )
    assert unnamed == []
    levels = [
        int(name[1]) for name in page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => h.tagName)")
    ]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert page.evaluate("document.querySelectorAll('th:not([scope])').length") == 0
    assert page.evaluate(f"[...document.querySelectorAll('table')].filter({HEADLESS}).length") == 0
    assert all(page.evaluate(f"[...document.querySelectorAll('input, select, button:not(#found button)')].map({NAME})"))
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    for attribute in ("aria-labelledby", "aria-describedby"):
        used = page.evaluate(f"[...document.querySelectorAll('[{attribute}]')].map(e => e.getAttribute('{attribute}'))")
        assert set(" ".join(used).split()) <= set(ids)


HEADLESS = "table => !table.tHead || !table.querySelector('tbody th[scope=row]')"
NAME = "field => field.labels?.length || field.textContent.trim() || field.getAttribute('aria-label')"


def luminance(colour):
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
