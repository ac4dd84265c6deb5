"""Plan, simulate and run pipeline-parallel training of sparse 3D networks on heterogeneous devices.

Importing this package imports the core types. Planners, simulators, replays of traces, `RunConfig`, what needs torch or
plotly (`profile_model`, `launch`, `attach`, `export_weights`, the folders `data`, `plots` and `widgets`), and all other
folders and modules (`sweeps`, `monitoring`, `formats`, …) are imported at their first use: an agent on a host, or a
launcher, waits for none of them.
"""

import sys
from typing import TYPE_CHECKING

from .errors import InputError, RunFailed
from .records import RunRecord, load_trace
from .util.lazy_names import find_old_names, lazy_names
from .values.cluster import Cluster
from .values.cluster_parts import DeviceType, Link, Node
from .values.graph import Layer, LayerGraph
from .values.graph_text import GraphText
from .values.plan import Plan, Stage
from .values.profile import CostSample, LayerCost, Profile
from .values.schedule import SCHEDULES, Action, Op, actions, inputs
from .values.trace import Span, Trace

if TYPE_CHECKING:
    from .launching import attach
    from .monitoring.launching import emulate, launch
    from .planning import partition, partition_pipelines, plan_of_layout
    from .planning.hardware_changes import compare_hardware
    from .planning.regret import partition_robust, regret
    from .planning.replaying import replay, what_if
    from .planning.simulator import lower_bound, simulate, simulate_pipelines
    from .profiling import profile_model
    from .runtime import RunConfig
    from .runtime.training_state.initial_weights import export_weights

Pipelines = Plan  # its name in version 0.1.0, for those of several pipelines

__version__ = "0.2.0"

_HOME = {
    "RunConfig": "runtime",
    "attach": "launching",
    "compare_hardware": "planning.hardware_changes",
    "emulate": "monitoring.launching",
    "export_weights": "runtime.training_state.initial_weights",
    "launch": "monitoring.launching",
    "lower_bound": "planning.simulator",
    "partition": "planning",
    "partition_pipelines": "planning",
    "partition_robust": "planning.regret",
    "plan_of_layout": "planning",
    "profile_model": "profiling",
    "regret": "planning.regret",
    "replay": "planning.replaying",
    "simulate": "planning.simulator",
    "simulate_pipelines": "planning.simulator",
    "what_if": "planning.replaying",
}
_MODULES = (
    *("data", "engines", "functions", "monitoring", "networks", "planning", "plots", "profiling", "records"),
    *("runtime", "study", "values", "views", "widgets"),
)
_UNLISTED = (  # by their older names, too
    *("dynamics", "forecast", "formats", "losses", "measured_plans", "models"),
    *("planners", "profiler", "provenance", "record", "replaying", "replication", "schedule"),
    *("simulator", "sinks", "stragglers", "sweeps", "views"),
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
    "compare_hardware",
    "inputs",
    "load_trace",
    "lower_bound",
    "partition",
    "partition_pipelines",
    "partition_robust",
    "plan_of_layout",
    "regret",
    "replay",
    "simulate",
    "simulate_pipelines",
    "what_if",
    "RunConfig",
    "attach",
    "emulate",
    "export_weights",
    "launch",
    "profile_model",
]

find_old_names()
__getattr__, __dir__ = lazy_names(globals(), _HOME, folders=_MODULES, unlisted=_UNLISTED)

if "IPython" in sys.modules and (_shell := sys.modules["IPython"].get_ipython()):  # else nothing shows HTML
    from .views import show_in as _show_in

    _show_in(_shell)
