"""The timeline in a browser: zoom, moving, search, links, workers, keys, new data, and a thousand nodes."""

import json

import pytest

import report_samples
from elastic_report.page.lanes import timeline_data

CALM = {"reduced_motion": "reduce"}
END = 11_619.0
"""The length of the sample's run in seconds."""


@pytest.fixture
def medium(opened):
    return opened(report_samples.medium(), **CALM)


def test_buttons_zoom_and_move(medium):
    page = medium.page
    page.locator("#zoom-in").click()
    low, high = medium.view()
    assert (low, high) == pytest.approx((END / 4, 3 * END / 4), abs=1)
    page.locator("#later").click()
    medium.until(f"!location.hash.includes('view={low:g}')")
    assert medium.view() == pytest.approx((END / 2, END), abs=1)
    page.locator("#zoom-all").click()
    medium.until("location.hash === ''")


def test_the_wheel_with_control_zooms_at_the_pointer_and_alone_scrolls_the_page(medium):
    page = medium.page
    box = lanes_box(page)
    before = page.evaluate("scrollY")
    page.mouse.move(box["x"] + 148 + 1, box["y"] + 60)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -120)
    page.keyboard.up("Control")
    low, high = medium.view()
    assert low == pytest.approx(0, abs=20)
    assert high < 0.7 * END
    assert page.evaluate("scrollY") == before
    page.mouse.wheel(0, 200)
    medium.until(f"scrollY > {before}")


def test_dragging_moves(medium):
    page = medium.page
    page.locator("#zoom-in").click()
    low, _ = medium.view()
    box = page.locator("#lanes").bounding_box()
    page.mouse.move(box["x"] + 600, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 700, box["y"] + 60)
    page.mouse.up()
    medium.until(f"!location.hash.includes('view={low:g}')")
    assert medium.view()[0] < low
    assert page.evaluate("location.hash.includes('node=')") is False, "a drag is no click"


def test_two_fingers_zoom(opened):
    found = opened(report_samples.medium(), **CALM)
    found.data(
        """() => { const lanes = document.getElementById('lanes');
        const send = (type, id, x) => lanes.dispatchEvent(new PointerEvent(type,
            { pointerId: id, pointerType: 'touch', clientX: x, clientY: 300, bubbles: true,
              button: type === 'pointermove' ? -1 : 0 }));
        send('pointerdown', 11, 500); send('pointerdown', 12, 700);
        send('pointermove', 12, 900);
        send('pointerup', 11, 500); send('pointerup', 12, 900); }"""
    )
    low, high = found.view()
    assert high - low == pytest.approx(END / 2, rel=0.01)
    assert found.data("location.hash.includes('node=')") is False, "a pinch is no click"


def test_keys_do_what_the_pointer_does(medium):
    page = medium.page
    lanes = page.locator("#lanes")
    lanes.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    chosen = page.locator("#chosen")
    assert chosen.inner_text().startswith("gpu-03: host gpu-03.cluster")
    assert chosen.get_attribute("aria-live") == "polite"
    height = page.evaluate("document.getElementById('space').offsetHeight")
    page.keyboard.press("Enter")
    assert page.evaluate("document.getElementById('space').offsetHeight") == height + 8 * 15 + 4
    medium.until("location.hash === '#node=gpu-03'")
    page.keyboard.press("n")
    assert "worker failed (gpu-03, rank 26)" in chosen.inner_text()
    assert chosen.locator("a").first.get_attribute("href") == "#incident-1"
    page.keyboard.press("n")
    assert "decision (gpu-03)" in chosen.inner_text()
    page.keyboard.press("p")
    assert "rank 26 raised ValueError" in chosen.inner_text()
    low, high = medium.view()
    assert low < 3900 < high
    page.keyboard.press("0")
    medium.until("!location.hash.includes('view=')")
    page.keyboard.press("+")
    low, high = medium.view()
    page.keyboard.press("ArrowLeft")
    medium.until(f"!location.hash.includes('view={low:g}')")
    assert medium.view()[0] < low
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "lanes"
    page.keyboard.press("Escape")
    assert chosen.inner_text() == "Nothing is chosen."


