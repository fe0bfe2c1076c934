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

extensions = ["myst_parser", "elastic_docs"]
exclude_patterns = ["_ext", "pictures", "README.md"]
html_theme = "furo"
html_title = f"elastic-core {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(HERE / "_ext" / "search_scorer.js")
html_copy_source = False
html_show_sourcelink = False
smartquotes = False  # or the dashes of options would become one
default_role = "code"  # docstrings write `name`
nitpicky = True
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]
