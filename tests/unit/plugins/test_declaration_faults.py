"""What of a plugin's class does not fit is said when it is loaded, with its distribution, not when a run needs it."""

import pytest

from elastic_core.api import (
    AgentHook,
    CoordinationStore,
    Failure,
    FailureHandler,
    RendezvousHandler,
    RunOption,
)
from elastic_core.option_spec import OptionSpec
from elastic_core.plugins.declaration_faults import fault_of_methods, fault_of_options, misnamed_methods

GOOD = OptionSpec(name="pause", type="float", default=2)


@pytest.mark.parametrize(
    "declared",
    [
        (),
        (GOOD,),
        [GOOD],
        (OptionSpec(name="n", type="int", default=0), OptionSpec(name="on", type="bool", default=False)),
        (OptionSpec(name="n", type="duration", default=5),),
        (OptionSpec(name="l", many=True, type="int", default="1:2"),),
        (OptionSpec(name="level", type="int", choices=("1", "2"), default=2),),
        (RunOption(name="profile", hook="a:B", choices=("cpu", "memory"), default="cpu"),),
    ],
)
def test_sound_options_have_no_fault(declared):
    assert fault_of_options(declared) == ""


@pytest.mark.parametrize(
    ("declared", "fault"),
    [
        (("x",), "has 'x' in options; an OptionSpec is needed"),
        (GOOD, "has options of type OptionSpec; a tuple of OptionSpec is needed"),
        ({"pause": GOOD}, "has options of type dict; a tuple of OptionSpec is needed"),
        (None, "has options of type NoneType; a tuple of OptionSpec is needed"),
        (
            (OptionSpec(name="pause", type="interval"),),
            "has an option 'pause' with type 'interval'; one of ",
        ),
        ((GOOD, GOOD), "has two options named 'pause'; one is needed"),
        (
            (OptionSpec(name="n", type="int", default="abc"),),
            "has an option 'n' with default 'abc'; a whole number is needed",
        ),
        (
            (OptionSpec(name="n", type="int", default=True),),
            "has an option 'n' with default True; a whole number is needed",
        ),
        (
            (RunOption(name="profile", hook="a:B", choices=("cpu", "memory"), default="disk"),),
            "has an option 'profile' with default 'disk'; one of cpu, memory is needed",
        ),
        (
            (OptionSpec(name="n", type="int", least=1, default=0),),
            "has an option 'n' with default 0; a whole number, 1 or more is needed",
        ),
        (
            (OptionSpec(name="n", type="duration", default="5s"),),
            "has an option 'n' with default '5s'; seconds, 0 or more, or a ",
        ),
        (
            (OptionSpec(name="n", type="int", many=True, default="1:x"),),
            "has an option 'n' with default '1:x'; ",
        ),
        ((OptionSpec(name="n", choices="ab"),), "has an option 'n' with choices 'ab'; a tuple of texts is needed"),
        ((OptionSpec(name="a,b"),), "has an option 'a,b' that can't be typed"),
        ((OptionSpec(name=""),), "has an option '' that can't be typed"),
    ],
)
def test_options_that_are_none_are_named(declared, fault):
    assert fault_of_options(declared).startswith(fault)


# --- signatures


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
            "has decide(self, failure); decide(self, failure, history) is needed",
        ),
        (policy(lambda self, failure, history, more: None), "has decide(self, failure, history, more); "),
        (policy(lambda self, failure, history, *, more: None), "has decide(self, failure, history, *, more); "),
        (policy(lambda: None), "has decide(); "),
        (policy(lambda failure, history: None), "has decide(failure, history); "),
        (policy(staticmethod(lambda self, failure, history: None)), "has decide(self, failure, history); "),
        (policy(later), "has decide as a coroutine, which nothing awaits; an ordinary method is needed"),
        (policy(piecemeal), "has decide as a generator, which nothing awaits"),
        (policy(None), "has None as decide; a method is needed"),
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
        "has renew(self, seat, *, ttl, wait); renew(self, seat, *, ttl_s, wait) is needed"
    )
    assert fault(renew=lambda self, seat, ttl_s, /, *, wait: None) != ""
    assert fault(renew=lambda self, seat, *, ttl_s: None) != ""


def test_handlers_and_hooks_are_compared_too():
    handler = type("Handler", (RendezvousHandler,), {"watch": lambda self: None})
    assert fault_of_methods(handler, RendezvousHandler) == "has watch(self); watch(self, timeout_s) is needed"
    hook = type("Hook", (AgentHook,), {"on_drain": lambda self, event, run: None})
    assert fault_of_methods(hook, AgentHook) == "has on_drain(self, event, run); on_drain(self, event) is needed"


# --- names


def hook(**methods):
    return type("Hook", (AgentHook,), dict.fromkeys(methods, lambda self, event: None))


def test_a_moment_that_is_nearly_one_is_found():
    cls = hook(on_worker_start=0, on_failure=0, on_created=0, summary=0, close_all=0, _on_drian=0)
    assert misnamed_methods(cls, AgentHook) == [("on_worker_start", ["on_workers_started", "on_workers_starting"])]


def test_the_list_of_plugins_has_all_that_look_like_moments_or_methods():
    cls = hook(on_worker_start=0, on_created=0, cloze=0, closed=0, summary=0)
    assert misnamed_methods(cls, AgentHook, every=True) == [
        ("on_worker_start", ["on_workers_started", "on_workers_starting"]),
        ("on_created", []),
        ("cloze", ["close"]),
    ]
    helper = type("Store", (CoordinationStore,), {"withdrawn": lambda self: 1, "hostng": lambda self: 1})
    assert misnamed_methods(helper, CoordinationStore, every=True) == [("hostng", ["hosting"])]
