"""Our Sphinx extension: the state diagram and other pictures, drawn where they stand."""

import json
import re
from pathlib import Path

import pictures
from docutils import nodes
from drain_picture import drain_picture, drain_spans, recorded_drain
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from state_diagram import draw


class Mermaid(SphinxDirective):
    """Draws a state diagram where it stands: no script is loaded from anywhere to do it in the browser."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the picture as inline SVG."""
        return [nodes.raw("", draw(list(self.content)), format="html")]


class Picture(SphinxDirective):
    """Draws a picture where it stands: `{picture} run`, `crash`, `drain` or `benchmarks`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the picture as inline SVG."""
        self.env.note_reread()
        name = self.arguments[0]
        if name == "benchmarks":
            document = json.loads(Path(self.env.srcdir, "pictures", "benchmarks.json").read_text())
            figure = pictures.benchmark_picture(document["results"])
        elif name == "drain":
            figure = drain_picture(drain_spans(*recorded_drain()))
        else:
            figure = pictures.run_picture() if name == "run" else pictures.crash_picture(pictures.spans(self._crash()))
        return [nodes.raw("", pictures.as_svg(figure, name=name), format="html")]

    def _crash(self) -> list[dict[str, object]]:
        """Return the journal of one real run for all pages of a build."""
        if not hasattr(self.env, "elastic_crash"):
            self.env.elastic_crash = pictures.recorded_crash()  # type: ignore[attr-defined]  # ours, kept with the build
        return self.env.elastic_crash  # type: ignore[attr-defined,no-any-return]  # as above


_FILE = re.compile(r"^<!-- (file|more): (\S+) -->\n```(\w+)\n", re.M)


def name_files(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Put the name of each file above its code. Called: by Sphinx, with the text of a page before it is parsed."""
    source[0] = _FILE.sub(
        lambda found: f"```{{code-block}} {found[3]}\n:caption: {found[2]}{' (continued)' * (found[1] == 'more')}\n\n",
        source[0],
    )


def setup(app: Sphinx) -> dict[str, object]:
    """Register all of it. Called: by Sphinx."""
    app.add_directive("mermaid", Mermaid)
    app.add_directive("picture", Picture)
    app.connect("source-read", name_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
