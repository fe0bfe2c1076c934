"""Our policy, and the example policy and hook, pass the kits for strangers'."""

import pytest

from elastic_core.api import AgentHook, HookSettings, PolicySettings
from elastic_core.failure.intensity import Intensity
from elastic_core.history import HISTORY_LIMIT
from elastic_core.hooks import runner
from elastic_example_hook_jsonl import MomentLog
from elastic_example_policy_never import NeverRetry
from elastic_plugin_kit import AgentHookConformance, FailureHandlerConformance
from elastic_plugin_kit.conformance import failure as policy_kit
from elastic_plugin_kit.conformance import hook as hook_kit


class TestIntensity(FailureHandlerConformance):
    @pytest.fixture
    def make_policy(self):
        return lambda max_restarts: Intensity(PolicySettings(name="intensity", max_restarts=max_restarts))


class TestIntensityWithEverything(FailureHandlerConformance):
    @pytest.fixture
    def make_policy(self):
        return lambda max_restarts: Intensity(
            PolicySettings(
                name="intensity",
                max_restarts=max_restarts,
                restart_window_s=1e9,
                restart_backoff_s=3.0,
                fatal_exit_codes=(255,),
            )
        )


class TestExamplePolicy(FailureHandlerConformance):
    @pytest.fixture
    def make_policy(self):
        given = {"options": {"pause": 1.0}, "lists": {"exceptions": ("KeyError",)}}
        return lambda max_restarts: NeverRetry(PolicySettings(name="never", max_restarts=max_restarts, **given))


class TestExampleHook(AgentHookConformance):
    @pytest.fixture
    def make_hook(self):
        return lambda run_dir: MomentLog(HookSettings(name="jsonl", run_id="sample", run_dir=run_dir))


def test_the_kit_knows_how_long_a_history_is():
    assert policy_kit.HISTORY_LIMIT == HISTORY_LIMIT


def test_the_kit_knows_the_same_moments_as_the_agent():
    assert hook_kit.METHODS == runner.METHODS
    assert {name for name in dir(AgentHook) if name.startswith("on_")} == {*hook_kit.METHODS.values(), "on_moment"}
