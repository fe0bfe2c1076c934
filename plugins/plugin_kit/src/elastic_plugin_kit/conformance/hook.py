"""The kit for hooks: tests that an `AgentHook` handles every moment, in time, and returns only what a moment allows."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Final, get_type_hints

import msgspec
import pytest

from elastic_core.api import (
    SYSTEM_CLOCK,
    AgentHook,
    LaunchChange,
    Launches,
    Moment,
    Power,
    Refuse,
    RoundJoining,
    WorkersStarting,
)
from elastic_core.api.starters import fault_of_variable
from elastic_plugin_kit.conformance.kit import Kit, check_api_version, check_options, in_time
from elastic_plugin_kit.conformance.kit_process import (
    check_imports,
    no_heavy_imports,
    nothing_changed,
    nothing_left,
    put_back,
)
from elastic_plugin_kit.fake_run import FakeRun
from elastic_plugin_kit.samples import sample_feed, sample_moments

MakeHook = Callable[[str], AgentHook]
"""What the fixture `make_hook` gives: called with a run directory, it returns a new hook."""

ABANDONED_S: Final = 5.0
"""An agent waits no longer for a call: the hook is off then."""
QUICK_S: Final = 2.0
"""What a call that is well may take on a busy machine."""

_CATCH_ALL: Final = "on_moment"
METHODS: Final[dict[type, str]] = {
    get_type_hints(method)["event"]: name
    for name, method in vars(AgentHook).items()
    if name.startswith("on_") and name != _CATCH_ALL
}
"""Which method of the interface takes which moment: as it is annotated there."""
ANSWERS: Final[dict[type, tuple[type, ...]]] = {RoundJoining: (Refuse,), WorkersStarting: (Launches, Refuse)}
POWERS: Final[dict[type, Power]] = {Launches: Power.LAUNCHES, Refuse: Power.REFUSAL}
"""What each answer needs."""


class AgentHookConformance(Kit):
    """Subclass it and give the fixture `make_hook`: a function from a run directory to a new hook."""

    page: ClassVar[str] = "hook.md"

    @pytest.fixture
    def make_hook(self) -> MakeHook:
        """Return a function that makes a hook: the one fixture that a subclass must give."""
        pytest.fail(f"{type(self).__name__} must give the fixture `make_hook`: a function from a run directory")

    @pytest.fixture(autouse=True)
    def _put_back(self) -> Iterator[None]:
        """Have each test begin with what workers inherit as the one before has found it."""
        with put_back():
            yield

    @pytest.fixture
    def hook(self, make_hook: MakeHook, tmp_path: Path) -> AgentHook:
        """Return a hook of this test's own."""
        return make_hook(str(tmp_path))

    @pytest.fixture
    def moments(self, tmp_path: Path) -> tuple[Moment, ...]:
        """Return the moments of a run, in order."""
        return sample_moments(run_dir=str(tmp_path))

    def test_the_api_version_is_stated(self, hook: AgentHook) -> None:
        """The class states the version of the interfaces that it was written for."""
        check_api_version(type(hook))

    def test_the_options_are_declared_well(self, hook: AgentHook) -> None:
        """The core can report each wrong value of an option."""
        check_options(type(hook).__name__, type(hook).options)

    def test_the_powers_are_stated_well(self, hook: AgentHook) -> None:
        """`powers` is a set of `Power`."""
        cls = type(hook)
        assert isinstance(cls.powers, (set, frozenset)), (
            f"`powers` of {cls.__name__} is {cls.powers!r}; expected a set of Power"
        )
        assert all(isinstance(power, Power) for power in cls.powers), (
            f"`powers` of {cls.__name__} is {cls.powers!r}; expected only Power"
        )
        closed = getattr(cls, "fail_closed", False)
        assert not closed or Power.REFUSAL in cls.powers, (
            f"{cls.__name__} has fail_closed without Power.REFUSAL; expected both"
        )
        for name, power in (("worker_starter", Power.STARTS), ("master_server", Power.HOSTS)):
            assert _overrides(hook, name) == (power in cls.powers), (
                f"{cls.__name__} has only one of `{name}` and the power {power.value!r}; expected both"
            )
        if Power.HOLDS in cls.powers:
            assert Power.RUN in cls.powers, (
                f"{cls.__name__} has Power.HOLDS without Power.RUN; expected both, for `self.run.release_stop()`"
            )
            hold_s = hook.hold_s
            known = isinstance(hold_s, int | float) and 0 <= hold_s < float("inf")
            assert known, f"`hold_s` is {hold_s!r}; expected a number of seconds"

    def test_its_import_is_light(self, hook: AgentHook) -> None:
        """A hook that brings torch or numpy into the agent's process is left out of every run."""
        check_imports(type(hook))

    def test_it_is_told_of_something(self, hook: AgentHook) -> None:
        """At least one moment's method is overridden, by its right name."""
        told = {name for name in (*METHODS.values(), _CATCH_ALL) if _overrides(hook, name)}
        assert told or {Power.STARTS, Power.HOSTS} & type(hook).powers, (
            "the hook overrides no moment; expected at least one `on_…` method of AgentHook"
        )
        strange = {name for name in dir(type(hook)) if name.startswith("on_")} - {*METHODS.values(), _CATCH_ALL}
        assert not strange, (
            f"the class has {sorted(strange)}, which nothing calls; expected some of {sorted(METHODS.values())}"
        )

    def test_every_moment_is_taken(self, hook: AgentHook, moments: tuple[Moment, ...]) -> None:
        """The moments of a run with failures, restarts, newcomers and a stop signal: none raises."""
        for moment in moments:
            _tell(hook, moment)

    def test_every_moment_is_quick(self, hook: AgentHook, moments: tuple[Moment, ...]) -> None:
        """On a thread that is not the one which built the hook."""
        for moment in moments:
            began_s = SYSTEM_CLOCK.monotonic_s()
            _tell(hook, moment)
            took_s = SYSTEM_CLOCK.monotonic_s() - began_s
            assert took_s < QUICK_S, f"{METHODS[type(moment)]} took {took_s:.1f} s; expected less than {QUICK_S:g} s"

    def test_nothing_heavy_is_imported_on_the_way(self, hook: AgentHook, moments: tuple[Moment, ...]) -> None:
        """Neither torch nor numpy comes with a call."""
        for moment in moments:
            with no_heavy_imports(METHODS[type(moment)]):
                _tell(hook, moment)

    def test_answers_are_what_the_moment_allows(self, hook: AgentHook, moments: tuple[Moment, ...]) -> None:
        """Only two moments accept a return value, each its own type and with its power. A refusal has a reason."""
        for moment in moments:
            answer, name = _tell(hook, moment), _taken_by(hook, moment)
            if answer is None:
                continue
            allowed = () if name == _CATCH_ALL else ANSWERS.get(type(moment), ())
            assert isinstance(answer, allowed), (
                f"{name} returned {answer!r}; expected {' or '.join([*(cls.__name__ for cls in allowed), 'None'])}"
            )
            needed = POWERS[type(answer)]
            assert needed in type(hook).powers, (
                f"{name} returned {type(answer).__name__} without the power {needed.value!r}; expected it in `powers`"
            )
            if isinstance(answer, Refuse):
                assert answer.reason.strip(), f"{name} returned Refuse with an empty reason; expected a line for people"
            if isinstance(answer, Launches):
                _check_launches(answer, moment)

    def test_it_leaves_nothing(self, make_hook: MakeHook, tmp_path: Path) -> None:
        """Threads, sockets and files end with the run: an agent may run in a process that goes on."""
        for folder in (tmp_path / "first", tmp_path / "second"):
            folder.mkdir()
            moments = sample_moments(run_dir=str(folder))
            # What is imported or cached at the first time is no leak.
            with nothing_left("the hook") if folder.name == "second" else nullcontext():
                hook = make_hook(str(folder))
                for moment in moments:
                    _tell(hook, moment)
                in_time(hook, "close", hook.close, within_s=ABANDONED_S)
                del hook

    def test_it_changes_nothing_around_it(self, make_hook: MakeHook, tmp_path: Path) -> None:
        """Variables, working directory and umask are what workers inherit, and stdout is theirs."""
        moments = sample_moments(run_dir=str(tmp_path))
        with nothing_changed("the hook's constructor"):
            hook = make_hook(str(tmp_path))
        for moment in moments:
            with nothing_changed(_taken_by(hook, moment)):
                _tell(hook, moment)
        with nothing_changed("close"):
            in_time(hook, "close", hook.close, within_s=ABANDONED_S)

    def test_its_own_calls_are_taken(self, hook: AgentHook, moments: tuple[Moment, ...]) -> None:
        """Calls that it scheduled on the run's handle do not raise, in the minute after each moment."""
        for moment in moments:
            _tell(hook, moment)
            run = getattr(hook, "run", None)
            if isinstance(run, FakeRun):
                run.pass_time(60.0)

    def test_fields_of_later_versions_do_no_harm(self, hook: AgentHook, moments: tuple[Moment, ...]) -> None:
        """Records gain fields; the moment is taken all the same."""
        for moment in moments:
            _tell(hook, _later(moment), _taken_by(hook, moment))

    def test_the_feed_is_taken(self, make_hook: MakeHook, tmp_path: Path) -> None:
        """Events of the feed come between moments; none raises, or takes long."""
        hook = make_hook(str(tmp_path))
        if Power.FEED not in type(hook).powers:
            return
        first, *moments = sample_moments(run_dir=str(tmp_path))
        _tell(hook, first)
        for event in sample_feed(run_dir=str(tmp_path)):
            work = partial(hook.on_run_event, event)
            in_time(hook, "on_run_event", work, within_s=ABANDONED_S, what=f"about {event.name}")
        for moment in moments:
            _tell(hook, moment)

    def test_two_hooks_of_one_process_are_apart(self, make_hook: MakeHook, tmp_path: Path) -> None:
        """Several agents may run in one process, as a library."""
        folders = [tmp_path / "one", tmp_path / "two"]
        for folder in folders:
            folder.mkdir()
        hooks = [make_hook(str(folder)) for folder in folders]
        for pair in zip(*(sample_moments(run_dir=str(folder)) for folder in folders), strict=True):
            for hook, moment in zip(hooks, pair, strict=True):
                _tell(hook, moment)


