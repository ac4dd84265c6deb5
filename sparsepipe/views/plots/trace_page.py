"""Write a trace as one self-contained HTML page: a timeline to zoom and drag, with numbers on hover."""

import json
import re
from pathlib import Path

from ...util.io.files import write_atomic, write_json
from ...values.trace import SPAN_KINDS, WORK, Trace
from ..colors import STAGE_COLORS, edge_of
from ..markup import Html
from ..values import left_out
from .theme import ink_on, stage_color

_PAGE = Path(__file__).with_name("trace_page.html")


def trace_page(trace: Trace, *, title: str) -> str:
    """The whole page as text."""
    rows = {rank: k for k, rank in enumerate(trace.ranks)}
    start = min((span.start for span in trace.spans), default=0.0)
    spans = [
        [
            rows[s.rank],
            round(s.start - start, 7),
            round(s.end - start, 7),
            SPAN_KINDS.index(s.kind),
            s.stage,
            s.minibatch,
            s.peer,
        ]
        for s in trace.spans
    ]
    colors = [[stage_color(k, kind) for kind in SPAN_KINDS] for k in range(len(STAGE_COLORS))]
    document = {
        "ranks": list(rows),
        "kinds": SPAN_KINDS,
        "work": WORK,
        "spans": spans,
        "colors": colors,
        "edges": [[edge_of(color) for color in own] for own in colors],
        "inks": [[ink_on(color) for color in own] for own in colors],
    }
    # No name in it ends the script it stands in, or begins a comment: in JSON "<" may be written otherwise.
    text = json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")
    told = title + (f" ({left_out(trace)})" if trace.left_out else "")
    parts = {"@TITLE@": Html.escape(told), "@TRACE@": text}  # put in at once: a title may have a mark in it
    return re.sub("|".join(parts), lambda mark: parts[mark[0]], _PAGE.read_text(encoding="utf-8"))


def write_trace(trace: Trace, stem: Path, *, title: str) -> tuple[Path, Path]:
    """Write `<stem>.html` and `<stem>.json`, the same for Perfetto; returns both paths."""
    page = stem.with_name(f"{stem.name}.html")
    write_atomic(page, trace_page(trace, title=title))
    return page, write_json(stem.with_name(f"{stem.name}.json"), trace.to_chrome())
