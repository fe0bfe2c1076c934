"""The fields of the hook `watch` in the status of the run, which its parts publish together."""

from collections.abc import Callable, Mapping

FieldValue = str | int | float | bool | None


class PublishedFields:
    """The fields of all parts: a hook's fields replace its earlier ones, so no part may publish alone.

    Args:
        publish: Publishes all fields of the hook.

    Threading: the hooks' thread.
    """

    def __init__(self, publish: Callable[[Mapping[str, FieldValue]], None]) -> None:
        self._publish = publish
        self._parts: dict[str, Mapping[str, FieldValue]] = {}

    def put(self, part: str, fields: Mapping[str, FieldValue]) -> None:
        """Publish a part's fields in place of its earlier ones; an empty mapping removes them."""
        if dict(self._parts.get(part, {})) == dict(fields):
            return
        self._parts[part] = dict(fields)
        self._publish({name: value for each in self._parts.values() for name, value in each.items()})
