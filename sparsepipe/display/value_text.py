"""What `print` shows of values: a line that says what one is, and a small table."""

from collections.abc import Sequence
from typing import Any

from . import html
from .counting import number_of
from .markup import one_line
from .numbers import duration
from .plan_text import aligned
from .trace_shares import SHARES_HEAD, rank_shares

_MOST_ROWS = 12


def profile(value: Any) -> str:
    """Each device type's time of a typical minibatch."""
    layers, rows = range(len(value.graph.layers)), []
    for kind in value.device_types:
        costliest = max(layers, key=lambda k: sum(value.time([k], kind)))
        rows.append((kind, *map(duration, value.time(layers, kind)), value.graph.layers[costliest].id))
    return _with_table(html.profile_told(value), ("device type", "forward", "backward", "costliest layer"), rows)


def cluster(value: Any) -> str:
    """Each node's devices and link, and each type's memory."""
    told = f"{number_of(len(value.devices), 'device')} on {number_of(len(value.nodes), 'node')}"
    kinds = (html.counted(kind.name for kind in node.device_types) for node in value.nodes)
    rows = [(node.name, kind, html.link_text(node.link)) for node, kind in zip(value.nodes, kinds, strict=True)]
    if len(rows) > 1:
        told += f", {html.link_text(value.network)} between nodes"
    memory = ", ".join(f"{kind.name} {html.limit_text(kind.memory_bytes)}" for kind in value.device_types)
    return f"{_with_table(told, ('node', 'devices', 'link'), rows)}\nmemory: {one_line(memory)}"


def trace(value: Any) -> str:
    """Each rank's shares of the time, as `rank_shares` has them."""
    rows = rank_shares(value, value.ranks[:_MOST_ROWS]) if value.shown_seconds else []
    more = len(value.ranks) - len(rows) if rows else 0
    return _with_table(html.trace_told(value), SHARES_HEAD, rows, more)


def _with_table(told: str, head: Sequence[str], rows: Sequence[Sequence[str]], more: int = 0) -> str:
    more = more or len(rows) - _MOST_ROWS
    shown = aligned([head, *rows[:_MOST_ROWS]]) if rows else []
    return "\n".join([one_line(told), *shown, *([f"and {more} more"] if more > 0 else [])])
