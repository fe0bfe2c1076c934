"""Options are converted as declared; every mistake is named with the flag, what was seen and what is needed."""

import pytest

from elastic_core.errors import ConfigError
from elastic_core.option_spec import OptionSpec, RunOption
from elastic_core.plugins.conversion import TORCH_RDZV_KEYS, duration_s, resolve_options
from elastic_core.types import PolicySettings

SPECS = (
    OptionSpec(name="lease_ttl", type="float", default=5.0, unit="seconds"),
    OptionSpec(name="seats", type="int", default=2),
    OptionSpec(name="tls", type="bool", default=False),
    OptionSpec(name="prefix", type="str"),
)
NO_OPTION = "backend 'redis' has no option {!r} in --rdzv-conf; it has lease_ttl, prefix, seats, tls."


def resolve(conf, specs=SPECS, **kwargs):
    return resolve_options(conf, specs, flag="--rdzv-conf", owner="backend 'redis'", **kwargs)


def test_defaults_are_filled_in():
    assert resolve({}).values == {"lease_ttl": 5.0, "seats": 2, "tls": False, "prefix": None}


def test_values_are_converted():
    conf = {"lease_ttl": "2", "seats": "-7", "tls": "Yes", "prefix": "a=b"}
    assert resolve(conf).values == {"lease_ttl": 2.0, "seats": -7, "tls": True, "prefix": "a=b"}


@pytest.mark.parametrize("text", ["false", "0", "off", "No", "F"])
def test_words_for_false(text):
    assert resolve({"tls": text}).values["tls"] is False


def test_quotes_and_blanks_around_keys_and_values_are_stripped():
    assert resolve({'"lease_ttl"': "'3.5'", " seats ": ' "4" '}).values["lease_ttl"] == 3.5


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        (
            {"lease_tll": "2"},
            f"{NO_OPTION.format('lease_tll')} Try: --rdzv-conf lease_ttl=…",
        ),
        (
            {"zzz": "2"},
            f"{NO_OPTION.format('zzz')} Try: one of lease_ttl, prefix, seats, tls",
        ),
        (
            {"lease_ttl": "5s"},
            "--rdzv-conf lease_ttl: '5s'; expected a number. Try: --rdzv-conf lease_ttl=<a number, in seconds, default",
        ),
        ({"lease_ttl": "nan"}, "--rdzv-conf lease_ttl: 'nan'; expected a number"),
        ({"lease_ttl": "inf"}, "--rdzv-conf lease_ttl: 'inf'; expected a number"),
        ({"seats": "2.5"}, "--rdzv-conf seats: '2.5'; expected a whole number"),
        ({"tls": "maybe"}, "--rdzv-conf tls: 'maybe'; expected true or false"),
        ({"prefix": "''"}, "--rdzv-conf prefix has no value. Try: --rdzv-conf prefix=<text>"),
    ],
)
def test_mistakes_are_named(conf, message):
    with pytest.raises(ConfigError) as caught:
        resolve(conf)
    assert str(caught.value).startswith(message)


def test_required_option_is_asked_for():
    spec = OptionSpec(name="bucket", required=True)
    with pytest.raises(ConfigError, match=r"needs the option 'bucket' in --rdzv-conf\. Try: --rdzv-conf bucket=<text>"):
        resolve({}, (spec,))
    assert resolve({"bucket": "b"}, (spec,)).values == {"bucket": "b"}


def test_plugin_without_options_says_so():
    with pytest.raises(ConfigError, match=r"takes no --rdzv-conf options, but 'x' was given"):
        resolve({"x": "1"}, ())


@pytest.mark.parametrize("key", sorted(TORCH_RDZV_KEYS))
def test_keys_of_torch_warn_where_they_dont_apply(key):
    resolved = resolve({key: "30"}, tolerated=TORCH_RDZV_KEYS)
    assert resolved.warnings == (f"--rdzv-conf {key}='30' has no effect with backend 'redis'",)
    assert key not in resolved.values


def test_key_of_torch_that_is_declared_is_an_option():
    spec = OptionSpec(name="join_timeout", type="float", default=600.0)
    resolved = resolve({"join_timeout": "30"}, (spec,), tolerated=TORCH_RDZV_KEYS)
    assert resolved.values == {"join_timeout": 30.0}
    assert not resolved.warnings


# --- durations, bounds, choices, lists

TYPED = (
    OptionSpec(name="pause", type="duration", default=5),
    OptionSpec(name="lease", type="duration", above=0, default=5),
    OptionSpec(name="ratio", type="float", least=0, most=1, default=1),
    OptionSpec(name="ranks", type="int", least=1, many=True),
    OptionSpec(name="codes", type="int", most=255, many=True, default="75:137"),
    OptionSpec(name="mode", choices=("gentle", "quick"), default="quick"),
    OptionSpec(name="level", type="int", choices=("1", "2"), default=2),
)
LIMIT = (OptionSpec(name="limit", type="duration", least=1, words=("auto",)),)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30.0), ("30s", 30.0), ("1.5h", 5400.0), ("5M", 300.0), ("250ms", 0.25), ("1d", 86400.0), (".5 s", 0.5)],
)
def test_a_duration_is_seconds(text, seconds):
    assert resolve({"pause": text}, TYPED).values["pause"] == seconds


