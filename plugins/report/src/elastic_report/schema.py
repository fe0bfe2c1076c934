"""The JSON schema of `elastic report --json`, made from the types of the report."""

import msgspec

from elastic_report.model import SCHEMA_VERSION, Report

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, object]:
    """Return the schema. Readers should ignore fields that it does not name: later versions add fields."""
    found = msgspec.json.schema(Report, schema_hook=_of_any)
    return {"$schema": DIALECT, "title": f"elastic report, version {SCHEMA_VERSION}", **found}


def _of_any(kind: type) -> dict[str, object]:
    """Return the schema of a type that msgspec has none for: `object`, any value."""
    if kind is not object:
        raise NotImplementedError
    return {"description": "Any value."}
