"""Options are converted as declared; every mistake is named with the flag, what was seen and what is needed."""

import pytest

from elastic_core.errors import ConfigError
from elastic_core.plugins.options import TORCH_RDZV_KEYS, resolve_options
from elastic_core.types import OptionSpec

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
            "--rdzv-conf lease_ttl='5s' is not a number. Try: --rdzv-conf lease_ttl=<a number, in seconds, default 5",
        ),
        ({"lease_ttl": "nan"}, "--rdzv-conf lease_ttl='nan' is not a number"),
        ({"lease_ttl": "inf"}, "--rdzv-conf lease_ttl='inf' is not a number"),
        ({"seats": "2.5"}, "--rdzv-conf seats='2.5' is not a whole number"),
        ({"tls": "maybe"}, "--rdzv-conf tls='maybe' is not true or false"),
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