@pytest.mark.parametrize("text", ["-1", "1w", "s", "5 minutes", "inf", "nan", "1h30m", "٣s"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ConfigError, match=f"pause: '{text}'; expected seconds, 0 or more, or a time as 30s, 5m or 1h"):
        resolve({"pause": text}, TYPED)


@pytest.mark.parametrize(("text", "value"), [("auto", "auto"), (" AUTO", "auto"), ("2m", 120.0)])
def test_a_duration_may_be_a_declared_word_instead(text, value):
    assert resolve({"limit": text}, LIMIT).values["limit"] == value


@pytest.mark.parametrize("text", ["atuo", "auto 5", "0"])
def test_a_rejected_value_names_the_words(text):
    with pytest.raises(ConfigError, match="expected seconds, 1 or more, or a time as 30s, 5m or 1h, or auto"):
        resolve({"limit": text}, LIMIT)


def test_defaults_are_of_the_declared_type():
    resolved = resolve({}, TYPED)
    assert resolved.values == {"pause": 5.0, "lease": 5.0, "ratio": 1.0, "mode": "quick", "level": 2}
    assert [type(resolved.values[name]) for name in ("pause", "ratio", "level")] == [float, float, int]
    assert resolved.lists == {"ranks": (), "codes": (75, 137)}


def test_lists_stand_between_colons_and_bounds_are_allowed_themselves():
    conf = {"ranks": "1: 3", "codes": "255", "ratio": "0", "mode": "gentle", "level": "1"}
    resolved = resolve(conf, TYPED)
    assert resolved.lists == {"ranks": (1, 3), "codes": (255,)}
    assert resolved.values == {"pause": 5.0, "lease": 5.0, "ratio": 0.0, "mode": "gentle", "level": 1}


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        (
            {"ratio": "1.5"},
            "ratio: '1.5'; expected a number from 0 to 1. Try: --rdzv-conf ratio=<a number from 0 to 1, ",
        ),
        (
            {"ranks": "2:0"},
            "ranks: '0'; expected a whole number, 1 or more. Try: --rdzv-conf ranks=<a whole number, ",
        ),
        ({"ranks": "2:"}, "ranks has no value. Try: --rdzv-conf ranks=<a whole number, 1 or more>:…"),
        ({"lease": "0"}, "lease: '0'; expected seconds, more than 0, or a time as 30s, 5m or 1h"),
        ({"codes": "256"}, "codes: '256'; expected a whole number, at most 255"),
        ({"mode": "quik"}, "mode: 'quik'; expected one of gentle, quick. Try: --rdzv-conf mode=quick"),
        ({"level": "3"}, "level: '3'; expected one of 1, 2. Try: --rdzv-conf level=<one of 1, 2, default 2>"),
    ],
)
def test_what_a_declaration_excludes_is_named(conf, message):
    with pytest.raises(ConfigError) as caught:
        resolve(conf, TYPED)
    assert str(caught.value).startswith(f"--rdzv-conf {message}")


def test_a_flag_that_is_given_otherwise_is_judged_as_the_flag_is():
    spec = RunOption(name="tag", hook="a:B", fault=lambda text: "" if text.islower() else "small letters", hint="red")
    assert resolve({"tag": "red"}, (spec,)).values == {"tag": "red"}
    with pytest.raises(ConfigError, match=r"--rdzv-conf tag: 'Red'; expected small letters\. Try: red"):
        resolve({"tag": "Red"}, (spec,))


# --- read by the plugin


def settings(**options):
    return PolicySettings(name="p", options=options, lists={"codes": (75, 137)})


def test_options_are_read_as_they_were_declared():
    given = settings(pause=2, n=3, on=False, prefix=None, path="")
    assert (given.option("pause", float), type(given.option("pause", float))) == (2.0, float)
    assert given.option("n", int) == 3
    assert given.option("on", bool) is False
    assert given.option("path", str) == ""
    assert given.option("prefix", str, "p") == "p"
    assert given.option("prefix", str, None) is None
    assert given.option("n", int, 5) == 3
    assert given.option_list("codes", int) == (75, 137)
    assert given.option_list("codes", float) == (75.0, 137.0)


@pytest.mark.parametrize(
    ("read", "error", "text"),
    [
        (
            lambda s: s.option("pasue", float),
            LookupError,
            "no option 'pasue' is declared in `options`; declared: pause",
        ),
        (lambda s: s.option("pasue", float, 1.0), LookupError, "no option 'pasue' is declared"),
        (lambda s: s.option("prefix", str), LookupError, r"option 'prefix' was not given and has no default: option"),
        (lambda s: s.option("pause", str), TypeError, "option 'pause' is 2.0, of type float, not str"),
        (lambda s: s.option("pause", int), TypeError, "not int"),
        (lambda s: s.option("on", int), TypeError, "option 'on' is True, of type bool, not int"),
        (lambda s: s.option("on", float), TypeError, "not float"),
        (
            lambda s: s.option_list("pause", float),
            LookupError,
            "no list 'pause' is declared in `options`; declared: codes",
        ),
        (lambda s: s.option_list("codes", str), TypeError, "option 'codes' is 75, of type int, not str"),
    ],
)
def test_what_cant_be_read_so_is_said(read, error, text):
    with pytest.raises(error, match=text):
        read(settings(pause=2.0, on=True, prefix=None))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10", 10.0),
        (" 10s", 10.0),
        ("500ms", 0.5),
        ("2m", 120.0),
        ("1.5 h", 5400.0),
        ("1D", 86400.0),
        (".5", 0.5),
        ("1e2", 100.0),
        *((text, None) for text in ("", "s", "soon", "-1", "-1s", "nan", "inf", "infs", "1e999", "2 weeks", "1h30")),
    ],
)
def test_a_time_may_have_a_unit(text, seconds):
    assert duration_s(text) == seconds