def test_the_order_of_focus_is_that_of_the_page(medium):
    page = medium.page
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("(each => each.id || each.getAttribute('href') || each.tagName)(document.activeElement)")
        )
    known = [reached.index(each) for each in ("#result", "zoom-in", "order", "search", "lanes", "#incident=1")]
    assert known == sorted(known)


def test_a_click_on_a_node_opens_its_workers_and_the_pointer_explains_them(medium):
    page = medium.page
    box = lanes_box(page)
    page.mouse.click(box["x"] + 60, box["y"] + 2 + 3 * 20 + 10)  # the fourth row's name
    medium.until("location.hash === '#node=gpu-03'")
    tip = page.locator("#tip")
    right = box["x"] + 148 + 3850 / END * (box["width"] - 148 - 14)
    page.mouse.move(right, box["y"] + 2 + 4 * 20 + 2 * 15 + 7)  # its third worker
    assert tip.inner_text().splitlines()[0] == "rank 26 (local rank 2 of gpu-03), round 0"
    assert "exit code 1" in tip.inner_text()
    assert "steps 1 to 3600" in tip.inner_text()
    page.mouse.move(right, box["y"] + 2 + 4 * 20 + 3 * 15 + 7)
    assert "stopped by the agent" in tip.inner_text()
    page.mouse.move(right - 40, box["y"] + 2 + 20 + 10)  # the second node
    assert tip.inner_text().splitlines()[0].startswith("gpu-01: productive")
    assert "round 0" in tip.inner_text()


def test_search_finds_nodes_ranks_and_events(medium):
    page = medium.page
    search, found, count = page.locator("#search"), page.locator("#found"), page.locator("#found-count")
    search.fill("gpu-1")
    assert_text(medium, "found-count", "3 found")  # two nodes, and the drain of one
    search.press("Enter")
    assert count.inner_text() == "1 of 3"
    medium.until("location.hash === '#node=gpu-10'")
    search.fill("rank 17")
    assert_text(medium, "found-count", "2 found")
    assert "gpu-02" in found.inner_text()
    found.locator("button", has_text="rank 17 is blamed").click()
    low, high = medium.view()
    assert low < 11_600 < high
    assert "no progress for 10 min; rank 17 is blamed" in page.locator("#chosen").inner_text()
    search.fill("SIGTERM of the sched")
    assert_text(medium, "found-count", "1 found")
    search.press("ArrowDown")
    page.keyboard.press("Enter")
    assert "gpu-11 drains" in page.locator("#chosen").inner_text()
    search.fill("no such thing")
    assert_text(medium, "found-count", "0 found")
    assert not found.is_visible()


def test_a_link_shows_the_same_range_node_and_incident(opened):
    first = opened(report_samples.medium(), **CALM)
    first.page.locator("#incident-1").get_by_text("Show it in the timeline").click()
    first.until("location.hash.includes('view=') && location.hash.includes('incident=1')")
    fragment = first.data("location.hash")
    assert "node=gpu-03" in fragment
    low, high = first.view()
    assert low < 3900 < high
    again = opened(report_samples.medium(), fragment, **CALM)
    again.until("document.getElementById('chosen').textContent.startsWith('Incident 1')")
    assert again.data("location.hash") == fragment
    assert again.view() == (low, high)
    assert again.data("document.getElementById('space').offsetHeight") == first.data(
        "document.getElementById('space').offsetHeight"
    )
    picture = "document.getElementById('canvas').toDataURL()"
    first.page.mouse.move(1, 1)
    again.until(f"{picture} === {json.dumps(first.data(picture))}")


