"""Profiles: what each layer costs on each device type, as a law of a minibatch's size."""

from .layer_cost import CODED_FIELDS, COST_FIELDS, MEMORY_FIELDS, CostSample, LayerCost, LayerLaws
from .profile import AGREEMENT, FORMAT, OVERHEAD_FIELDS, Profile, StepOverhead, graph_differences
from .size_laws import SizeLaws
from .stride_laws import COORDINATE_BYTES, MEMORY_QUANTILE, StrideLaws, voxels_by_stride

__all__ = [
    "AGREEMENT",
    "CODED_FIELDS",
    "COORDINATE_BYTES",
    "COST_FIELDS",
    "FORMAT",
    "OVERHEAD_FIELDS",
    "CostSample",
    "LayerCost",
    "LayerLaws",
    "MEMORY_FIELDS",
    "MEMORY_QUANTILE",
    "Profile",
    "SizeLaws",
    "StepOverhead",
    "StrideLaws",
    "graph_differences",
    "voxels_by_stride",
]
