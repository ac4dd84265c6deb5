"""Plan, simulate and run pipeline-parallel training of sparse 3D networks on devices that are not all alike.

Importing this package brings the values, the planners and the simulator, and neither torch nor plotly. What needs them
is imported when it is first asked for: `profile_model`, `launch`, `attach` and `RunConfig`, the folders `data`, `plots`
and `widgets`.
"""

from typing import TYPE_CHECKING

from .cluster import Cluster, DeviceType, Link, Node
from .errors import InputError, RunFailed
from .graph import Layer, LayerGraph
from .graph_text import GraphText
from .lazy_names import lazy_names
from .pipeline_simulator import simulate_pipelines
from .pipelines import Pipelines
from .plan import Plan, Stage
from .planners import partition, partition_pipelines
from .profile import CostSample, LayerCost, Profile
from .record import RunRecord, load_trace
from .replaying import replay, what_if
from .schedule import SCHEDULES, Action, Op, actions, inputs
from .simulator import simulate
from .trace import Span, Trace

if TYPE_CHECKING:
    from .dynamics.launching import launch
    from .launchers import attach
    from .profiler import profile_model
    from .runtime import RunConfig

__version__ = "0.1.0"

_HOME = {"profile_model": "profiler", "launch": "dynamics.launching", "attach": "launchers", "RunConfig": "runtime"}

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
    "Pipelines",
    "Plan",
    "Profile",
    "RunFailed",
    "RunRecord",
    "Span",
    "Stage",
    "Trace",
    "actions",
    "inputs",
    "load_trace",
    "partition",
    "partition_pipelines",
    "replay",
    "simulate",
    "simulate_pipelines",
    "what_if",
    "RunConfig",
    "attach",
    "launch",
    "profile_model",
]

__getattr__, __dir__ = lazy_names(globals(), _HOME, folders=("data", "plots", "widgets"))
