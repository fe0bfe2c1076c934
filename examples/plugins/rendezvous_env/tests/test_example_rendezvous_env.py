"""The example backend reads its environment, and says what is wrong with it."""

import pytest

from elastic_core.api import ConfigError, RendezvousSettings
from elastic_core.api.stores import WaitCancelledError
from elastic_example_rendezvous_env import EnvironmentRendezvous

VARIABLES = {"NODE_RANK": "1", "NNODES": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "1234"}


@pytest.fixture
def make(monkeypatch):
    def build(options=None, **variables):
        for name, value in (VARIABLES | variables).items():
            monkeypatch.setenv(name, value)
        defaults = {spec.name: spec.default for spec in EnvironmentRendezvous.options}
        return EnvironmentRendezvous(
            RendezvousSettings(
                backend="env",
                run_id="r",
                endpoint="",
                min_nodes=1,
                max_nodes=2,
                local_world_size=1,
                options=defaults | (options or {}),
            )
        )

    return build


def test_the_environment_is_the_round(make):
    handler = make()
    first, second = handler.next_rendezvous(), handler.next_rendezvous()
    assert (first.rank, first.world_size, first.master_addr, first.master_port) == (1, 2, "node0", 1234)
    assert second.round_token > first.round_token


def test_variables_may_have_other_names(make):
    handler = make({"rank_var": "SLURM_NODEID"}, SLURM_NODEID="0")
    assert handler.next_rendezvous().rank == 0


@pytest.mark.parametrize(
    ("variable", "value"),
    [("NODE_RANK", "2"), ("NODE_RANK", "-1"), ("NNODES", "3"), ("NNODES", "two"), ("MASTER_PORT", "0")],
)
def test_a_bad_value_is_named(make, variable, value):
    with pytest.raises(ConfigError, match=f"{variable}='{value}' is not a whole number"):
        make(**{variable: value})


def test_a_missing_variable_is_named_with_the_option_that_renames_it(make):
    with pytest.raises(ConfigError, match=r"needs the variable MASTER_ADDR, which is not set.*addr_var=NAME"):
        make(MASTER_ADDR="")


def test_watch_ends_when_the_agent_cancels(make):
    handler = make()
    handler.wait.cancel()
    with pytest.raises(WaitCancelledError):
        handler.watch(3600)
