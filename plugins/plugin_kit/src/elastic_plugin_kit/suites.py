"""Suites of pytest for a plugin that has no tests of its own: one for each interface, from its kit.

`pytest --pyargs elastic_plugin_kit.suites --elastic-plugin NAME` runs the one that fits the plugin, and
`elastic plugins check NAME` calls that.
"""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Final

import pytest

from elastic_core.api import AgentHook, CoordinationStore, Environment, FailureHandler, RendezvousHandler
from elastic_plugin_kit.checking.pytest_plugin import SUBJECT
from elastic_plugin_kit.checking.subject import Subject
from elastic_plugin_kit.conformance import (
    AgentHookConformance,
    CommandConformance,
    CoordinationStoreConformance,
    EnvironmentConformance,
    FailureHandlerConformance,
    RendezvousConformance,
    Requirements,
)

_OWN: Final = "needs the fixture `{}` of the plugin's own tests"


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Subject:
    """Return the plugin that is checked."""
    if SUBJECT not in request.config.stash:
        pytest.exit("these suites check a plugin. Try: --elastic-plugin NAME", pytest.ExitCode.USAGE_ERROR)
    return request.config.stash[SUBJECT]


class _Loads:
    """What comes before a kit's own tests."""

    def test_a_run_loads_it(self, subject: Subject) -> None:
        """A run ends at once where it can't load the plugin; a method that nothing calls is a warning."""
        for line in subject.loaded():
            warnings.warn(line, stacklevel=1)


class TestStore(CoordinationStoreConformance, _Loads):
    """A store, at the endpoint that was named."""

    requirements: ClassVar[Requirements] = Requirements(
        pause=_OWN.format("pause_server"), empty=_OWN.format("empty_server"), nowhere=_OWN.format("connect_nowhere")
    )

    @pytest.fixture
    def connect(self, subject: Subject) -> Callable[[str], CoordinationStore]:
        """Return what makes a client."""
        return subject.store


class TestHandler(RendezvousConformance, _Loads):
    """A rendezvous handler, at the endpoint that was named."""

    most_nodes: ClassVar[int] = 1

    @pytest.fixture
    def make_handler(self, subject: Subject) -> Callable[..., RendezvousHandler]:
        """Return what makes a handler."""

        def make(**given: Any) -> RendezvousHandler:  # noqa: ANN401  # fields of RendezvousSettings
            return subject.handler(**given)

        return make


class TestPolicy(FailureHandlerConformance, _Loads):
    """A policy, with the options that were given."""

    @pytest.fixture
    def make_policy(self, subject: Subject) -> Callable[[int], FailureHandler]:
        """Return what makes a policy."""
        return subject.policy


class TestHook(AgentHookConformance, _Loads):
    """A hook, with the options that were given."""

    @pytest.fixture
    def make_hook(self, subject: Subject) -> Callable[[str], AgentHook]:
        """Return what makes a hook."""
        return subject.hook


class TestEnvironment(EnvironmentConformance, _Loads):
    """An environment, with this process's variables and those that were given."""

    elsewhere: ClassVar[Collection[str] | None] = None
    typed: ClassVar[Sequence[str] | None] = None

    @pytest.fixture
    def make_environment(self, subject: Subject) -> Callable[[Mapping[str, str]], Environment]:
        """Return what makes an environment."""
        return subject.environment

    @pytest.fixture
    def variables(self, subject: Subject) -> Mapping[str, str]:
        """Return the variables."""
        return subject.variables


class TestCommand(CommandConformance):
    """A command; its entry point is set before it is run."""
