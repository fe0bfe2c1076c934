"""YAML as a tree in which each node has its line and column. Scalars are not interpreted."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_policy_rules.problems import Problem, RuleFileError

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 262_144
MAX_NODES = 20_000
"""The limit of nodes. Aliases may name one node many times; each time counts."""
MAX_DEPTH = 20


@dataclass(frozen=True, slots=True)
class Scalar:
    """A word, number or text as written, without quotes. `plain`: it had none."""

    text: str
    line: int
    column: int
    plain: bool = True

    @property
    def is_nothing(self) -> bool:
        """Return whether the value is missing."""
        return self.plain and self.text in ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    items: "tuple[Node, ...]"
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Mapping:
    """Keys with their values, in order; a key may occur twice."""

    entries: "tuple[tuple[Scalar, Node], ...]"
    line: int
    column: int


Node = Scalar | Items | Mapping


def parse(raw: bytes, name: str) -> Node:
    """Return the tree of one YAML document.

    Args:
        raw: The file's content, UTF-8.
        name: The file's name in messages.

    Raises:
        RuleFileError: it is not YAML, or too long.
    """
    if len(raw) > MAX_BYTES:
        raise RuleFileError(name, [Problem(1, 1, f"more than {MAX_BYTES} bytes; no rule file needs so many", "")])
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        line = raw[: err.start].count(b"\n") + 1
        column = err.start - (raw.rfind(b"\n", 0, err.start) + 1) + 1
        raise RuleFileError(name, [Problem(line, column, "the file is not UTF-8 text", "")]) from err
    import yaml  # tens of milliseconds that only a run with rules pays

    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as err:
        raise RuleFileError(name, [_problem_of(err)]) from err
    if root is None:
        return Scalar("", 1, 1)
    try:
        return _Converter().convert(root, 0)
    except _TooMuchError as err:
        raise RuleFileError(name, [err.problem]) from err


def _problem_of(err: Exception) -> Problem:
    """Return the first YAML syntax error; the text after it can't be parsed."""
    mark = getattr(err, "problem_mark", None)
    if mark is None:
        position = getattr(err, "position", None)
        where = f" at character {position + 1}" if isinstance(position, int) else ""
        told = getattr(err, "reason", "") or "it is nested too deep"
        return Problem(1, 1, f"this is not YAML: {told}{where}", "")
    parts = (getattr(err, "context", None), getattr(err, "problem", None))
    told = "; ".join(part for part in parts if part)
    hint = "blanks in the place of the tab" if "'\\t'" in told else ""
    return Problem(mark.line + 1, mark.column + 1, f"this is not YAML: {told}", hint)


class _TooMuchError(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem


class _Converter:
    """Makes the tree from PyYAML's graph, which aliases can make endless."""

    def __init__(self) -> None:
        self._count = 0

    def convert(self, node: "yaml.Node", depth: int) -> Node:
        """Return a node with all nodes below it."""
        import yaml

        line, column = node.start_mark.line + 1, node.start_mark.column + 1
        self._count += 1
        if self._count > MAX_NODES or depth > MAX_DEPTH:
            much = f"more than {MAX_NODES} values" if depth <= MAX_DEPTH else f"nested deeper than {MAX_DEPTH}"
            raise _TooMuchError(Problem(line, column, f"{much}; no rule needs that", "fewer aliases (*name)"))
        if isinstance(node, yaml.ScalarNode):
            return Scalar(node.value, line, column, node.style is None)
        if isinstance(node, yaml.SequenceNode):
            return Items(tuple(self.convert(item, depth + 1) for item in node.value), line, column)
        return Mapping(tuple(self._entries(node.value, depth + 1)), line, column)

    def _entries(self, pairs: "list[tuple[yaml.Node, yaml.Node]]", depth: int) -> Iterator[tuple[Scalar, Node]]:
        for key_node, value_node in pairs:
            key = self.convert(key_node, depth)
            if not isinstance(key, Scalar):
                raise _TooMuchError(Problem(key.line, key.column, "a key must be a word", "a word and a colon"))
            yield key, self.convert(value_node, depth)
