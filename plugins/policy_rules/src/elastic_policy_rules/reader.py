"""The conversion of a tree to a rule book. All problems are reported before any value is used."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, TypeVar, cast

from elastic_core.api import ConfigError
from elastic_policy_rules import schema, values
from elastic_policy_rules.book import RESERVED, Action, Backoff, Blame, Exhausted, Match, Rule, RuleBook
from elastic_policy_rules.document import MAX_BYTES, Items, Node, Scalar, parse
from elastic_policy_rules.document import Mapping as Tree
from elastic_policy_rules.problems import Problem, RuleFileError, nearest
from elastic_policy_rules.values import UnfitError

MAX_RULES: Final = 200
MAX_NAME_CHARS: Final = 60
UNLIMITED: Final = "unlimited"

_T = TypeVar("_T")
Given = Mapping[str, tuple[Scalar, Node]]
"""The known keys of a mapping: the key itself, for its place, and the value."""


def read(raw: bytes, name: str) -> RuleBook:
    """Return the rule book of a file's content.

    Args:
        raw: Its content.
        name: Its name in messages.

    Raises:
        RuleFileError: with every problem that it has.
    """
    reader = _Reader()
    book = reader.book(parse(raw, name))
    if reader.problems:
        raise RuleFileError(name, reader.problems)
    return book


def read_file(path: str) -> RuleBook:
    """Return the rule book of the file at a path.

    Raises:
        ConfigError: it can't be read.
        RuleFileError: it has problems.
    """
    if path.lower().endswith(".toml"):
        raise ConfigError(f"rule file {path!r} is TOML; expected YAML", hint=f"{path[:-5]}.yaml")
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as err:
        told = err.strerror if isinstance(err, OSError) else str(err)
        raise ConfigError(f"rule file {path!r} can't be read: {told}", hint="the path of a YAML file") from err
    return read(raw, path)


class _Reader:
    """Notes problems and continues; its result is valid only if there were none."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    # --- the file

    def book(self, root: Node) -> RuleBook:
        given = self._mapping(root, schema.FILE_KEYS, "the file")
        self._take(given, "version", self._version, None)
        rules_key = given.get("rules")
        if rules_key is None:
            if isinstance(root, Tree) and not _misspelt(root, "rules", schema.FILE_KEYS):
                self._note(root, "the file has no 'rules'", "rules:, and a list of them")
            return RuleBook()
        defaults = self._defaults(given)
        rules = self._rules(rules_key[1], defaults)
        otherwise = self._take(given, "otherwise", lambda v: values.word(v, ("intensity", "fail")), "intensity")
        self._reach(rules, otherwise_given=given.get("otherwise"))
        blame = self._blame(given)
        return RuleBook(
            rules=tuple(rule for rule, _ in rules),
            otherwise=cast('Literal["intensity", "fail"]', otherwise),
            blame=blame,
        )

    def _version(self, value: Scalar) -> str:
        if value.text.strip() != "1":
            raise UnfitError(f"{value.text!r}; expected 1, the version that this release reads", "version: 1")
        return value.text

    def _defaults(self, given: Given) -> Given:
        if "defaults" not in given:
            return {}
        found = self._mapping(given["defaults"][1], schema.DEFAULTS_KEYS, "'defaults'")
        self._count_terms(found)  # whether any rule needs them or not
        self._backoff(found)
        return found

    def _rules(self, node: Node, defaults: Given) -> list[tuple[Rule, Tree]]:
        if not isinstance(node, Items) or not node.items:
            self._note(node, "'rules' is no list with rules in it", "- match: {class: node lost}, and so on")
            return []
        if len(node.items) > MAX_RULES:
            self._note(node, f"{len(node.items)} rules; at most {MAX_RULES} are read", "")
            return []
        first_use: dict[str, int] = {}
        found: list[tuple[Rule, Tree]] = []
        for index, item in enumerate(node.items, 1):
            if not isinstance(item, Tree):
                self._note(item, f"rule {index} is no mapping", "match: and action: below one '-'")
                continue
            rule = self._rule(item, index, defaults)
            if rule.name in first_use:
                what = f"another rule is called {rule.name!r}, in line {first_use[rule.name]}"
                self._note(_place(item, "name"), f"{what}: counters go by the name", "another name")
            first_use.setdefault(rule.name, item.line)
            found.append((rule, item))
        return found

    def _reach(self, rules: Sequence[tuple[Rule, Tree]], *, otherwise_given: tuple[Scalar, Node] | None) -> None:
        """Find rules that no failure can reach."""
        # A restart is passed over where another try can't help: behind it there is still something to decide.
        catch_all = next(
            (i for i, (r, _) in enumerate(rules) if r.match == Match() and r.action in ("fail", "done")), None
        )
        if catch_all is None:
            return
        rule = rules[catch_all][0]
        why = f"rule {rule.name!r} in line {rule.line} matches every failure"
        for _, node in rules[catch_all + 1 :]:
            self._note(node, f"this rule is never reached: {why}", "the rule above that one")
        if otherwise_given is not None:
            self._note(otherwise_given[0], f"'otherwise' is never reached: {why}", "leave it out")

    # --- a rule

    def _rule(self, node: Tree, index: int, defaults: Given) -> Rule:
        given = self._mapping(node, schema.RULE_KEYS, f"rule {index}")
        name = self._take(given, "name", self._name, f"rule {index}")
        action = self._action(given, node, index)
        self._fit(given, node, action, defaults)
        counted: Given = {**defaults, **given} if action in ("restart", "wait", "ignore") else given
        max_count, per_s, reset_after_s, exhausted = self._count_terms(counted)
        return Rule(
            name=name,
            line=node.line,
            action=action or "restart",
            match=self._match(given),
            max_count=max_count,
            per_s=per_s if max_count is not None else None,
            backoff=self._backoff(counted) if action == "restart" else None,
            reset_after_s=reset_after_s,
            delay_s=self._take(given, "delay", values.positive, 0.0),
            exhausted=exhausted,
            exclude=self._take(given, "exclude", lambda v: values.word(v, ("node",)), "") == "node",
            blame=self._take(given, "blame", values.yes, None),
            reason=self._take(given, "reason", _line, ""),
        )

    def _count_terms(self, given: Given) -> tuple[int | None, float | None, float | None, Exhausted]:
        return (
            self._take(given, "max", _count, None),
            self._take(given, "per", values.positive, None),
            self._take(given, "reset_after", values.positive, None),
            cast("Exhausted", self._take(given, "exhausted", _exhausted, "fail")),
        )

    def _name(self, value: Scalar) -> str:
        name = value.text.strip()
        if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
            raise UnfitError(f"{value.text!r}; expected a name of 1 to {MAX_NAME_CHARS} characters", "name: spot")
        if name in RESERVED:
            raise UnfitError(f"{name!r} is what the built-in policy calls a rule of its own", f"my-{name}")
        return name

    def _action(self, given: Given, node: Tree, index: int) -> Action | None:
        if "action" not in given:
            if _misspelt(node, "action", schema.RULE_KEYS):
                return None
            what = f"rule {index} has no 'action'; expected {values.listed(schema.ACTIONS)}"
            self._note(node, what, "action: restart")
            return None
        return cast("Action | None", self._take(given, "action", lambda v: values.word(v, schema.ACTIONS), None))

    def _fit(self, given: Given, node: Tree, action: Action | None, defaults: Given) -> None:
        """Find keys without effect beside the others, and missing keys."""
        if action is None:
            return
        for key, actions in _ONLY_WITH.items():
            if key in given and action not in actions:
                what = f"{key!r} has no effect with action {action!r}, only with {values.listed(actions)}"
                self._note(given[key][0], what, f"leave {key!r} out")
        if action in ("restart", "wait") and "max" not in given and "max" not in defaults:
            what = f"action {action!r} has no 'max', which says how often"
            self._note(given["action"][0], what, f"max: 3, with per: 1h if you like, or max: {UNLIMITED}")
        if action == "wait" and "delay" not in given:
            self._note(given["action"][0], "action 'wait' has no 'delay', which says how long", "delay: 5m")
        for key in ("per", "exhausted"):
            if key in given and "max" not in given and "max" not in defaults:
                self._note(given[key][0], f"{key!r} has no effect without 'max'", "max: 3")

    def _match(self, given: Given) -> Match:
        if "match" not in given:
            return Match()
        found = self._mapping(given["match"][1], schema.MATCH_KEYS, "'match'")
        classes = self._each(found, "class", values.failure_classes)
        under_s, over_s = self._uptime(found)
        return Match(
            classes=frozenset().union(*classes),
            exceptions=self._each(found, "exception", values.exception_pattern),
            messages=self._each(found, "message", values.text_pattern),
            logs=self._each(found, "log", values.text_pattern),
            exit_codes=self._each(found, "exit_code", lambda v: values.span(v, 255, "exit code")),
            signals=frozenset(self._each(found, "signal", values.signal_number)),
            devices=frozenset(self._each(found, "device", values.device_fault)),
            ranks=self._each(found, "rank", lambda v: values.span(v, 999_999_999, "rank")),
            nodes=self._each(found, "node", values.node_pattern),
            under_s=under_s,
            over_s=over_s,
            repeats=self._take(found, "repeats", lambda v: values.whole(v, 2, schema.MAX_COUNT), None),
        )

    def _uptime(self, found: Given) -> tuple[float | None, float | None]:
        if "uptime" not in found:
            return None, None
        key, node = found["uptime"]
        given = self._mapping(node, schema.UPTIME_KEYS, "'uptime'")
        under_s = self._take(given, "under", values.positive, None)
        over_s = self._take(given, "over", values.duration, None)
        if under_s is not None and over_s is not None and under_s <= over_s:
            self._note(key, f"no uptime is both under {under_s:g} s and over {over_s:g} s", "over less than under")
        return under_s, over_s

    def _backoff(self, given: Given) -> Backoff | None:
        if "backoff" not in given:
            return None
        node = given["backoff"][1]
        if isinstance(node, Scalar):
            constant_s = self._take(given, "backoff", _off_or_duration, 0.0)
            return Backoff(base_s=constant_s, factor=1.0, cap_s=constant_s)
        found = self._mapping(node, schema.BACKOFF_KEYS, "'backoff'")
        if "base" not in found and isinstance(node, Tree):
            self._note(node, "'backoff' has no 'base', the first pause", "base: 1s")
        base_s = self._take(found, "base", values.duration, 0.0)
        cap_s = self._take(found, "cap", values.duration, max(300.0, base_s))
        if "cap" in found and cap_s < base_s:
            self._note(found["cap"][0], f"'cap' of {cap_s:g} s is shorter than 'base' of {base_s:g} s", "a longer cap")
        return Backoff(
            base_s=base_s,
            factor=self._take(found, "factor", lambda v: values.number(v, 1, 100), 2.0),
            cap_s=cap_s,
            jitter=self._take(found, "jitter", lambda v: values.number(v, 0, 1), 0.0),
        )

    def _blame(self, given: Given) -> Blame | None:
        if "blame" not in given:
            return Blame()
        node = given["blame"][1]
        if isinstance(node, Scalar):
            self._take(given, "blame", lambda v: values.word(v, ("off", "no", "false")), "")
            return None
        found = self._mapping(node, schema.BLAME_KEYS, "'blame'")
        usual = Blame()
        classes = self._each(found, "classes", values.failure_classes)
        return Blame(
            times=self._take(found, "times", lambda v: values.whole(v, 1, schema.MAX_COUNT), usual.times),
            within_s=self._take(found, "within", values.positive, usual.within_s),
            exclude_for_s=self._take(found, "exclude_for", values.positive, usual.exclude_for_s),
            factor=self._take(found, "factor", lambda v: values.number(v, 1, 100), usual.factor),
            cap_s=self._take(found, "cap", values.positive, usual.cap_s),
            classes=frozenset().union(*classes) if "classes" in found else usual.classes,
        )

    # --- parts of any of them

    def _note(self, place: Node, what: str, hint: str) -> None:
        self.problems.append(Problem(place.line, place.column, what, hint))

    def _mapping(self, node: Node, keys: Iterable[schema.Key], what: str) -> Given:
        """Return the values of the known keys; unknown keys are problems."""
        names = [key.name for key in keys]
        if not isinstance(node, Tree):
            if isinstance(node, Scalar) and node.is_nothing:
                self._note(node, f"{what} is empty", f"one of {values.listed(names)}, with a colon")
            else:
                self._note(node, f"{what} is no mapping", f"one of {values.listed(names)}, with a colon")
            return {}
        given: dict[str, tuple[Scalar, Node]] = {}
        for key, value in node.entries:
            if key.text not in names:
                near = nearest(key.text.replace("-", "_"), names)
                what_else = f"one of {values.listed(names)}"
                self._note(key, f"{what} has no key {key.text!r}", _elsewhere(key.text) or near or what_else)
            elif key.text in given:
                self._note(key, f"{key.text!r} is given twice", f"one {key.text}, with a list behind it")
            else:
                given[key.text] = (key, value)
        return given

    def _take(self, given: Given, name: str, convert: Callable[[Scalar], _T], default: _T) -> _T:
        """Return the value of a key."""
        if name not in given:
            return default
        key, node = given[name]
        if not isinstance(node, Scalar) or node.is_nothing:
            what = "nothing" if isinstance(node, Scalar) else "a list" if isinstance(node, Items) else "a mapping"
            self._note(key if isinstance(node, Scalar) else node, f"{name!r} has {what}; expected one value", "")
            return default
        return self._converted(node, name, convert, default)

    def _converted(self, node: Scalar, name: str, convert: Callable[[Scalar], _T], default: _T) -> _T:
        try:
            return convert(node)
        except UnfitError as err:
            self._note(node, f"{name}: {err.what}", err.hint)
            return default

    def _each(self, given: Given, name: str, convert: Callable[[Scalar], _T]) -> tuple[_T, ...]:
        """Return the values of a single scalar or of a list."""
        if name not in given:
            return ()
        key, node = given[name]
        items = node.items if isinstance(node, Items) else (node,)
        if not items:
            self._note(key, f"{name!r} has an empty list, which nothing matches", f"leave {name!r} out")
        found: list[_T] = []
        for item in items:
            if not isinstance(item, Scalar) or item.is_nothing:
                self._note(item, f"{name!r} needs a value, or a list of values", "")
                continue
            try:
                found.append(convert(item))
            except UnfitError as err:
                self._note(item, f"{name}: {err.what}", err.hint)
        return tuple(found)


