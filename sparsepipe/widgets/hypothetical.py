"""Profiles under hypothetical conditions: compressed boundaries."""

from dataclasses import replace

from ..profile import CostSample, LayerCost, Profile


def compressed(profile: Profile, ratio: float) -> Profile:
    """The profile whose features cross a boundary in 1/ratio of the bytes; what a stage keeps stays as it is."""

    def squeeze(sample: CostSample, told: bool) -> CostSample:
        saved = sample.saved_bytes if told else sample.output_bytes
        return replace(sample.squeezed(ratio), saved_bytes=saved)

    costs = {}
    for name, layers in profile.costs.items():
        told = any(sample.saved_bytes for cost in layers for sample in cost.stretched)
        costs[name] = tuple(LayerCost(tuple(squeeze(s, told) for s in cost.stretched)) for cost in layers)
    return replace(profile, costs=costs)
