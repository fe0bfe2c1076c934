"""What one line installs from a checkout: each set names the folder of every distribution of ours that it requires.

pip takes one of ours from a public index only if no folder is named for it, and there a name may be anybody's.
"""

import re
import tomllib
from pathlib import Path

import pytest

from elastic_core.plugins import missing
from elastic_core.plugins.missing import install_hint, upgrade_hint

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


# --- hints


def brought(hint):
    """Return the folders, with extras, that the command in a hint installs."""
    command, _, where = hint.partition(", ")
    assert where.removeprefix("in a ").removeprefix("newer ") == "checkout of elastic-core"
    words = command.removeprefix("pip install ").split()
    if words[0] == "-r":
        return folders(ROOT / words[1])
    return {(ROOT / word).resolve(): set() for word in words}


@pytest.mark.parametrize("name", sorted(PROJECTS))
def test_the_hint_for_each_distribution_brings_it_from_the_tree(name):
    for hint in (install_hint(name), upgrade_hint(name)):
        found = brought(hint)
        assert PROJECTS[name] in found
        assert ROOT in found, "without the core's folder pip may take another one"


def test_hints_for_names_that_users_type_bring_what_they_need():
    for group in missing._KNOWN.values():
        for distribution in group.values():
            name, _, extras = distribution.rstrip("]").partition("[")
            assert brought(install_hint(distribution))[PROJECTS[name]] >= set(filter(None, extras.split(",")))


def test_anothers_distribution_is_never_to_be_taken_from_an_index():
    assert upgrade_hint("acme") == "install a newer acme from where this one came"
    assert upgrade_hint("acme-elastic", core="acme-elastic") == "pip install ., in a newer checkout of acme-elastic"


def test_no_hint_in_the_sources_installs_one_of_ours_by_name():
    names = "|".join(sorted(PROJECTS, key=len, reverse=True))
    by_name = re.compile(rf"pip install (?:--?\S+ )*['\"]?(?:{names})\b.*")
    found = [
        f"{path}: {match[0]}"
        for path in [*ROOT.glob("src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]
        for match in by_name.finditer(path.read_text())
    ]
    assert found == []
