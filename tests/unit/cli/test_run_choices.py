"""Which store the options of a command mean."""

import pytest

from elastic_core.cli.run_choices import chosen_store, open_store
from elastic_core.errors import ConfigError

REDIS = {"rdzv_backend": "redis", "rdzv_endpoint": "r:6379", "rdzv_id": "bert-7"}
VARIABLES = {f"PET_{name.upper()}": value for name, value in REDIS.items()}


def test_none_is_named():
    assert chosen_store({}, {}) is None


@pytest.mark.parametrize(("given", "environ"), [(REDIS, {}), ({}, VARIABLES), ({"rdzv_id": "bert-7"}, VARIABLES)])
def test_by_the_command_line_or_the_environment(given, environ):
    choice = chosen_store(given, environ)
    assert (choice.backend, choice.endpoint, choice.run_id, choice.limit_s) == ("redis", "r:6379", "bert-7", 5.0)


@pytest.mark.parametrize(
    "environ", [{"PET_RDZV_ENDPOINT": "r:6379"}, {"PET_RDZV_BACKEND": "redis"}, {"PET_RDZV_ID": "x"}]
)
def test_half_an_environment_names_none(environ):
    assert chosen_store({}, environ) is None


def test_the_options_of_the_backend():
    choice = chosen_store(REDIS | {"rdzv_conf": "password_file=/p,lease_ttl=3", "connect_timeout": "0.5"}, {})
    assert choice.conf == {"password_file": "/p", "lease_ttl": "3"}
    assert choice.limit_s == 0.5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rdzv_id": "x"}, "no rendezvous backend is named; expected"),
        ({"rdzv_backend": "redis"}, "no run id"),
        (REDIS | {"rdzv_conf": "nonsense"}, "has no value"),
        (REDIS | {"connect_timeout": "0"}, "connect-timeout"),
    ],
)
def test_what_is_missing_or_malformed_is_named(given, said):
    with pytest.raises(ConfigError, match=said):
        chosen_store(given, {})


@pytest.mark.parametrize("backend", ["static", "local"])
def test_a_backend_without_a_store_is_refused(backend):
    choice = chosen_store(REDIS | {"rdzv_backend": backend}, {})
    with pytest.raises(ConfigError, match="keeps no store"):
        open_store(choice)