_ONLY_WITH: Final[Mapping[str, tuple[str, ...]]] = {
    "max": ("restart", "wait", "ignore"),
    "per": ("restart", "wait", "ignore"),
    "reset_after": ("restart", "wait", "ignore"),
    "exhausted": ("restart", "wait", "ignore"),
    "backoff": ("restart",),
    "delay": ("wait",),
    "exclude": ("restart", "wait"),
}


def _elsewhere(key: str) -> str:
    """Return where a key belongs that is valid in another place."""
    places = (
        (schema.MATCH_KEYS, "below 'match'"),
        (schema.RULE_KEYS, "in a rule"),
        (schema.BACKOFF_KEYS, "below 'backoff'"),
        (schema.UPTIME_KEYS, "below 'uptime'"),
        (schema.BLAME_KEYS, "below 'blame' of the file"),
        (schema.FILE_KEYS, "at the top of the file"),
    )
    return next((f"{key!r} {where}" for keys, where in places if key in {known.name for known in keys}), "")


def _misspelt(node: Tree, name: str, keys: Iterable[schema.Key]) -> bool:
    """Return whether a misspelt form of a key was reported, so that it need not be reported as missing."""
    names = [key.name for key in keys]
    return any(key.text not in names and nearest(key.text, names) == name for key, _ in node.entries)


def _place(node: Tree, name: str) -> Node:
    return next((key for key, _ in node.entries if key.text == name), node)


def _count(value: Scalar) -> int | None:
    if value.text.strip().lower() == UNLIMITED:
        return None
    try:
        return values.whole(value, 0, schema.MAX_COUNT)
    except UnfitError as err:
        hint = UNLIMITED if value.text.strip().isdigit() or nearest(value.text, [UNLIMITED]) else err.hint
        raise UnfitError(f"{err.what}, or {UNLIMITED!r}", hint) from err


def _exhausted(value: Scalar) -> str:
    return values.word(value, schema.EXHAUSTED)


def _off_or_duration(value: Scalar) -> float:
    return 0.0 if value.plain and value.text.lower() in ("off", "no", "false", "none") else values.duration(value)


def _line(value: Scalar) -> str:
    text = " ".join(value.text.split())
    if not text or len(text) > 300:
        raise UnfitError("expected 1 to 300 characters", "a sentence for the report")
    return text
