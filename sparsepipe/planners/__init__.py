"""Planners: (profile, cluster) → Plan. One file each behind the protocol in base.py."""

import time
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..cluster import Cluster
from ..errors import InputError
from ..plan import WEIGHT_POLICIES, Plan
from ..profile import Profile
from .base import Planner, Problem, with_seconds
from .baselines import DataParallel, ModelParallel
from .estimate import estimate
from .optimal import Optimal
from .pipedream import PipeDream
from .sparsepipe import SparsePipe

PLANNERS: Mapping[str, type[Any]] = {
    "optimal": Optimal,
    "pipedream": PipeDream,
    "sparsepipe": SparsePipe,
    "data-parallel": DataParallel,
    "model-parallel": ModelParallel,
}

__all__ = ["PLANNERS", "Planner", "Problem", "estimate", "partition"]


def partition(
    profile: Profile,
    cluster: Cluster,
    *,
    planner: str = "optimal",
    schedule: str = "1f1b",
    num_microbatches: int | None = None,
    recompute: bool = False,
    **options: Any,
) -> Plan:
    """Choose a plan for the devices of `cluster`.

    `options` are the fields of the planner's class. `num_microbatches` (of one step) defaults to 1 for asynchronous
    schedules and to twice the devices for those that flush. Raises InputError for an unknown planner or option, a
    device type without profile, and where nothing fits into memory.
    """
    if planner not in PLANNERS:
        raise InputError(f"planner {planner!r} is unknown, expected one of {', '.join(PLANNERS)}")
    known = [field.name for field in fields(PLANNERS[planner])]
    if unknown := [name for name in options if name not in known]:
        raise InputError(f"planner {planner!r} has no option {unknown[0]!r}, it has: {', '.join(known) or 'none'}")
    if num_microbatches is None:
        flush = WEIGHT_POLICIES.get(schedule) == ("flush",)
        num_microbatches = 2 * len(cluster.devices) if flush else 1
    problem = Problem(profile, cluster, schedule, num_microbatches, recompute)
    start = time.perf_counter()
    plan = PLANNERS[planner](**options).plan(problem)
    return with_seconds(plan, time.perf_counter() - start)
