"""The kit for environments: tests that proposals are a pure function of variables, and that a run accepts them."""

import os
import random
import re
import subprocess
import sys
from collections import UserDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import ClassVar, Final

import pytest

from elastic_core.api import ElasticError, Environment, Proposal
from elastic_core.api.commands import run_option
from elastic_core.api.plugins import find_entries
from elastic_plugin_kit.conformance.kit import Kit, check_api_version, in_time
from elastic_plugin_kit.conformance.kit_process import WATCHMAN, check_imports, no_heavy_imports, nothing_left

MakeEnvironment = Callable[[Mapping[str, str]], Environment]
"""What the fixture `make_environment` gives: called with variables, it returns a new environment; the class is one."""

ABANDONED_S: Final = 5.0
"""A run waits no longer for the constructor, or for the proposals."""
ALL_S: Final = 60.0
"""For all odd values, one after the other."""
GROUP: Final = "elastic_core.environments"

_STEERING: Final = ("PET_", "ELASTIC_", "TORCHELASTIC_")
"""How the variables begin that steer a run."""
_OPTIONS_GROUP: Final = "elastic_core.options"
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_READING: Final = frozenset({"open", "os.listdir", "os.scandir"})
_LOCAL: Final = frozenset({"socket.gethostname"})
"""Audit events that do not access the network."""
_NUMBERS: Final = ("0", "-1", "\u00b2", "1e9", "nan", "9" * 5000, "10000000", "two")
_SIGNS: Final = ("1:", "[", "a[3-", ",,", "a=b", "/", "::", "[::1]:x", "%s{}")
_ODD: Final = ("", " ", *_NUMBERS, *_SIGNS, "a\nb", "\x1b[31m\u202e", "\udcff", "\u00e9" * 2000)
"""Values that users or schedulers may set by mistake."""


