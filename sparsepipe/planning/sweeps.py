"""Sweeps: every planner with every schedule and every compression, planned and simulated, to choose among."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import InputError
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from . import partition
from .forecast import peak_bytes, steady_rate
from .simulator import simulate

# A compression that loses something -> by what it divides the bytes of features; coordinates are never compressed. What
# exact ones save depends on the data, and is not simulated.
RATIOS = {"none": 1.0, "bfloat16": 2.0, "float16": 2.0, "int8": 4.0}
_MINIBATCHES = 48  # simulated for each


@dataclass(frozen=True)
class Candidate:
    """One combination: its plan, and what the simulator says of it.

    `variant` names the profile it was planned on. `samples_per_second` are minibatches, as `counted` says, where one of
    the profiles does not tell how many samples one has: tables and pictures call them so. `memory_bytes` is the fullest
    device's share at its fullest; `fits`: it has that much.
    """

    variant: str
    planner: str
    schedule: str
    compression: str
    plan: Plan
    samples_per_second: float
    memory_bytes: float
    fits: bool
    counted: str = "samples"  # or "minibatches"

    @property
    def name(self) -> str:
        """Such as "optimal 1f1b int8", with the variant before it."""
        label_parts = (
            self.variant,
            self.planner,
            self.schedule,
            "" if self.compression == "none" else self.compression,
        )
        return " ".join(part for part in label_parts if part)


@dataclass(frozen=True)
class Sweep:
    """The candidates, and what could not be planned: a sentence each."""

    candidates: tuple[Candidate, ...]
    left_out: tuple[str, ...] = ()

    @property
    def best(self) -> tuple[Candidate, ...]:
        """Return the Pareto front of throughput and peak memory among candidates that fit, the least memory first."""
        edge: list[Candidate] = []
        fitting = (candidate for candidate in self.candidates if candidate.fits)
        for candidate in sorted(fitting, key=lambda each: (each.memory_bytes, -each.samples_per_second)):
            if not edge or candidate.samples_per_second > edge[-1].samples_per_second:
                edge.append(candidate)
        return tuple(edge)


def sweep(
    profiles: Mapping[str, Profile],
    cluster: Cluster,
    *,
    planners: Iterable[str] = ("optimal", "model-parallel", "data-parallel"),
    schedules: Iterable[str] = ("1f1b", "2bw", "1f1b-flush"),
    compressions: Iterable[str] = ("none",),
    minibatches: int = _MINIBATCHES,
) -> Sweep:
    """Plan and simulate every combination of planner, schedule and compression.

    Combinations that a planner or a schedule does not support are omitted, with the reason.

    Args:
        profiles: Name → profile, for example of the same network at several voxel sizes.
        cluster: The devices and links.
        planners: Names of planners.
        schedules: Names of schedules.
        compressions: Encodings of activations at stage boundaries.
        minibatches: Number of minibatches per simulation.

    Returns:
        The candidates with throughput and peak memory, their Pareto front `best`, and the omitted combinations.

    Raises:
        InputError: An unknown compression, or no supported combination.

    Example:
        >>> from sparsepipe.planning.sweeps import sweep
        >>> found = sweep({"5 cm": profile}, cluster, planners=["optimal"], schedules=["1f1b", "2bw"], minibatches=8)
        >>> [candidate.schedule for candidate in found.candidates]
        ['1f1b', '2bw']

    See also:
        guides/sweeps, `plots.trade_off`
    """
    candidates: list[Candidate] = []
    left_out: list[str] = []
    for compression in (compressions := list(compressions)):
        if compression not in RATIOS:
            raise InputError(
                "compression.not_simulated",
                f"unknown compression {compression!r} for simulation, expected one of {', '.join(RATIOS)}",
                compression=compression,
            )
    known = all(profile.batch_size for profile in profiles.values())
    for variant, profile in profiles.items():
        for compression in compressions:
            sent = _compressed(profile, RATIOS[compression])
            for planner, schedule in [(planner, schedule) for planner in planners for schedule in schedules]:
                label = " ".join(filter(None, (variant, planner, schedule)))
                try:
                    plan = partition(sent, cluster, planner=planner, schedule=schedule)
                    samples = profile.batch_size if known else None
                    candidates.append(
                        _simulated(variant, compression, plan, profile, sent, cluster, minibatches, samples)
                    )
                except InputError as error:
                    left_out.append(f"{label}: {error}")
    if not candidates:
        raise InputError(
            "sweep.no_plan",
            f"nothing could be planned: {left_out[0]}" if left_out else "no planner or no schedule given",
        )
    return Sweep(tuple(candidates), tuple(dict.fromkeys(left_out)))


def _simulated(
    variant: str,
    compression: str,
    plan: Plan,
    profile: Profile,
    sent: Profile,
    cluster: Cluster,
    minibatches: int,
    samples: int | None,
) -> Candidate:
    """Simulate with what is sent, and count memory with what is held, which is never compressed."""
    sizes = _sizes(profile, minibatches)
    rate = steady_rate(simulate(plan, sent, cluster, sizes), plan, len(sizes))
    peaks = peak_bytes(plan, profile, cluster, sizes)
    fits = all(peak <= cluster.devices[rank].type.memory_bytes for rank, peak in peaks.items())
    pace, counted = (rate * samples, "samples") if samples else (rate, "minibatches")
    return Candidate(variant, plan.planner, plan.schedule, compression, plan, pace, max(peaks.values()), fits, counted)


def _sizes(profile: Profile, minibatches: int) -> Sequence[float]:
    """Sizes of typical minibatches, in turn."""
    typical = profile.typical_sizes
    return [typical[m % len(typical)] for m in range(minibatches)]


def _compressed(profile: Profile, ratio: float) -> Profile:
    """The profile with the bytes of features divided, as boundaries send them."""
    if ratio == 1.0:
        return profile
    costs = {
        kind: tuple(cost.changed(lambda sample: sample.squeezed(ratio)) for cost in layers)
        for kind, layers in profile.costs.items()
    }
    return replace(profile, costs=costs)
