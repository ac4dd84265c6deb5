"""Device types without a profile: their times are those of one that has one, by how fast both compute a layer."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ...values.cluster import Cluster
from ...values.profile import CostSample, LayerCost, Profile

_SECONDS = ("forward", "backward", "forward_spread", "backward_spread", "kernel_map_seconds")  # of a sample


def with_unmeasured(profile: Profile, cluster: Cluster) -> tuple[Profile, tuple[str, ...]]:
    """Return the profile with the unmeasured types of the cluster that can be estimated, and a line for each of these.

    A type that was not measured on the cluster's reference layer stays unknown, which planners tell.
    """
    seconds = {kind.name: kind.reference_seconds for kind in cluster.device_types if kind.reference_seconds}
    known = [name for name in seconds if name in profile.costs]
    told = []
    for name in seconds:
        if name in profile.costs or not known:
            continue
        like = min(known, key=lambda one: abs(seconds[one] / seconds[name] - 1))
        factor = seconds[name] / seconds[like]
        profile = _with_type(profile, name, like, factor)
        told.append(
            f"no profile of device type {name!r}: it is taken to need {factor:.2f} times as long as {like!r}, as for "
            f"the reference layer; --profile {name}=FILE gives its own"
        )
    return profile, tuple(told)


def _with_type(profile: Profile, name: str, like: str, factor: float) -> Profile:
    rates, overheads = dict(profile.update_rates), dict(profile.step_overheads)
    if like in rates:
        rates[name] = rates[like] * factor
    if like in overheads:
        overheads[name] = overheads[like].slower(1 / factor)
    costs: Mapping[str, tuple[LayerCost, ...]] = {
        **profile.costs,
        name: tuple(cost.changed(partial(_slower, factor=factor)) for cost in profile.costs[like]),
    }
    return replace(profile, costs=costs, update_rates=rates, step_overheads=overheads)


def _slower(sample: CostSample, factor: float) -> CostSample:
    return replace(sample, **{field: getattr(sample, field) * factor for field in _SECONDS})
