"""Live views for notebooks: plans under the finger, jobs while they run. No logic of their own."""

from .launch import LaunchBoard
from .layer_graph import LayerGraphExplorer
from .partition import PartitionExplorer
from .plot_view import PlotView

__all__ = ["LaunchBoard", "LayerGraphExplorer", "PartitionExplorer", "PlotView"]
