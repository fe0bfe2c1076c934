"""Moves the fragments in changes/ into CHANGELOG.md, as the section of the version that is about to be released.

Run from the repository's root by `make changelog`, with the day of the release: `collect_changes.py 2027-03-31`.
"""

import re
import runpy
import sys
from pathlib import Path
from typing import Final

KINDS: Final = {
    "breaking": "Breaking changes",
    "feature": "New",
    "fix": "Fixed",
    "deprecated": "Deprecated",
    "doc": "Documentation",
    "plugin": "For plugin authors",
}
"""The kinds of fragments in the order of the changelog, and the headings that they get."""

_TITLE: Final = "# Changelog\n"
_NAME: Final = re.compile(rf"(\d+)(?:\.[a-z_-]+)?\.({'|'.join(KINDS)})\.md")


def collect(root: Path, version: str, day: str) -> list[Path]:
    """Write the new section above the older ones, and remove the fragments; return these.

    Raises:
        ValueError: Something would be lost or told twice. Nothing was written.
    """
    fragments = _fragments(root / "changes")
    path = root / "CHANGELOG.md"
    old = path.read_text(encoding="utf-8") if path.exists() else _TITLE
    if not old.startswith(_TITLE):
        raise ValueError(f"{path.name} does not begin with {_TITLE.strip()!r}")
    if re.search(rf"^## {re.escape(version)}\b(?!\.)", old, flags=re.MULTILINE):
        raise ValueError(f"{path.name} has a section {version} already. Try: another version in _version.py")
    section = f"\n## {version} ({day})\n"
    for kind, heading in KINDS.items():
        texts = [file.read_text(encoding="utf-8").strip() for file, of_kind in fragments if of_kind == kind]
        if texts:
            section += f"\n### {heading}\n\n" + "\n\n".join(texts) + "\n"
    path.write_text(_TITLE + section + old.removeprefix(_TITLE), encoding="utf-8")
    for file, _ in fragments:
        file.unlink()
    return [file for file, _ in fragments]


def _fragments(folder: Path) -> list[tuple[Path, str]]:
    """Return the fragments with their kinds, the lowest issue first."""
    found = []
    for file in folder.glob("*"):
        match = _NAME.fullmatch(file.name)
        if match is None:
            forms = "ISSUE.KIND.md, or ISSUE.PART.KIND.md"
            raise ValueError(f"{file.name} in {folder.name}/ is not {forms}, with KIND one of {', '.join(KINDS)}")
        if not file.read_text(encoding="utf-8").strip():
            raise ValueError(f"{file.name} in {folder.name}/ is empty")
        found.append((int(match[1]), file, match[2]))
    if not found:
        raise ValueError(f"{folder.name}/ has no fragments: nothing to release")
    return [(file, kind) for _, file, kind in sorted(found)]


def main(args: list[str]) -> int:
    """Collect, and say what was done."""
    if len(args) != 1 or not re.fullmatch(r"\d{4}-\d\d-\d\d", args[0]):
        print("usage: collect_changes.py YEAR-MONTH-DAY", file=sys.stderr)
        return 2
    root = Path(__file__).resolve().parents[1]
    version = runpy.run_path(str(root / "src/elastic_core/_version.py"))["__version__"]
    try:
        fragments = collect(root, version, args[0])
    except ValueError as error:
        print(f"collect_changes.py: {error}", file=sys.stderr)
        return 1
    print(f"CHANGELOG.md: section {version}, from {len(fragments)} fragments, which are removed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
