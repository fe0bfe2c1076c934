import datetime
import re
import time

import pytest

from elastic_core.logger import TIMES, Logger, local_time
from elastic_core.system.clock import SYSTEM_CLOCK
from elastic_core.system.colours import paint_notice


@pytest.fixture
def paris(monkeypatch):
    monkeypatch.setenv("TZ", "CET-1")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_without_times_lines_are_as_they_are():
    lines = []
    log = Logger(lambda *texts: lines.append(texts))
    log.notice("text", "more")
    log.block("── head ──", "end")
    assert lines == [("elastic: text", "more"), ("── head ──", "end")]


def test_time_is_local_and_before_the_first_line_only(paris):
    lines = []
    log = Logger(lambda *texts: lines.append(texts), times="iso")
    before_s = SYSTEM_CLOCK.wall_ns() // 10**9
    log.notice("text", "more")
    ((first, more),) = lines
    shown, text = first.split(" ", 1)
    assert (text, more) == ("elastic: text", "more")
    assert shown.endswith("+01:00")
    shown_s = datetime.datetime.fromisoformat(shown).timestamp()
    assert before_s <= shown_s <= SYSTEM_CLOCK.wall_ns() / 1e9


def test_time_of_day(paris):
    lines = []
    Logger(lines.append, times="time").notice("text")
    assert re.fullmatch(r"[0-2]\d:[0-5]\d:[0-5]\d elastic: text", lines[0])
    assert local_time(TIMES["off"]) == ""


def test_the_rule_of_a_block_is_shorter_by_the_time():
    lines = []
    log = Logger(lambda *texts: lines.extend(texts), times="time")
    log.block("── failed " + "─" * 20, "text")
    log.block("a title without a rule")
    assert lines[0][9:] == "── failed " + "─" * 11
    assert lines[1] == "text"
    assert lines[2][9:] == "a title without a rule"


@pytest.mark.parametrize("colours", [True, False])
def test_a_painter_goes_only_to_what_takes_one(colours):
    calls = []
    log = Logger(lambda *lines, **more: calls.append((lines, more)), colours=colours)
    log.notice("text", painter=paint_notice)
    log.block("text", painter=paint_notice)
    log.notice("text")
    given = {"painter": paint_notice} if colours else {}
    assert calls == [(("elastic: text",), given), (("text",), given), (("elastic: text",), {})]
