"""The hook behind `TORCHELASTIC_HEALTH_CHECK_PORT`, without a run around it."""

import pytest

from elastic_core.api import AgentStarted, ConfigError, HookSettings
from elastic_plugin_kit import AgentHookConformance, FakeRun
from elastic_plugin_kit.manual_clock import ManualClock
from elastic_torchrun.agent import health_check_server
from elastic_torchrun.agent.health_hook import HealthChecks, Pulse


def made(port, **settings):
    return HealthChecks(HookSettings(name="health-check-port", options={"health_check_port": port}, **settings))


class TestHealthChecks(AgentHookConformance):
    @pytest.fixture
    def make_hook(self):
        hooks = []

        def make(run_dir):
            hooks.append(made("0", run_dir=run_dir))
            return hooks[-1]

        yield make
        for hook in hooks:
            hook.close()


class TestPulse:
    def setup_method(self):
        self.clock = ManualClock()
        self.asked = []
        self.pulse = Pulse(self.asked.append, clock=self.clock)

    def age_s(self):
        return round(self.clock.wall_ns() / 1e9 - self.pulse())

    def test_an_idle_loop_is_alive(self):
        for count in (1, 2, 3):
            self.clock.advance(600)
            assert self.age_s() <= 1
            assert len(self.asked) == count
            self.asked[-1]()  # it has answered

    def test_a_loop_that_stands_still_is_dead_since_it_was_first_asked(self):
        self.clock.advance(600)
        assert self.age_s() <= 1
        self.clock.advance(40)
        assert 39 <= self.age_s() <= 41
        self.clock.advance(40)
        assert 79 <= self.age_s() <= 81
        assert len(self.asked) == 1


@pytest.mark.parametrize("text", ["soon", "-1", "65536", "8080.0"])
def test_a_port_that_is_none_is_told(text):
    with pytest.raises(ConfigError, match=f"TORCHELASTIC_HEALTH_CHECK_PORT: '{text}'; expected a TCP port, 0 for any"):
        made(text)


def test_a_dry_run_listens_nowhere(monkeypatch):
    started = []

    class Mine(health_check_server.HealthCheckServer):
        def start(self):
            started.append(self)

    monkeypatch.setattr(health_check_server, "create_healthcheck_server", Mine)
    made("8080", dry_run=True).close()
    assert started == []


def test_a_port_that_was_chosen_is_named():
    hook = made("0")
    hook.run = FakeRun()
    hook.on_agent_started(AgentStarted(run_id="r", node_id="n", run_dir="", pid=1))
    hook.close()
    (line,) = hook.run.notices
    assert line.startswith("health checks are answered on port ")
