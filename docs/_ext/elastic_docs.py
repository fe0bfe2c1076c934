"""Our Sphinx extension: tables taken from the code, the state diagram as a picture, references by the public names."""

import json
from pathlib import Path

import pictures
from docutils import nodes
from migration_tables import GENERATORS as OF_TORCH
from reference_tables import GENERATORS
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode
from state_diagram import draw

import elastic_core.api

_API = "elastic_core.api"
_ALL = {**GENERATORS, **OF_TORCH}


class FromCode(SphinxDirective):
    """Puts a generated table into a page: `{from-code} options`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Parse what the generator gives as if it stood in the page."""
        self.env.note_reread()  # the code may have changed where the page has not
        return self.parse_text_to_nodes(_ALL[self.arguments[0]](), allow_section_headings=True)


class Mermaid(SphinxDirective):
    """Draws a state diagram where it stands: no script is loaded from anywhere to do it in the browser."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the picture as inline SVG."""
        return [nodes.raw("", draw(list(self.content)), format="html")]


class Picture(SphinxDirective):
    """Draws a picture where it stands: `{picture} run`, `crash` or `benchmarks`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the picture as inline SVG."""
        self.env.note_reread()
        name = self.arguments[0]
        if name == "benchmarks":
            document = json.loads(Path(self.env.srcdir, "pictures", "benchmarks.json").read_text())
            figure = pictures.benchmark_picture(document["results"])
        else:
            figure = pictures.run_picture() if name == "run" else pictures.crash_picture(pictures.spans(self._crash()))
        return [nodes.raw("", pictures.as_svg(figure, name=name), format="html")]

    def _crash(self) -> list[dict[str, object]]:
        """Return the journal of one real run for all pages of a build."""
        if not hasattr(self.env, "elastic_crash"):
            self.env.elastic_crash = pictures.recorded_crash()  # type: ignore[attr-defined]  # ours, kept with the build
        return self.env.elastic_crash  # type: ignore[attr-defined,no-any-return]  # as above


def resolve_public_name(
    app: Sphinx, env: BuildEnvironment, node: nodes.Element, contnode: nodes.TextElement
) -> nodes.reference | None:
    """Lead a reference to `elastic_core.types.Failure` to the page of `elastic_core.api`, which publishes it."""
    target = str(node.get("reftarget", ""))
    name = target.rpartition(".")[2]
    if node.get("refdomain") != "py" or name not in elastic_core.api.__all__:
        return None
    found = env.domains.python_domain.objects.get(f"{_API}.{name}")
    if found is None:
        return None
    return make_refnode(app.builder, str(node["refdoc"]), found.docname, found.node_id, contnode)


class AttributesAsWritten:
    """Keeps napoleon's hands off attributes: it reads `Its own fault: exception` as a type and its description."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._written: dict[str, list[str]] = {}

    def remember(self, app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
        """Keep what is written. Called: before napoleon."""
        if what == "attribute":
            self._written[name] = list(lines)

    def restore(self, app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
        """Put it back. Called: after napoleon."""
        if what == "attribute":
            lines[:] = self._written.pop(name)


def setup(app: Sphinx) -> dict[str, object]:
    """Register all of it. Called: by Sphinx."""
    app.add_directive("from-code", FromCode)
    app.add_directive("mermaid", Mermaid)
    app.add_directive("picture", Picture)
    app.connect("missing-reference", resolve_public_name)
    attributes = AttributesAsWritten()
    app.connect("autodoc-process-docstring", attributes.remember, priority=400)
    app.connect("autodoc-process-docstring", attributes.restore, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
