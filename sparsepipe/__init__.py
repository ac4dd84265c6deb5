"""Plan, simulate and run pipeline-parallel training of sparse 3D networks on devices that are not all alike.

Importing this package brings the values. Planners, simulators, replays of traces, `RunConfig`, and what needs torch or
plotly (`profile_model`, `launch`, `attach`, the folders `data`, `plots` and `widgets`) are imported when they are first
asked for, as are all other folders and modules (`sweeps`, `dynamics`, `formats`, …): an agent on a host, or a
launcher, waits for none of them.
"""

import sys
from typing import TYPE_CHECKING

from .cluster import Cluster, DeviceType, Link, Node
from .errors import InputError, RunFailed
from .graph import Layer, LayerGraph
from .graph_text import GraphText
from .lazy_names import lazy_names
from .plan import Plan, Stage
from .profile import CostSample, LayerCost, Profile
from .record import RunRecord, load_trace
from .schedule import SCHEDULES, Action, Op, actions, inputs
from .trace import Span, Trace

if TYPE_CHECKING:
    from .dynamics.launching import launch
    from .launchers import attach
    from .planners import partition, partition_pipelines
    from .profiler import profile_model
    from .replaying import replay, what_if
    from .runtime import RunConfig
    from .simulator import lower_bound, simulate, simulate_pipelines

Pipelines = Plan  # its name in version 0.1.0, for those of several pipelines

__version__ = "0.2.0"

_HOME = {
    "RunConfig": "runtime",
    "attach": "launchers",
    "launch": "dynamics.launching",
    "lower_bound": "simulator",
    "partition": "planners",
    "partition_pipelines": "planners",
    "profile_model": "profiler",
    "replay": "replaying",
    "simulate": "simulator",
    "simulate_pipelines": "simulator",
    "what_if": "replaying",
}
_MODULES = (
    *("data", "dynamics", "engines", "forecast", "formats", "functions", "losses", "measured_plans", "models"),
    *("planners", "plots", "profiler", "provenance", "record", "replaying", "replication"),
    *("runtime", "schedule", "simulator", "sinks", "stragglers", "sweeps", "views", "widgets"),
)

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
    "lower_bound",
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

__getattr__, __dir__ = lazy_names(globals(), _HOME, folders=_MODULES)

if "IPython" in sys.modules and (_shell := sys.modules["IPython"].get_ipython()):  # else nothing shows HTML
    from .views import show_in as _show_in

    _show_in(_shell)
