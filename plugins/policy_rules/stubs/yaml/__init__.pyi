# As much of PyYAML as is used here.
from collections.abc import Iterator
from typing import Any

class Mark:
    line: int
    column: int

class Node:
    tag: str
    value: Any
    start_mark: Mark
    end_mark: Mark

class ScalarNode(Node):
    value: str
    style: str | None

class SequenceNode(Node):
    value: list[Node]

class MappingNode(Node):
    value: list[tuple[Node, Node]]

class SafeLoader: ...
class YAMLError(Exception): ...

def compose(stream: str, Loader: type[SafeLoader]) -> Node | None: ...
def safe_dump_all(documents: object, *, sort_keys: bool = ..., width: int = ...) -> str: ...
def safe_load_all(stream: str) -> Iterator[Any]: ...
