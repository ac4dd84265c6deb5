"""Plan, simulate and run pipeline-parallel training of sparse 3D networks on devices that are not all alike.

Importing this package brings the values, the planners and the simulator, and neither torch nor plotly. What needs them
is imported when it is first asked for: `profile_model`, `launch`, `attach` and `RunConfig`, the folders `data`, `plots`
and `widgets`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from .launchers import attach, launch
    from .profiler import profile_model
    from .runtime import RunConfig

__version__ = "0.1.0"

_HOME = {"profile_model": "profiler", "launch": "launchers", "attach": "launchers", "RunConfig": "runtime"}
_FOLDERS = ("data", "plots", "widgets")

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
    "RunConfig",
    "attach",
    "launch",
    "profile_model",
]


def __getattr__(name: str) -> Any:
    if name in _FOLDERS:
        return import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
