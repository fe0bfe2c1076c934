"""The interface of events: JSON there and back, destinations, and the time."""

import json
import logging
import os
import sys
from types import SimpleNamespace

import pytest

from elastic_core.errors import ConfigError
from elastic_torchrun import events
from elastic_torchrun.events import handlers, recording


class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.got = []

    def emit(self, record):
        self.got.append(json.loads(record.getMessage()))


@pytest.fixture
def kept(monkeypatch):
    """Return the handler of the destination `kept`."""
    handler = Kept()
    monkeypatch.setattr(handlers, "log_handlers", {**handlers.log_handlers, "kept": handler})
    monkeypatch.setattr(recording, "_attached", {})
    monkeypatch.setattr(recording, "_configured", [events.NullEventHandler()])
    monkeypatch.delenv("LOGLEVEL", raising=False)
    yield handler
    for name in ("kept", "dynamic_rendezvous"):
        logging.getLogger(f"torchelastic-events-{name}").handlers.clear()


def event(**fields):
    return events.Event(**{"name": "torchelastic.x", "source": events.EventSource.AGENT, **fields})


def test_there_and_back():
    told = event(timestamp=5, metadata={"rank": 0, "name": "n", "nothing": None})
    assert events.Event.deserialize(told.serialize()) == told
    assert events.Event.deserialize(told) is told
    assert json.loads(str(told))["source"] == "AGENT"


def test_there_and_back_for_a_rendezvous():
    told = events.RdzvEvent("n", "run", "m", "host", 7, events.NodeState.RUNNING, rank=3)
    assert events.RdzvEvent.deserialize(str(told)) == told


def test_a_recorded_event_has_the_time(kept):
    events.record(event(), "kept")
    events.record(event(timestamp=5), "kept")
    assert kept.got[0]["timestamp"] > 1.7e12
    assert kept.got[1]["timestamp"] == 5


def test_nothing_is_said_by_default(kept, capfd):
    events.record(event())
    assert capfd.readouterr() == ("", "")


def test_an_unknown_destination_is_a_key_error(kept):
    with pytest.raises(KeyError, match="no event handler 'nowhere'"):
        events.record(event(), "nowhere")


@pytest.mark.parametrize(("word", "count"), [("WARNING", 0), ("warning", 0), ("40", 0), ("DEBUG", 1), ("nonsense", 1)])
def test_loglevel_is_heeded(kept, monkeypatch, word, count):
    monkeypatch.setenv("LOGLEVEL", word)
    events.record(event(), "kept")
    assert len(kept.got) == count


def test_a_configured_handler_gets_every_event(kept):
    got = []

    class Mine(events.EventHandler):
        def record(self, event):
            got.append(event.name)

    events.configure(Mine())
    assert recording.wants_events("null")
    events.record(event(name="one"))
    events.record(event(name="two"), "kept")
    assert got == ["one", "two"]
    assert [each["name"] for each in kept.got] == ["two"]


def test_events_of_a_rendezvous_go_where_somebody_listens(kept):
    def tell(**fields):
        events.construct_and_record_rdzv_event("run", "text", events.NodeState.RUNNING, **fields)

    tell()
    assert not recording.wants_events("null")
    handlers.log_handlers["dynamic_rendezvous"] = kept
    assert recording.wants_events("null")
    tell()
    tell(name="joined", rank=2, hostname="h", pid=5)
    first, second = kept.got
    assert (first["name"], first["pid"], first["node_state"]) == (
        f"{os.path.basename(__file__)}:tell",
        os.getpid(),
        "RUNNING",
    )
    assert (second["name"], second["rank"], second["hostname"]) == (f"{os.path.basename(__file__)}:joined", 2, "h")
    assert first["error_trace"] == ""


def test_a_failed_rendezvous_has_its_traceback(kept):
    handlers.log_handlers["dynamic_rendezvous"] = kept
    try:
        raise ValueError("boom")
    except ValueError:
        events.construct_and_record_rdzv_event("run", "text", events.NodeState.FAILED)
    assert "ValueError: boom" in kept.got[0]["error_trace"]


def test_a_handler_that_is_replaced_gets_no_more(kept):
    events.record(event(name="one"), "kept")
    later = handlers.log_handlers["kept"] = Kept()
    events.record(event(name="two"), "kept")
    assert [each["name"] for each in (*kept.got, *later.got)] == ["one", "two"]


def test_json_lines(tmp_path, kept):
    destination = f"jsonl:{tmp_path / 'e.jsonl'}"
    events.record(event(metadata={"a": 1}), destination)
    events.record(event(name="two"), destination)
    handler = events.get_logging_handler(destination)
    handler.close()
    logging.getLogger(f"torchelastic-events-{destination}").handlers.clear()
    first, second = (events.Event.deserialize(line) for line in (tmp_path / "e.jsonl").read_text().splitlines())
    assert (first.metadata, second.name) == ({"a": 1}, "two")


def test_a_handler_that_is_installed_is_found_by_its_name(tmp_path, kept, monkeypatch):
    (tmp_path / "my_events.py").write_text("from logging import NullHandler\nclass Mine(NullHandler): pass\n")
    meta = tmp_path / "my_events-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: my-events\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text("[elastic_core.events]\nmine = my_events:Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert type(events.get_logging_handler("mine")).__name__ == "Mine"
    sys.modules.pop("my_events")


def test_a_file_that_can_not_be_opened_is_one_line():
    with pytest.raises(
        ConfigError, match=r"^event file '/nowhere/e' can't be opened: No such file or directory\. Try: "
    ):
        events.get_logging_handler("jsonl:/nowhere/e")


# --- events of an agent, for what this process has configured


RDZV = events.RdzvEvent("joined", "run", "m", "host", 7, events.NodeState.RUNNING)


def handed(text, conf):
    """Hand an event of the agent to the handler `configured`."""
    handler = recording.ConfiguredEvents(SimpleNamespace(conf=conf))
    handler.handle(logging.LogRecord("x", logging.INFO, __file__, 0, text, None, None))


def test_an_agent_s_events_go_to_their_destination_and_to_the_configured_handler(kept):
    got = []

    class Mine(events.EventHandler):
        def record(self, event):
            got.append(event)

    events.configure(Mine())
    handed(event(timestamp=5).serialize(), "kept")
    handed(RDZV.serialize(), "kept")
    assert got == [event(timestamp=5)]
    assert [each["name"] for each in kept.got] == ["torchelastic.x", "joined"]


def test_an_agent_s_events_of_a_rendezvous_go_to_their_handler_once(kept):
    handlers.log_handlers["dynamic_rendezvous"] = kept
    for conf in ("", "dynamic_rendezvous"):
        handed(RDZV.serialize(), conf)
    handed(event(timestamp=5).serialize(), "")
    assert [each["name"] for each in kept.got] == ["joined", "joined"]


def test_a_destination_of_the_process_s_own_is_wanted(kept):
    assert recording.wants_events("kept")
    assert not recording.wants_events("console")
    handlers.log_handlers["console"] = kept
    assert recording.wants_events("console")
    with pytest.raises(KeyError, match="no event handler 'nowhere'"):
        recording.ConfiguredEvents(SimpleNamespace(conf="nowhere"))
