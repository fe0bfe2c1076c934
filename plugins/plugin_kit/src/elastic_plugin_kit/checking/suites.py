"""The kits as `elastic plugins check` runs them: each asks the plugin that the fixture `subject` has."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Final

import pytest

from elastic_core.api import AgentHook, CoordinationStore, Environment, FailureHandler, RendezvousHandler
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


class TestStore(CoordinationStoreConformance):
    """A store, at the endpoint that was named."""

    requirements: ClassVar[Requirements] = Requirements(
        pause=_OWN.format("pause_server"), empty=_OWN.format("empty_server"), nowhere=_OWN.format("connect_nowhere")
    )

    @pytest.fixture
    def connect(self, subject: Subject) -> Callable[[str], CoordinationStore]:
        """Return what makes a client."""
        return subject.store


class TestHandler(RendezvousConformance):
    """A rendezvous handler, at the endpoint that was named."""

    most_nodes: ClassVar[int] = 1

    @pytest.fixture
    def make_handler(self, subject: Subject) -> Callable[..., RendezvousHandler]:
        """Return what makes a handler."""

        def make(**given: Any) -> RendezvousHandler:  # noqa: ANN401  # fields of RendezvousSettings
            return subject.handler(**given)

        return make


class TestPolicy(FailureHandlerConformance):
    """A policy, with the options that were given."""

    @pytest.fixture
    def make_policy(self, subject: Subject) -> Callable[[int], FailureHandler]:
        """Return what makes a policy."""
        return subject.policy


class TestHook(AgentHookConformance):
    """A hook, with the options that were given."""

    @pytest.fixture
    def make_hook(self, subject: Subject) -> Callable[[str], AgentHook]:
        """Return what makes a hook."""
        return subject.hook


class TestEnvironment(EnvironmentConformance):
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
