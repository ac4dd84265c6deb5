"""Profiles under hypothetical conditions: compressed boundaries."""

from dataclasses import replace
from functools import partial

from ..profile import CostSample, Profile


def compressed(profile: Profile, ratio: float) -> Profile:
    """The profile whose features cross a boundary in 1/ratio of the bytes; what a stage keeps stays as it is."""

    def squeeze(sample: CostSample, knows_saved: bool) -> CostSample:
        saved = sample.saved_bytes if knows_saved else sample.output_bytes
        return replace(sample.squeezed(ratio), saved_bytes=saved)

    costs = {}
    for name, layers in profile.costs.items():
        knows_saved = any(sample.saved_bytes for cost in layers for sample in cost.samples)
        costs[name] = tuple(cost.changed(partial(squeeze, knows_saved=knows_saved)) for cost in layers)
    return replace(profile, costs=costs)
