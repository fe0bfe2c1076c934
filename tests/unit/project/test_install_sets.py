"""What one line installs from a checkout: each set names the folder of every distribution of ours that it requires.

pip takes one of ours from a public index only if no folder is named for it, and there a name may be anybody's.
"""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECTS = {
    tomllib.loads(path.read_text())["project"]["name"]: path.parent
    for path in [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]
}
SETS = sorted(ROOT.glob("sets/*.txt"))


def folders(path):
    """Return the folders that a set names, each with its extras."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    split = (re.fullmatch(r"(?P<folder>\./[\w/]+|\.)(?:\[(?P<extras>[\w,]+)\])?", line) for line in lines if line)
    return {
        (ROOT / match["folder"]).resolve(): set(filter(None, (match["extras"] or "").split(","))) for match in split
    }


def requirements(project, extras):
    """Return what a project of ours and its extras require of the others, as names with extras."""
    document = tomllib.loads((project / "pyproject.toml").read_text())
    hook = document.get("tool", {}).get("hatch", {}).get("metadata", {}).get("hooks", {}).get("custom", {})
    optional = {**document["project"].get("optional-dependencies", {}), **hook.get("extras", {})}
    lines = [*document["project"].get("dependencies", []), *hook.get("others", [])]
    lines += [line for extra in extras for line in optional[extra]]
    for line in lines:
        match = re.match(r"(?P<name>[\w-]+)(?:\[(?P<extras>[\w,]+)\])?", line)
        if match["name"] in PROJECTS:
            yield match["name"], set(filter(None, (match["extras"] or "").split(",")))


@pytest.mark.parametrize("path", SETS, ids=[path.stem for path in SETS])
def test_each_distribution_that_a_set_requires_is_one_of_its_folders(path):
    named = folders(path)
    assert ROOT in named
    assert set(named) <= set(PROJECTS.values())
    for project, extras in named.items():
        for name, wanted in requirements(project, extras):
            assert PROJECTS[name] in named, f"{path.name} lacks the folder of {name}"
            assert wanted <= named[PROJECTS[name]], f"{path.name} lacks extras of {name}: {wanted}"


def test_all_is_all():
    (path,) = (path for path in SETS if path.stem == "all")
    assert set(folders(path)) == set(PROJECTS.values())
    assert {name for name, _ in requirements(ROOT, {"all"})} == set(PROJECTS) - {"elastic-core"}


def test_the_readme_says_of_each_distribution_who_needs_it():
    rows = re.findall(r"^\| `([a-z-]+)` \(`([^`]+)`\) \| .+ \|$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert {name: (ROOT / folder).resolve() for name, folder in rows} == PROJECTS
