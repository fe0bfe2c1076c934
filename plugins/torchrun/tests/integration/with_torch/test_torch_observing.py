"""Metrics and events have the names, arguments and defaults of the installed torch."""

import subprocess
import sys

from patience import patience

COMPARE = """
import importlib, inspect

PAGES = {
    "metrics": ["MetricHandler", "ConsoleMetricHandler", "NullMetricHandler", "configure", "prof", "put_metric",
                "initialize_metrics"],
    "metrics.api": importlib.import_module("torch.distributed.elastic.metrics.api").__all__,
    "events": ["record", "construct_and_record_rdzv_event", "get_logging_handler", "record_rdzv_event", "Event",
               "EventSource", "EventMetadataValue", "NodeState", "RdzvEvent"],
    "events.api": [*importlib.import_module("torch.distributed.elastic.events.api").__all__, "EventMetadataValue"],
    "events.handlers": ["get_logging_handler"],
}

def arguments(thing):
    try:
        found = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return None
    plain = (str, int, type(None))
    return [(each.name, each.kind, each.default if isinstance(each.default, plain) else "") for each in found]

def methods(thing):
    return {name: arguments(value) for name, value in vars(thing).items()
            if inspect.isfunction(value) and not name.startswith("_")}

def members(thing):
    return {name: str(each) for name, each in getattr(thing, "__members__", {}).items()}

for page, names in PAGES.items():
    theirs = importlib.import_module(f"torch.distributed.elastic.{page}")
    ours = importlib.import_module(f"elastic_core.compat.elastic.{page}")
    room = importlib.import_module(f"elastic_torchrun.{page}")
    for name in names:
        one, other = getattr(theirs, name), getattr(ours, name)
        assert other is getattr(room, name), (page, name)
        if not callable(one):
            assert one == other or str(one) == str(other), (page, name)
            continue
        assert arguments(one) == arguments(other), (page, name, arguments(one), arguments(other))
        if inspect.isclass(one):
            assert members(one) == members(other), (page, name)
            lacking = {each: takes for each, takes in methods(one).items() if methods(other).get(each) != takes}
            assert not lacking or issubclass(one, tuple), (page, name, lacking)
            assert getattr(one, "_fields", None) == getattr(other, "_fields", None), (page, name)

from torch.distributed.elastic import events as theirs
from elastic_core.compat.elastic import events as ours
told = theirs.Event("n", theirs.EventSource.WORKER, 5, {"rank": 0, "x": None})
assert str(ours.Event.deserialize(told.serialize())) == str(told)
told = theirs.RdzvEvent("n", "run", "m", "h", 7, theirs.NodeState.INIT, rank=3)
assert str(ours.RdzvEvent.deserialize(told.serialize())) == str(told)
"""


def test_names_arguments_and_json_are_torchs():
    done = subprocess.run(
        [sys.executable, "-c", COMPARE], capture_output=True, text=True, timeout=patience(100), check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