class EnvironmentConformance(Kit):
    """Subclass it, set `shown_by`, and give the fixtures `make_environment` and `variables`."""

    page: ClassVar[str] = "environment.md"

    shown_by: ClassVar[str] = ""
    """The name of its entry point: the variable that shows it."""
    reads_files: ClassVar[bool] = False
    """Whether it reads files, for example files that variables name."""
    elsewhere: ClassVar[Collection[str] | None] = ()
    """Options that it proposes of distributions that need not be installed where this is tested; None: any are."""
    typed: ClassVar[Sequence[str] | None] = ()
    """What users still type, for a run that starts: `--rdzv-backend`, `redis`. `None` means unknown."""

    @pytest.fixture
    def make_environment(self) -> MakeEnvironment:
        """Return the class, or a function that makes an environment of variables: a subclass must give it."""
        pytest.fail(f"{type(self).__name__} must give the fixture `make_environment`: the class")

    @pytest.fixture
    def variables(self) -> Mapping[str, str]:
        """Return the variables of a valid job, on one of several nodes: a subclass must give it."""
        pytest.fail(f"{type(self).__name__} must give the fixture `variables`: as they are on one of several nodes")

    def test_the_api_version_is_stated(self, make_environment: MakeEnvironment, variables: Mapping[str, str]) -> None:
        """The class states the version of the interfaces that it was written for."""
        check_api_version(type(make_environment(variables)))

    def test_the_title_can_be_typed(self, make_environment: MakeEnvironment, variables: Mapping[str, str]) -> None:
        """People read it behind each value, and type it behind `--environment`."""
        cls = type(make_environment(variables))
        title: object = getattr(cls, "title", None)
        assert isinstance(title, str), f"{cls.__name__} has no `title` of type str; expected a name that users can type"
        assert title, f"the `title` of {cls.__name__} is empty; expected a name that users can type"
        fault = _fault_of_line(title)
        assert not fault, f"the `title` of {cls.__name__} {fault}"
        assert title == title.strip(), f"`title` is {title!r}; expected no spaces around it"
        assert title.lower() != "none", (
            "`title` is 'none'; expected another name: `--environment none` disables environments"
        )

    def test_its_variable_shows_it(self, variables: Mapping[str, str]) -> None:
        """The entry point has the name of a variable that is set wherever the environment is, and nowhere else."""
        name = self.shown_by
        assert name, f"{type(self).__name__} must set `shown_by`: the name of the entry point"
        assert _VARIABLE.fullmatch(name), f"`shown_by` is {name!r}; expected the name of a variable"
        assert variables.get(name), (
            f"{name} is not in `variables`, or empty; expected a value: else a run does not use the environment"
        )
        assert not name.startswith("PET_"), (
            f"{name} is the variable of an option; expected a variable that the scheduler sets"
        )

    def test_its_import_is_light(self, make_environment: MakeEnvironment, variables: Mapping[str, str]) -> None:
        """Neither torch nor numpy comes into the agent's process."""
        check_imports(type(make_environment(variables)))

    def test_nothing_heavy_is_imported_on_the_way(
        self, make_environment: MakeEnvironment, variables: Mapping[str, str]
    ) -> None:
        """Nor do they come with the proposals."""
        with no_heavy_imports("propose"):
            _proposed(make_environment, variables)

    def test_proposals_are_sound(self, make_environment: MakeEnvironment, variables: Mapping[str, str]) -> None:
        """Texts for options, at most one for each. A proposal with `must` has a `contradiction`."""
        _, proposals = _proposed(make_environment, variables)
        assert proposals, "`propose` returned nothing for `variables`; expected proposals for one of several nodes"
        _check(proposals, "with `variables`")

    def test_options_are_known(self, make_environment: MakeEnvironment, variables: Mapping[str, str]) -> None:
        """A run silently ignores a proposal for an option that no installed distribution has."""
        _, proposals = _proposed(make_environment, variables)
        known = {entry.name.replace("-", "_") for entry in find_entries() if entry.group == _OPTIONS_GROUP}
        strange = [each.option for each in proposals if each.option not in known and not _is_core(each.option)]
        if self.elsewhere is None and strange:
            pytest.skip(f"no installed distribution has {', '.join(strange)}: a run ignores these proposals")
        lost = sorted(set(strange) - set(self.elsewhere or ()))
        assert not lost, (
            f"no installed distribution has the options {lost}; expected them, or their names in `elsewhere`"
        )

    def test_lines_are_lines(self, make_environment: MakeEnvironment, variables: Mapping[str, str]) -> None:
        """Reasons, contradictions and notices are printed unchanged: one line each, without control characters."""
        environment, proposals = _proposed(make_environment, variables)
        _check_lines(environment, proposals, "with `variables`")

    def test_it_asks_nobody(self, make_environment: MakeEnvironment, variables: Mapping[str, str]) -> None:
        """No network, no command, no sleep; no file unless `reads_files` says so."""
        environment, _ = _proposed(make_environment, variables)  # what is imported at the first call is no I/O of its

        def watched() -> list[str]:
            with WATCHMAN.watching() as seen:
                make_environment(variables).propose({})
            return seen

        allowed = _LOCAL | (_READING if self.reads_files else frozenset())
        seen = sorted(set(in_time(environment, "propose", watched, within_s=ABANDONED_S)) - allowed)
        assert not seen, f"propose did {seen}; expected no I/O" + (
            " (or set `reads_files`)" if _READING.issuperset(seen) else ""
        )

    def test_the_same_variables_have_the_same_proposals(
        self, make_environment: MakeEnvironment, variables: Mapping[str, str]
    ) -> None:
        """With another object, another random seed, and other variables of this process."""
        kept = dict(os.environ)
        answers = []
        try:
            for seed, own in ((1, kept), (2, kept | dict(variables)), (3, {})):
                _set_environment(own)
                random.seed(seed)
                environment, proposals = _proposed(make_environment, dict(variables))
                answers.append((list(proposals), list(environment.notices)))
        finally:
            _set_environment(kept)
        assert answers[0] == answers[1] == answers[2], (
            "propose returned other values with another random seed or another os.environ; "
            "expected a function of `self.variables` and `given` alone"
        )

    def test_it_changes_nothing(self, make_environment: MakeEnvironment, variables: Mapping[str, str]) -> None:
        """Neither the variables nor `given` nor this process's environment."""
        mine, given, own = dict(variables), {"role": "trainer"}, dict(os.environ)
        try:
            _proposed(make_environment, mine, given)
            assert mine == dict(variables), "propose changed `self.variables`; expected it unchanged"
            assert given == {"role": "trainer"}, "propose changed `given`; expected it unchanged"
            assert dict(os.environ) == own, "propose changed os.environ; expected it unchanged"
        finally:
            _set_environment(own)

    def test_what_is_typed_stands(self, make_environment: MakeEnvironment, variables: Mapping[str, str]) -> None:
        """The proposed value, if typed, is not contradicted. Any other is accepted, or rejected in one line."""
        _, proposals = _proposed(make_environment, variables)
        typed = {each.option: each.value for each in proposals}
        _, answer = _proposed(make_environment, variables, typed)
        for each in answer:
            same = each.value == typed.get(each.option, each.value).strip()
            assert same or not each.contradiction, (
                f"{each.option} {typed[each.option]!r} is the proposed value; expected no contradiction"
            )
        for option in (*typed, "nnodes", "rdzv_id", "an_option_of_tomorrow"):
            for text in ("", "1", "another", "1:3", "\udcff"):
                _ended_well(make_environment, variables, {option: text}, f"with --{option} {text!r}")

    def test_odd_values_end_well(self, make_environment: MakeEnvironment, variables: Mapping[str, str]) -> None:
        """With any value of its variables, or without them: proposals, or an ElasticError of one line."""
        environment, _ = _proposed(make_environment, variables)

        def all_of_them() -> None:
            for name in _looked_at(make_environment, variables):
                rest = {other: text for other, text in variables.items() if other != name}
                if name != self.shown_by:
                    _ended_well(make_environment, rest, {}, f"without {name}", at_once=True)
                for text in _ODD:
                    if text or name != self.shown_by:  # if that is empty, a run does not use it
                        about = f"with {name}={text[:40]!r}"
                        _ended_well(make_environment, rest | {name: text}, {}, about, at_once=True)
            _ended_well(make_environment, {self.shown_by: "1"}, {}, f"with {self.shown_by} alone", at_once=True)

        in_time(environment, "propose", all_of_them, within_s=ALL_S, what="with odd values")

    def test_it_leaves_nothing(self, make_environment: MakeEnvironment, variables: Mapping[str, str]) -> None:
        """Neither threads nor sockets nor files."""
        for last in (False, True):
            # What is imported or cached at the first time is no leak.
            with nothing_left("the environment") if last else nullcontext():
                _proposed(make_environment, variables)

    def test_a_run_takes_what_is_proposed(
        self, make_environment: MakeEnvironment, variables: Mapping[str, str], tmp_path: Path
    ) -> None:
        """`elastic run --dry-run` reads every value as if it was typed, and succeeds."""
        environment = make_environment(variables)
        cls = type(environment)
        if "<locals>" in cls.__qualname__:
            pytest.skip(f"{cls.__qualname__} can't be imported outside of these tests")
        done = _dry_run(cls, self.shown_by, variables, self.typed or (), tmp_path)
        told = done.stderr.strip().removeprefix("elastic: error: ")
        if done.returncode == 2 and self.typed is None and f" by {environment.title}: " not in told:
            pytest.skip(f"a run needs more options than are proposed: {told}")
        assert done.returncode == 0, f"`elastic run --dry-run` failed; expected it to accept the proposals: {told}"


