"""Plan, simulate and run pipeline-parallel training of sparse 3D networks on devices that are not all alike.

Importing this package brings the values, the planners and the simulator, and neither torch nor plotly.
"""

from .cluster import Cluster, DeviceType, Link, Node
from .errors import InputError, RunFailed
from .graph import Layer, LayerGraph
from .graph_text import GraphText
from .plan import Plan, Stage
from .planners import partition
from .profile import CostSample, LayerCost, Profile
from .record import RunRecord
from .schedule import SCHEDULES, Action, Op, actions, inputs
from .simulator import simulate
from .trace import Span, Trace

__version__ = "0.1.0"

__all__ = [
    "SCHEDULES",
    "Action",
    "Cluster",
    "CostSample",
    "DeviceType",
    "GraphText",
    "InputError",
    "Layer",
    "LayerCost",
    "LayerGraph",
    "Link",
    "Node",
    "Op",
    "Plan",
    "Profile",
    "RunFailed",
    "RunRecord",
    "Span",
    "Stage",
    "Trace",
    "actions",
    "inputs",
    "partition",
    "simulate",
]
