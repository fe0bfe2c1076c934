"""Our Sphinx extension: the state diagram and other pictures, drawn where they stand."""

import re
from collections.abc import Callable, Mapping
from typing import Final

import diagrams
import pictures
import report_picture
from benchmark_page import published
from docutils import nodes
from drain_picture import drain_picture
from join_picture import join_picture
from matplotlib.figure import Figure
from recordings import stored
from search_words import with_entries
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from state_diagram import draw
from warm_picture import warm_picture


class Mermaid(SphinxDirective):
    """Draws a state diagram where it stands: no script is loaded from anywhere to do it in the browser."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the picture as inline SVG."""
        return [nodes.raw("", f'<div class="picture">{draw(list(self.content))}</div>', format="html")]


class Picture(SphinxDirective):
    """Draws a picture where it stands: `{picture} run`, or another name of `PICTURES`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the picture as inline SVG."""
        self.env.note_reread()
        name = self.arguments[0]
        if name not in PICTURES:
            raise self.error(f"picture {name!r}: unknown; expected one of {', '.join(PICTURES)}")
        draw_it, what = PICTURES[name]
        svg = pictures.as_svg(draw_it(), name=name).replace("<svg ", f'<svg role="img" aria-label="{what}" ', 1)
        return [nodes.raw("", f'<div class="picture">{svg}</div>', format="html")]


PICTURES: Final[Mapping[str, tuple[Callable[[], Figure], str]]] = {
    "run": (diagrams.run_picture, "Two nodes with agent, guard and workers, the store in which they meet, the plugins"),
    "round": (diagrams.round_picture, "Three nodes take seats, the leader writes the round, the workers start"),
    "crash": (lambda: pictures.crash_picture(stored("crash")), "Timeline: rank 1 fails, both workers start again"),
    "join": (lambda: join_picture(stored("join")), "Timeline: node b joins, node a restarts its workers"),
    "drain": (lambda: drain_picture(stored("drain")), "Timeline: three ranks agree on a step, save and end"),
    "warm": (
        lambda: warm_picture(stored),
        "Timelines after a kill of rank 1: the warm round keeps rank 0, the cold one starts both; the table has them",
    ),
    "hang": (diagrams.hang_picture, "Timeline: rank 1 hangs, its stacks are kept at half of the time-out"),
    "settings": (diagrams.settings_picture, "Default, proposal, variable, command line: each overrides the former"),
    "house": (diagrams.house_picture, "The packages of the core in layers, and the distributions beside it"),
    "benchmarks": (
        lambda: pictures.benchmark_picture(published()),
        "Points: the time of elastic run as a part of torchrun's; the table has the figures",
    ),
}
"""The pictures of the pages: how each is drawn, and its text for readers who don't see it."""


_FILE = re.compile(r"^<!-- (file|more): (\S+) -->\n```(\w+)\n", re.M)


def name_files(_app: Sphinx, page: str, source: list[str]) -> None:
    """Put the name of each file above its code, and the page's words for the search after its title.

    Called: by Sphinx, with the text of a page before it is parsed.
    """
    source[0] = _FILE.sub(
        lambda found: f"```{{code-block}} {found[3]}\n:caption: {found[2]}{' (continued)' * (found[1] == 'more')}\n\n",
        source[0],
    )
    source[0] = with_entries(page, source[0])


def hide_decisions(app: Sphinx, _tree: nodes.document) -> None:
    """Keep each decision out of the sidebar, without a warning: its own table of contents links all of them."""
    if re.match(r"decisions/\d", app.env.docname):
        app.env.metadata[app.env.docname]["orphan"] = True


def mark_long_names(_app: Sphinx, tree: nodes.document) -> None:
    """Let names in code break where they are wider than a column of a table. Called: by Sphinx, with a page's tree."""
    for code in tree.findall(nodes.literal):
        if max(map(len, code.astext().split()), default=0) > 26:
            code["classes"].append("long")


def renew_pictures(_app: Sphinx) -> None:
    """Make the pictures of a report again if its page has changed. Called: by Sphinx, before it reads pages."""
    report_picture.renew()


def setup(app: Sphinx) -> dict[str, object]:
    """Register all of it. Called: by Sphinx."""
    app.add_directive("mermaid", Mermaid)
    app.add_directive("picture", Picture)
    app.connect("builder-inited", renew_pictures)
    app.connect("source-read", name_files)
    app.connect("doctree-read", hide_decisions)
    app.connect("doctree-read", mark_long_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