def _tell(hook: AgentHook, moment: Moment, method: str = "") -> object:
    if Power.RUN in type(hook).powers and not hasattr(hook, "run"):
        hook.run = run = FakeRun()
        run.directory = str(getattr(getattr(hook, "settings", None), "run_dir", ""))  # as the agent's handle says it
    name = method or _taken_by(hook, moment)
    return in_time(hook, name, partial(getattr(hook, name), moment), within_s=ABANDONED_S)


def _taken_by(hook: AgentHook, moment: Moment) -> str:
    """Return the method that takes a moment: its own, or the one that takes whatever has none."""
    own = METHODS[type(moment)]
    return _CATCH_ALL if _overrides(hook, _CATCH_ALL) and not _overrides(hook, own) else own


def _overrides(hook: AgentHook, name: str) -> bool:
    return getattr(type(hook), name) is not getattr(AgentHook, name)


def _later(moment: Moment) -> Moment:
    cls = type(moment)
    later = msgspec.defstruct(cls.__name__, [("later", str, "x")], bases=(cls,), frozen=True, kw_only=True)
    made: Moment = later(**{name: getattr(moment, name) for name in moment.__struct_fields__})  # type: ignore[assignment]
    return made


def _check_launches(answer: Launches, moment: Moment) -> None:
    assert isinstance(moment, WorkersStarting)
    _check_variables(answer.environment)
    for rank, change in answer.workers.items():
        assert type(rank) is int, f"`Launches.workers` has the key {rank!r}; expected a local rank"
        assert 0 <= rank < moment.round.local_world_size, (
            f"`Launches.workers` has the local rank {rank}; expected one below {moment.round.local_world_size}"
        )
        assert isinstance(change, LaunchChange), f"`Launches.workers[{rank}]` is {change!r}; expected a LaunchChange"
        _check_variables(change.environment)
        words = change.command
        assert isinstance(words, (tuple, list)), f"`command` is {words!r}; expected a tuple of texts"
        assert all(isinstance(word, str) and "\0" not in word for word in words), (
            f"`command` is {words!r}; expected texts without null characters"
        )
        names = change.startup
        assert isinstance(names, (tuple, list)), f"`startup` is {names!r}; expected a tuple of texts"
        assert all(isinstance(name, str) and name.count(":") == 1 for name in names), (
            f"`startup` is {names!r}; expected 'module:function'"
        )
        missing = [name for name in names if not _is_module(name.partition(":")[0])]
        assert not missing, f"`startup` names the modules {missing}, which are not installed; expected installed ones"
        cpus = change.processors
        assert cpus is None or (cpus and all(type(cpu) is int and cpu >= 0 for cpu in cpus)), (
            f"`processors` is {cpus!r}; expected numbers"
        )


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _check_variables(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        fault = fault_of_variable(name, value)
        assert not fault, f"the variable {name!r} can't be set: {fault}"
