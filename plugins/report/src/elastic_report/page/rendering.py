"""Renders the page: fills the template, and allows exactly its own style and scripts to the browser."""

import base64
import functools
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Final

import jinja2
import msgspec
from markupsafe import Markup

from elastic_report.ledger.states import ORDER
from elastic_report.model import Report
from elastic_report.page import content, texts
from elastic_report.page.lanes import timeline_data
from elastic_report.page.picture import MARKS, PATTERNS, ledger_bar, printed_timeline, state_class

MOST_BYTES: Final = 8_000_000
"""The size of the page from which on details are left out."""
_SCRIPTS: Final = ("page.js", "timeline.js")
_ESCAPES: Final = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def render(report: Report) -> str:
    r"""Return the report as an HTML document, which loads nothing else.

    Details of the timeline and rows of long tables are left out where the file would have more than 8 MB, and the page
    lists them. Text of the report is shown as text, and invisible characters as escapes such as `\x1b`.
    """
    style, *scripts = (_part(name) for name in ("style.css", *_SCRIPTS))
    names = {event.name for event in report.events}
    html = ""
    for data, left_out in timeline_data(report):
        data |= {"signs": MARKS, "patterns": [PATTERNS[state] for state in ORDER]}
        html = _template().render(
            report=report,
            run=report.run,
            page=content.page(report, left_out),
            bar=ledger_bar(report.account),
            picture=printed_timeline(report),
            patterns=[(state_class(state), lines) for state, lines in PATTERNS.items()],
            legend=list(
                dict.fromkeys((sign, content.event_name(name)) for name, sign in MARKS.items() if name in names)
            ),
            data=_json(data),
            style=Markup(style),
            scripts=[Markup(script) for script in scripts],
            policy=_policy(style, scripts),
        )
        if len(html) <= MOST_BYTES and len(html.encode()) <= MOST_BYTES:
            break
    return html


def _policy(style: str, scripts: Sequence[str]) -> str:
    """Return the Content-Security-Policy: nothing is loaded, and no script or style runs but those of the page."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(_hash, scripts))}",
            f"style-src {_hash(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _part(name: str) -> str:
    return resources.files(__package__ or "").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(data: object) -> Markup:
    """Return JSON that no HTML parser takes for markup."""
    return Markup(msgspec.json.encode(data).decode().translate(_ESCAPES))


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=texts.finished,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        moment=texts.moment, duration=texts.duration, durations=texts.durations, share=texts.share, count=texts.count
    )
    environment.globals.update(ratio=texts.ratio, number=texts.number, some=texts.some)
    return environment.from_string(_part("template.html"))