# --- calling it


def _proposed(
    make: MakeEnvironment, variables: Mapping[str, str], given: Mapping[str, str] | None = None
) -> tuple[Environment, Sequence[Proposal]]:
    """Return a new environment and its proposals; fail where they do not come."""
    environment = make(variables)
    try:
        proposals = in_time(environment, "propose", lambda: environment.propose(given or {}), within_s=ABANDONED_S)
    except ElasticError as err:
        pytest.fail(f"propose raised an error for `variables`; expected proposals: {err}")
    assert isinstance(proposals, (list, tuple)), f"propose returned {proposals!r}; expected a list of Proposal"
    assert all(isinstance(each, Proposal) for each in proposals), (
        f"propose returned {proposals!r}; expected only Proposal"
    )
    return environment, proposals


def _ended_well(
    make: MakeEnvironment, variables: Mapping[str, str], given: Mapping[str, str], about: str, *, at_once: bool = False
) -> None:
    """Call `propose`; fail unless it returns valid proposals or raises an error for people.

    `at_once`: on this thread, for which the caller has a deadline.
    """
    try:
        environment = make(variables)
        if at_once:
            proposals = environment.propose(given)
        else:
            proposals = in_time(environment, "propose", lambda: environment.propose(given), within_s=ABANDONED_S)
    except ElasticError as err:
        refused = str(err)
    except AssertionError:  # it has not returned
        raise
    except Exception as err:
        raise AssertionError(
            f"{about}, propose raised {type(err).__name__}; expected an ElasticError: {str(err)[:200]!r}"
        ) from err
    else:
        _check(proposals, about)
        return _check_lines(environment, proposals, about)
    fault = _fault_of_line(refused)
    assert not fault, f"{about}, the error {fault}; expected one line: {refused[:200]!r}"
    return None


