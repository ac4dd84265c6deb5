"""Interactive views for notebooks: explore plans, launch and follow jobs. They hold no logic of their own."""

from .launch import LaunchBoard
from .layer_graph import LayerGraphExplorer
from .partition import PartitionExplorer
from .plot_view import PlotView
from .runs import RunsTable
from .runs_rows import runs_table
from .waiting import WaitingExplorer

__all__ = [
    "LaunchBoard",
    "LayerGraphExplorer",
    "PartitionExplorer",
    "PlotView",
    "RunsTable",
    "WaitingExplorer",
    "runs_table",
]
