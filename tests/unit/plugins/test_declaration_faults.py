"""Options that a plugin declares wrongly are named when it is loaded, not when a run needs them."""

import pytest

from elastic_core.api import RunOption
from elastic_core.option_spec import OptionSpec
from elastic_core.plugins.declaration_faults import fault_of_options

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
        (("x",), "has 'x' in options; expected an OptionSpec"),
        (GOOD, "has options of type OptionSpec; expected a tuple of OptionSpec"),
        ({"pause": GOOD}, "has options of type dict; expected a tuple of OptionSpec"),
        (None, "has options of type NoneType; expected a tuple of OptionSpec"),
        (
            (OptionSpec(name="pause", type="interval"),),
            "has an option 'pause' with type 'interval'; expected one of ",
        ),
        ((GOOD, GOOD), "has two options named 'pause'; expected one"),
        (
            (OptionSpec(name="n", type="int", default="abc"),),
            "has an option 'n' with default 'abc'; expected a whole number",
        ),
        (
            (OptionSpec(name="n", type="int", default=True),),
            "has an option 'n' with default True; expected a whole number",
        ),
        (
            (RunOption(name="profile", hook="a:B", choices=("cpu", "memory"), default="disk"),),
            "has an option 'profile' with default 'disk'; expected one of cpu, memory",
        ),
        (
            (OptionSpec(name="n", type="int", least=1, default=0),),
            "has an option 'n' with default 0; expected a whole number, 1 or more",
        ),
        (
            (OptionSpec(name="n", type="duration", default="5s"),),
            "has an option 'n' with default '5s'; expected seconds, 0 or more, or a ",
        ),
        (
            (OptionSpec(name="n", type="int", many=True, default="1:x"),),
            "has an option 'n' with default '1:x'; ",
        ),
        ((OptionSpec(name="n", choices="ab"),), "has an option 'n' with choices 'ab'; expected a tuple of texts"),
        ((OptionSpec(name="a,b"),), "has an option 'a,b' that can't be typed"),
        ((OptionSpec(name=""),), "has an option '' that can't be typed"),
    ],
)
def test_options_that_are_none_are_named(declared, fault):
    assert fault_of_options(declared).startswith(fault)
