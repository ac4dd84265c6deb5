"""Make widgets respond while a cell runs."""

from typing import Any

import ipywidgets


def responsive(root: ipywidgets.Widget) -> ipywidgets.Widget:
    """Let clicks and values of `root`, and of all in it, be served by the thread that the page sends them to.

    JupyterLab sends them to a thread beside the one that runs cells. ipykernel 7.4 takes them back to the thread that
    last spoke through the widget, the cells' own for one that a cell has made: a cancel button would wait for the cell.
    """
    comm = root.comm
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = _as_sent
    for child in getattr(root, "children", ()):
        responsive(child)
    return root


def _as_sent(data: Any, subshell: str | None) -> str | None:
    return subshell