@pytest.mark.parametrize(
    "fragment",
    [
        "#view=5~1",
        "#view=a~b",
        "#view=-1e9~1e99",
        "#node=nothing",
        "#node=%E0%A4%A",
        "#incident=99",
        "#incident-99",
        "#order=<b>",
        "#&&=&",
    ],
)
def test_a_damaged_link_shows_the_run(opened, fragment):
    found = opened(report_samples.medium(), fragment, **CALM)
    damaged = found.data("location.hash")
    found.page.locator("#zoom-in").click()
    found.until(f"location.hash !== {json.dumps(damaged)}")  # the view enters the address some time after the click
    low, high = found.view()
    assert 0 <= low < high <= END + 1
    assert found.complaints == []


def test_nodes_can_be_ordered_by_lost_time(medium):
    page = medium.page
    page.locator("#order").select_option("lost")
    medium.until("location.hash === '#order=lost'")
    page.locator("#lanes").press("ArrowDown")
    lost = {
        lane.node_id: sum(s for state, s in lane.states.items() if state != "productive")
        for lane in report_samples.medium().nodes
    }
    assert page.locator("#chosen").inner_text().startswith(max(lost, key=lost.get))


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_a_reader_who_prefers_reduced_motion_sees_no_movement(opened, motion):
    found = opened(report_samples.medium(), reduced_motion=motion)
    found.data(
        """() => { window.frames_ = 0;
        const request = window.requestAnimationFrame;
        window.requestAnimationFrame = (f) => { window.frames_++; return request(f); };
        document.getElementById('zoom-in').click(); }"""
    )
    found.view()
    frames = found.data("window.frames_")
    assert (frames <= 1) is (motion == "reduce")


def test_new_data_keep_the_view_and_the_open_nodes(medium):
    page = medium.page
    page.locator("#lanes").press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator("#zoom-in").click()
    before = medium.view()
    longer = report_samples.medium()
    longer = report_samples.replaced(longer, run=report_samples.replaced(longer.run, ended_s=2 * END))
    data, _ = next(timeline_data(longer))
    page.evaluate(
        "(data) => { const old = JSON.parse(document.getElementById('data').textContent);"
        " elasticReport.update({ ...old, ...data }); }",
        data,
    )
    height = page.evaluate("document.getElementById('space').offsetHeight")
    page.locator("#lanes").press("ArrowRight")
    medium.until(f"!location.hash.includes('view={before[0]:g}')")
    low, high = medium.view()
    assert high - low == pytest.approx(before[1] - before[0], abs=1)
    page.keyboard.press("0")
    medium.until("!location.hash.includes('view=')")
    page.keyboard.press("+")
    assert medium.view()[1] > END, "the run is longer now"
    assert height == 2 + 13 * 20 + 8 * 15 + 4 + 2


@pytest.mark.timeout(900)
def test_a_thousand_nodes_for_a_hundred_rounds_scroll_zoom_and_search(opened):
    html = report_samples.html("large")
    assert len(html.encode()) <= 8_000_000
    found = opened(html, **CALM)
    page = found.page
    assert "leaves out" in page.locator("#missing").inner_text()
    assert page.evaluate("document.getElementById('space').offsetHeight") > 20_000
    assert page.evaluate("document.getElementById('canvas').clientHeight") < 900, "only visible nodes are drawn"
    page.evaluate("document.getElementById('lanes').scrollTop = 15000")
    page.locator("#search").fill("rank 4711")
    assert_text(found, "found-count", "1 found")
    page.locator("#search").press("Enter")
    assert page.locator("#chosen").inner_text().startswith("node-0588")
    found.until("location.hash === '#node=node-0588'")
    for _ in range(12):
        page.locator("#zoom-in").click()
    # The view enters the address some time after the last click.
    found.until("(found => found && found[2] - found[1] < 60)(/view=([^~&]*)~([^&]*)/.exec(location.hash))")
    assert found.complaints == []


def lanes_box(page):
    """Scroll to the timeline, and return the box of its lanes in the window."""
    page.evaluate("document.getElementById('timeline').scrollIntoView()")
    return page.locator("#lanes").bounding_box()


def assert_text(found, element, text):
    found.until(f"document.getElementById('{element}').textContent === {json.dumps(text)}")
