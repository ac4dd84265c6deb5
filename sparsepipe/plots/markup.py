"""Escape the texts of a figure: plotly interprets tags in any of them, so names are escaped in this one place.

`Html` is a figure's own markup and stays; every other string of a finished figure is text. A hover template is markup
as a whole: where names are part of it, it is an `Html` that they were filled into.
"""

from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..display.markup import Html, figure_text

_TEMPLATES = ("hovertemplate", "texttemplate")
_DATA = "customdata"  # shown where a template says so; else it is for programs
_NOT_SHOWN = (*_TEMPLATES, "uid", "meta", "template", "legendgroup", "offsetgroup")


def with_text_escaped(figure: go.Figure) -> go.Figure:
    """The figure, changed in place, with every string in it that is no `Html` as text."""
    for trace in figure.data:
        told = "".join(str(getattr(trace, name, None) or "") for name in _TEMPLATES if name in trace)
        kept = _NOT_SHOWN if _DATA in told else (*_NOT_SHOWN, _DATA)
        _escape(trace, kept)
    _escape(figure.layout, _NOT_SHOWN)
    return figure


def _escape(part: Any, kept: tuple[str, ...]) -> None:
    values = part.to_plotly_json()
    changed = {key: new for key, value in values.items() if key not in kept and (new := _escaped(value)) is not value}
    part.update(changed, overwrite=True)


def _escaped(value: Any) -> Any:
    """The value with its strings escaped; itself where none changes."""
    if isinstance(value, Html):
        return value
    if isinstance(value, str):
        text = figure_text(value)
        return value if text == value else text
    if isinstance(value, dict):
        items = {key: item if key in _NOT_SHOWN else _escaped(item) for key, item in value.items()}
        return items if any(items[key] is not value[key] for key in value) else value
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "OU":
            return value
        listed = value.tolist()
        escaped = _escaped(listed)
        return value if escaped is listed else escaped
    if isinstance(value, list | tuple):
        escaped_items = [_escaped(item) for item in value]
        changed = any(new is not old for new, old in zip(escaped_items, value, strict=True))
        return type(value)(escaped_items) if changed else value
    return value
