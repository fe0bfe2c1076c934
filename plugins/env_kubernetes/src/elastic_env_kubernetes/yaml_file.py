"""Reads YAML files: manifests that `apply` sends, and patches of `render`."""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from elastic_core.api import ConfigError


def read_documents(title: str, file: str, hint: str) -> list[Any]:
    """Return the documents of a YAML file as the JSON values that the API takes; empty documents are left out.

    Args:
        title: What the file is, for errors: `the manifest`.
        file: A path, or `-` for standard input.
        hint: What helps if it is none.

    Raises:
        ConfigError: the file can't be read, is no YAML, or holds what JSON has not.
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        found = list(yaml.safe_load_all(text))
        return [json.loads(json.dumps(each)) for each in found if each is not None]  # no part is shared by an alias
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"{title} {file!r} can't be read: {err}", hint=hint) from err
    except yaml.YAMLError as err:
        mark = getattr(err, "problem_mark", None)
        what = str(err) if mark is None else f"line {mark.line + 1}: {getattr(err, 'problem', '')}"
        raise ConfigError(f"{title} {file!r} is not YAML: {' '.join(what.split())}", hint=hint) from err
    except (TypeError, ValueError, RecursionError) as err:  # a date, a set; a document that contains itself
        raise ConfigError(f"{title} {file!r} has a value that JSON does not allow: {err}", hint=hint) from err
