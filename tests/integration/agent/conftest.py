"""Fixtures of the tests in these folders."""

import pytest

from guard_kit import Agent, Place


@pytest.fixture
def agents():
    """Start agents; they are ended after the test, with all that they started."""
    started = []

    def start(**env):
        started.append(Agent(**env))
        return started[-1]

    yield start
    for agent in started:
        agent.close()


@pytest.fixture
def agent(agents):
    return agents()


@pytest.fixture
def place(redis_server):
    place = Place(redis_server)
    yield place
    place.store.close()
