"""What of a plugin's class can't be called as the core calls it, or is never called, is named by the check."""

import pytest

from elastic_core.api import AgentHook, CoordinationStore, Failure, FailureHandler, RendezvousHandler
from elastic_plugin_kit.checking.declarations import fault_of_methods, misnamed_methods


def policy(decide, **more):
    return type("Policy", (FailureHandler,), {"decide": decide, **more})


async def later(self, failure, history): ...


def piecemeal(self, failure, history):
    yield None


class ByClass:
    @classmethod
    def decide(cls, failure, history): ...

    @staticmethod
    def explain(failure, history): ...


FITS = [
    policy(lambda self, failure, history: None),
    policy(lambda self, f, h: None),
    policy(lambda self, failure, history, extra=1, *, more=2: None),
    policy(lambda self, *args: None),
    policy(lambda *args, **kwargs: None),
    policy(lambda self, f, /, *rest: None),
    type("Policy", (ByClass, FailureHandler), {}),
]


@pytest.mark.parametrize("cls", FITS)
def test_methods_that_can_be_called_have_no_fault(cls):
    assert fault_of_methods(cls, FailureHandler) == ""


@pytest.mark.parametrize(
    ("cls", "fault"),
    [
        (
            policy(lambda self, failure: None),
            "has decide(self, failure); expected decide(self, failure, history)",
        ),
        (policy(lambda self, failure, history, more: None), "has decide(self, failure, history, more); "),
        (policy(lambda self, failure, history, *, more: None), "has decide(self, failure, history, *, more); "),
        (policy(lambda: None), "has decide(); "),
        (policy(lambda failure, history: None), "has decide(failure, history); "),
        (policy(staticmethod(lambda self, failure, history: None)), "has decide(self, failure, history); "),
        (policy(later), "has decide as a coroutine, which nothing awaits; expected an ordinary method"),
        (policy(piecemeal), "has decide as a generator, which nothing awaits"),
        (policy(None), "has None as decide; expected a method"),
        (policy(lambda s, f, h: None, explain=lambda self, failure: ()), "has explain(self, failure); "),
    ],
)
def test_methods_that_cant_be_called_are_named_with_what_fits(cls, fault):
    assert fault_of_methods(cls, FailureHandler).startswith(fault)


def test_the_newest_of_inherited_methods_counts():
    base = policy(lambda self, failure: None)
    mended = type("Mended", (base,), {"decide": lambda self, failure, history: None})
    assert fault_of_methods(mended, FailureHandler) == ""
    assert fault_of_methods(type("Heir", (base,), {}), FailureHandler).startswith("has decide(self, failure); ")


def test_types_of_arguments_are_no_matter():
    class Typed(FailureHandler):
        def decide(self, failure: Failure) -> None: ...

    assert fault_of_methods(Typed, FailureHandler).startswith("has decide(self, failure); ")


def test_arguments_by_keyword_are_compared_by_name():
    def fault(**methods):
        return fault_of_methods(type("Store", (CoordinationStore,), methods), CoordinationStore)

    assert fault(renew=lambda self, seat, *, ttl_s, wait: None) == ""
    assert fault(renew=lambda self, seat, ttl_s, wait: None) == ""
    assert fault(renew=lambda self, seat, **rest: None) == ""
    assert fault(where="nowhere") == ""  # a property may be an attribute
    assert fault(renew=lambda self, seat, *, ttl, wait: None) == (
        "has renew(self, seat, *, ttl, wait); expected renew(self, seat, *, ttl_s, wait)"
    )
    assert fault(renew=lambda self, seat, ttl_s, /, *, wait: None) != ""
    assert fault(renew=lambda self, seat, *, ttl_s: None) != ""


def test_handlers_and_hooks_are_compared_too():
    handler = type("Handler", (RendezvousHandler,), {"watch": lambda self: None})
    assert fault_of_methods(handler, RendezvousHandler) == "has watch(self); expected watch(self, timeout_s)"
    hook = type("Hook", (AgentHook,), {"on_drain": lambda self, event, run: None})
    assert fault_of_methods(hook, AgentHook) == "has on_drain(self, event, run); expected on_drain(self, event)"


# --- names


def hook(**methods):
    return type("Hook", (AgentHook,), dict.fromkeys(methods, lambda self, event: None))


def test_methods_that_look_like_moments_or_others_are_found():
    cls = hook(on_worker_start=0, on_created=0, cloze=0, closed=0, summary=0)
    assert misnamed_methods(cls, AgentHook) == [
        ("on_worker_start", ["on_workers_started", "on_workers_starting"]),
        ("on_created", []),
        ("cloze", ["close"]),
    ]
    helper = type("Store", (CoordinationStore,), {"withdrawn": lambda self: 1, "hostng": lambda self: 1})
    assert misnamed_methods(helper, CoordinationStore) == [("hostng", ["hosting"])]