class _Noted(UserDict[str, str]):
    """Variables that record which of them were read."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.looked_at: set[str] = set()
        super().__init__(variables)

    def __getitem__(self, name: str) -> str:
        self.looked_at.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.looked_at.add(str(name))
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        self.looked_at.update(self.data)
        return super().__iter__()


def _looked_at(make: MakeEnvironment, variables: Mapping[str, str]) -> list[str]:
    noted = _Noted(variables)
    _proposed(make, noted)
    return sorted(noted.looked_at)


def _set_environment(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


# --- checking the result


def _is_core(option: str) -> bool:
    try:
        run_option(option)
    except KeyError:
        return False
    return True


def _check(proposals: Sequence[Proposal], about: str) -> None:
    options = [each.option for each in proposals]
    assert len(options) == len(set(options)), (
        f"{about}, propose returned an option twice; expected at most one Proposal each: {sorted(options)}"
    )
    for each in proposals:
        right = isinstance(each.option, str) and each.option.isidentifier()
        assert right, f"{about}, `option` is {each.option!r}; expected an identifier such as 'rdzv_id'"
        assert isinstance(each.value, str), (
            f"{about}, the value of {each.option} is {each.value!r}; expected a text, as a user would type it"
        )
        assert not each.must or each.contradiction, (
            f"{about}, {each.option} has `must` and no `contradiction`; expected both"
        )


def _check_lines(environment: Environment, proposals: Sequence[Proposal], about: str) -> None:
    notices: object = environment.notices
    assert isinstance(notices, (list, tuple)), f"{about}, `notices` is {notices!r}; expected a list of lines"
    lines = [(f"the reason for {each.option}", each.reason) for each in proposals]
    lines += [(f"the contradiction of {each.option}", each.contradiction) for each in proposals if each.contradiction]
    lines += [("a notice", line) for line in notices]
    for what, line in lines:
        fault = _fault_of_line(line)
        assert not fault, f"{about}, {what} {fault}; expected one line of text: {line!r}"


def _fault_of_line(line: object) -> str:
    """Return why this is not one line for people. An empty text means that it is."""
    if not isinstance(line, str):
        return "is no text"
    if not line.strip():
        return "is empty"
    return "" if line.isprintable() else "has characters that can't be printed"


# --- a run


def _dry_run(
    cls: type, name: str, variables: Mapping[str, str], typed: Sequence[str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Return how `elastic run --dry-run` ended where these variables are set."""
    installed = [entry for entry in find_entries() if entry.group == GROUP]
    value = f"{cls.__module__}:{cls.__qualname__}"
    paths = [path for path in sys.path if path]
    same = [entry for entry in installed if entry.name == name]
    if not any(entry.value == value for entry in same):
        owner = same[0].distribution if same else "the-environment-of-this-test"  # found twice, the first one counts
        paths.insert(0, str(_distribution(folder, owner, name, value)))
    others = {entry.name for entry in installed}
    own = {key: text for key, text in os.environ.items() if key not in others and not key.startswith(_STEERING)}
    command = [sys.executable, "-m", "elastic_core", "run", "--dry-run", *typed, "-m", "platform"]
    return subprocess.run(
        command,
        env={**own, **variables, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=ALL_S,
        check=False,
    )


def _distribution(folder: Path, owner: str, name: str, value: str) -> Path:
    """Write the metadata of a distribution with the entry point; return the folder for Python's path."""
    info = folder / f"{owner.replace('-', '_')}-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {owner}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {value}\n")
    return folder
