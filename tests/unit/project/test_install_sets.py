"""What one line installs from a checkout: each set names the folder of every distribution of ours that it requires.

pip takes one of ours from a public index only if no folder is named for it, and there a name may be anybody's.
"""

import re
import tomllib
from itertools import pairwise
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
    optional = document["project"].get("optional-dependencies", {})
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


def test_no_extra_names_a_distribution_that_is_not_published():
    """Pip would take the name from a public index, where it may be anybody's."""
    for project in PROJECTS.values():
        extras = tomllib.loads((project / "pyproject.toml").read_text())["project"].get("optional-dependencies", {})
        named = [re.split(r"[\[=<> ]", line)[0] for lines in extras.values() for line in lines]
        assert set(named) & set(PROJECTS) == set(), project


def test_no_set_brings_torch():
    """The user's own is never replaced: neither the sets nor what they require name it."""
    for path in SETS:
        assert "torch" not in {line.partition("=")[0].strip() for line in path.read_text().splitlines()}


def test_no_page_names_an_extra_that_does_not_exist():
    extras = {
        name: set(tomllib.loads((project / "pyproject.toml").read_text())["project"].get("optional-dependencies", {}))
        for name, project in PROJECTS.items()
    }
    extras["."] = extras["elastic-core"] | {
        "lint",
        "test",
    }  # and those of a plugin that `elastic plugins new` has written
    pattern = re.compile(
        rf"(?<![\w-])(?P<name>{'|'.join(sorted(PROJECTS, key=len, reverse=True))}|\.)\[(?P<extras>[a-z0-9,]+)\]"
    )
    faults = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in PAGES
        for match in pattern.finditer(path.read_text())
        if not set(match["extras"].split(",")) <= extras[match["name"]]
    ]
    assert faults == []


DISTRIBUTIONS = (ROOT / "docs/reference/distributions.md").read_text()


def test_the_page_of_distributions_names_each_set():
    rows = re.findall(r"^\| `sets/(\w+\.txt)` \| \S.* \|$", DISTRIBUTIONS, flags=re.MULTILINE)
    assert sorted(rows) == [path.name for path in SETS]


def test_the_page_of_distributions_installs_each_as_the_hints_do():
    rows = re.findall(r"^\| `([a-z-]+)` \| \S.* \| `(pip install [^`]+)` \|$", DISTRIBUTIONS, flags=re.MULTILINE)
    assert [(name, install_hint(name).partition(", in a checkout")[0]) for name, _ in rows] == rows
    assert sorted(name for name, _ in rows) == sorted(PROJECTS)


# --- pages


PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(path for path in sorted(ROOT.glob("docs/*/*.md")) if path.parent.name != "decisions"),
    *sorted(ROOT.glob("plugins/*/README.md")),
    *sorted(ROOT.glob("examples/**/README.md")),
]
COMMAND = re.compile(r"pip install (?P<words>(?:(?!, in a )[^`\n#&])+)")
NAMED_SETS = re.compile(
    r"`(?P<name>elastic-[a-z-]+)` \(in a checkout: `pip install [^`]+`; the sets? (?P<sets>[^)]+?)\s+ha(?:s|ve)\s+it"
)


def installed(words):
    """Return the folders, with extras, that a command of pip installs; None where it names none of ours."""
    found = {}
    for option, word in pairwise(["", *words]):
        if option == "-r" and word.startswith("sets/"):
            found |= folders(ROOT / word)
        elif option != "-e" and (
            match := re.fullmatch(r"(?P<folder>\.(?:/plugins/\w+)?)(?:\[(?P<extras>[\w,]+)\])?", word)
        ):
            found[(ROOT / match["folder"]).resolve()] = set(filter(None, (match["extras"] or "").split(",")))
    return found or None


def lacking(found):
    """Return which distributions of ours a command would take from an index."""
    needed = {name for project, extras in found.items() for name, _ in requirements(project, extras)}
    needed |= {"elastic-core"} if set(found) - {ROOT} else set()
    return sorted(name for name in needed if PROJECTS[name] not in found)


def test_each_command_of_a_page_names_the_folders_of_all_that_it_needs():
    faults = []
    for path in PAGES:
        for match in COMMAND.finditer(path.read_text()):
            words = [word.strip("'\"") for word in match["words"].split()]
            found = installed(words)
            if found is not None and (missing_ones := lacking(found)):
                faults.append(f"{path.relative_to(ROOT)}: {match[0].strip()}: lacks the folders of {missing_ones}")
            if "--find-links" not in words:
                by_name = [word for word in words if re.split(r"[\[=<>]", word)[0] in PROJECTS]
                faults += [f"{path.relative_to(ROOT)}: takes {word} from an index" for word in by_name]
    assert faults == []


def test_the_page_of_a_distribution_installs_it():
    for folder in PROJECTS.values():
        if folder != ROOT:
            commands = [match["words"].split() for match in COMMAND.finditer((folder / "README.md").read_text())]
            assert any(folder in (installed(words) or {}) for words in commands), folder.name


def test_a_set_that_a_page_says_to_have_a_distribution_has_it():
    claims = [match for path in PAGES for match in NAMED_SETS.finditer(path.read_text())]
    assert len(claims) > 3
    for match in claims:
        for stem in re.findall(r"`(?:sets/)?(\w+)(?:\.txt)?`", match["sets"]):
            assert PROJECTS[match["name"]] in folders(ROOT / f"sets/{stem}.txt"), match[0]


def test_each_backend_comes_with_the_distribution_that_the_page_of_backends_names():
    page = (ROOT / "docs/reference/backends.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| `(elastic-[a-z-]+)[^|]*\|", page, flags=re.MULTILINE)
    assert len(rows) > 4
    for backend, name in rows:
        document = tomllib.loads((PROJECTS[name] / "pyproject.toml").read_text())
        assert backend in document["project"]["entry-points"]["elastic_core.rendezvous"], backend


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
        assert lacking(found) == [], "pip would take these from an index"


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
