"""What `print` shows of values: a line that says what one is, and a small table."""

from collections.abc import Sequence
from typing import Any

from . import html
from .markup import one_line
from .plan_text import aligned

_MOST_ROWS = 12


def profile(value: Any) -> str:
    """Each device type's time of a typical minibatch."""
    layers, size = range(len(value.graph.layers)), value.size()
    told = f"profile of {len(layers)} layers on {html.counted(value.device_types)}"
    told += f", {size:,.0f} {value.size_unit} per minibatch" if size else ""
    rows = []
    for kind in value.device_types:
        costliest = max(layers, key=lambda k: sum(value.time([k], kind)))
        rows.append((kind, *map(html.seconds_text, value.time(layers, kind)), value.graph.layers[costliest].id))
    return _with_table(told, ("device type", "forward", "backward", "costliest layer"), rows)


def cluster(value: Any) -> str:
    """Each node's devices and link, and each type's memory."""
    told = f"{len(value.devices)} devices on {len(value.nodes)} nodes"
    kinds = (html.counted(kind.name for kind in node.device_types) for node in value.nodes)
    rows = [(node.name, kind, html.link_text(node.link)) for node, kind in zip(value.nodes, kinds, strict=True)]
    if len(rows) > 1:
        told += f", {html.link_text(value.network)} between nodes"
    memory = ", ".join(f"{kind.name} {html.limit_text(kind.memory_bytes)}" for kind in value.device_types)
    return f"{_with_table(told, ('node', 'devices', 'link'), rows)}\nmemory: {one_line(memory)}"


def trace(value: Any) -> str:
    """Each rank's shares of the time; it is idle while it does no work: it waits, averages, or has nothing yet."""
    length = value.shown_seconds
    told = f"{value.source} trace: {len(value.spans)} spans of {len(value.ranks)} ranks in {html.seconds_text(length)}"
    told += f"; {html.left_out(value)}" if value.left_out else ""
    rows = []
    for rank in value.ranks[:_MOST_ROWS] if length else ():
        work = value.busy(rank)
        shares = (work, length - work, value.seconds(rank, ("average",)), value.seconds(rank, ("send",)))
        rows.append((str(rank), *(f"{share / length:.0%}" for share in shares)))
    more = len(value.ranks) - len(rows) if rows else 0
    return _with_table(told, ("rank", "work", "idle", "average", "send"), rows, more)


def _with_table(told: str, head: Sequence[str], rows: Sequence[Sequence[str]], more: int = 0) -> str:
    more = more or len(rows) - _MOST_ROWS
    shown = aligned([head, *rows[:_MOST_ROWS]]) if rows else []
    return "\n".join([one_line(told), *shown, *([f"and {more} more"] if more > 0 else [])])
