"""The changelog's sections from fragments: all of them, once, in order."""

import importlib.util
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts/collect_changes.py"
spec = importlib.util.spec_from_file_location("collect_changes", SCRIPT)
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "changes").mkdir()
    for name, text in {
        "10.feature": "Ten.",
        "9.feature": "Nine.\n\nMore.",
        "9.agent.fix": "A fix.",
        "2.plugin": "Hm.",
    }.items():
        (tmp_path / f"changes/{name}.md").write_text(text + "\n")
    return tmp_path


def test_the_first_release_makes_the_changelog(root):
    assert len(script.collect(root, "0.1.0", "2027-03-31")) == 4
    assert (root / "CHANGELOG.md").read_text() == (
        "# Changelog\n\n## 0.1.0 (2027-03-31)\n\n### New\n\nNine.\n\nMore.\n\nTen.\n\n### Fixed\n\nA fix.\n\n"
        "### For plugin authors\n\nHm.\n"
    )
    assert list((root / "changes").iterdir()) == []


def test_the_next_release_stands_above(root):
    (root / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0.1 (2027-01-01)\n\nOld.\n")
    script.collect(root, "0.1.0", "2027-03-31")
    text = (root / "CHANGELOG.md").read_text()
    assert text.index("## 0.1.0 (") < text.index("\n\n## 0.1.0.1 (2027-01-01)\n\nOld.\n")
    assert text.count("# Changelog") == 1


def lose_the_fragments(root):
    for path in (root / "changes").iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda root: (root / "changes/3.feat.md").write_text("x"),
            r"3\.feat\.md in changes/ is not ISSUE\.KIND\.md, or",
        ),
        (lambda root: (root / "changes/3.doc.md").write_text(" \n"), r"3\.doc\.md in changes/ is empty"),
        (lambda root: (root / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0 (x)\n"), "section 0.1.0 already"),
        (lambda root: (root / "CHANGELOG.md").write_text("# News\n"), "does not begin with '# Changelog'"),
        (lose_the_fragments, "no fragments"),
    ],
)
def test_nothing_is_written_when_something_is_wrong(root, spoil, message):
    spoil(root)
    before = {path: path.read_text() for path in root.rglob("*.md")}
    with pytest.raises(ValueError, match=message):
        script.collect(root, "0.1.0", "2027-03-31")
    assert {path: path.read_text() for path in root.rglob("*.md")} == before


def test_the_fragments_of_this_tree_can_be_collected(tmp_path):
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes/1.fix.md").write_text("Just after a release this is the only one.\n")
    for path in (ROOT / "changes").glob("*"):
        shutil.copy(path, tmp_path / "changes")
    names = {path.name for path in (tmp_path / "changes").iterdir()}
    assert {path.name for path in script.collect(tmp_path, "0.1.0", "2027-03-31")} == names
