"""Sphinx's settings: `make docs` builds the pages, and warnings fail."""

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "_ext"))
sys.path.insert(0, str(HERE.parent / "src"))

project = "elastic-core"
author = "The elastic-core developers"
copyright = "The elastic-core developers"
release = version = runpy.run_path(str(HERE.parent / "src" / "elastic_core" / "_version.py"))["__version__"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "elastic_docs"]
exclude_patterns = ["_ext", "pictures", "README.md"]
html_theme = "furo"
html_title = f"elastic-core {release}"
html_copy_source = False
html_show_sourcelink = False
smartquotes = False  # or the dashes of options would become one
default_role = "code"  # docstrings write `name`
nitpicky = True
nitpick_ignore_regex = [
    (
        "py:class",
        r"(click|collections\.abc|abc|enum|msgspec|pathlib|socket|ssl)\..*",
    ),  # others' pages are not to be had offline
    ("py:exc", r"msgspec\..*"),
    (
        "py:class",
        r"elastic_core\.(status|failure\.incident|rendezvous\.member\.(stored|documents))\..*",
    ),  # parts of documents, reached by attribute
    ("py:class", r"elastic_core\.encoding\._T"),
    ("py:class", r"P|elastic_core\.processes\.errors\.(recording\.R|handler\.ErrorHandler)"),  # of torch's decorator
    ("py:class", r"tuple\[.*"),  # autodoc cuts the annotation `tuple[int, ...]` in two
]
suppress_warnings = ["ref.python"]  # fields named `type` are two, and the builtin is meant

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
