"""The kit for environments bites: a broken one fails where its defect is named, and only there."""

import pytest

from broken.environments import ENVIRONMENTS, VARIABLES, Acme, Stubborn
from elastic_plugin_kit import EnvironmentConformance
from test_broken_plugins import SEPARATE, kit_tests, run_one

A_RUN = "test_a_run_takes_what_is_proposed"  # a process each; tried once below
TESTS = sorted(set(kit_tests(EnvironmentConformance)) - {A_RUN} - SEPARATE)


class ShownByAcme(EnvironmentConformance):
    shown_by = "ACME_JOB"

    @pytest.fixture
    def make_environment(self):
        return Acme

    @pytest.fixture
    def variables(self):
        return VARIABLES


class TestAcme(ShownByAcme):
    """The one that the broken ones are made of keeps all."""


@pytest.mark.parametrize(("cls", "expected"), ENVIRONMENTS, ids=[cls.__name__ for cls, _ in ENVIRONMENTS])
def test_a_broken_environment_fails_where_its_defect_is_named(cls, expected, monkeypatch):
    monkeypatch.delenv("ACME_SEEN", raising=False)  # what one of them sets
    given = {"make_environment": lambda: cls, "variables": lambda: dict(VARIABLES)}
    told = {name: run_one(ShownByAcme(), getattr(ShownByAcme, name), given) for name in TESTS}
    found = {name: err for name, err in told.items() if err is not None}
    assert set(found) == expected, "\n".join(f"{name}: {err!r}" for name, err in found.items())


def test_every_test_catches_something():
    caught = frozenset().union(*(tests for _, tests in ENVIRONMENTS))
    assert set(TESTS) - caught == {"test_its_variable_shows_it"}, "which is tried below"


@pytest.mark.parametrize(
    ("name", "variables", "words"),
    [
        ("", VARIABLES, "must set `shown_by`"),
        ("ACME JOB", VARIABLES, "expected the name of a variable"),
        ("ACME_NONE", VARIABLES, "is not in `variables`"),
        ("PET_JOB", {"PET_JOB": "1"}, "is the variable of an option"),
    ],
)
def test_what_does_not_show_an_environment_is_named(name, variables, words):
    kit = type("TestIt", (EnvironmentConformance,), {"shown_by": name})()
    with pytest.raises(AssertionError, match=words):
        kit.test_its_variable_shows_it(variables)


def test_a_run_says_which_proposal_it_does_not_take(tmp_path):
    with pytest.raises(AssertionError, match="--nnodes: 'two' by Acme: ACME_NODES; expected a number of nodes"):
        ShownByAcme().test_a_run_takes_what_is_proposed(Stubborn, VARIABLES, tmp_path)


@pytest.mark.parametrize(
    ("elsewhere", "outcome"), [(set(), AssertionError), (None, pytest.skip.Exception), ({"nnode"}, None)]
)
def test_an_option_that_nothing_installed_has_is_proposed_by_leave(elsewhere, outcome):
    (cls,) = [cls for cls, _ in ENVIRONMENTS if cls.__name__ == "MisspellsAnOption"]
    kit = type("TestIt", (ShownByAcme,), {"elsewhere": elsewhere})()
    if outcome is None:
        kit.test_options_are_known(cls, VARIABLES)
    else:
        with pytest.raises(outcome, match="nnode"):
            kit.test_options_are_known(cls, VARIABLES)
