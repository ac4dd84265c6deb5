"""What the partition explorer's picture shows of an answer, as JSON-ready values, and its figures."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from ...planning import Problem
from ...planning.cuts import Cuts
from ...planning.estimate import stage_memory
from ...records.provenance import Provenance
from ...util.io.quantities import SIZE
from ...values.costs import MemoryNeed
from ...values.plan import Plan
from ...values.profile import Profile
from .. import plots
from ..plots.table import noted
from .exporter import Export
from .planning import Answer
from .stop_slider import StopSlider
from .view_model import scene

_UNITS = [MemoryNeed(*(float(k == unit) for k in range(4))) for unit in range(4)]


def picture(
    answer: Answer,
    pinned: Answer | None,
    *,
    batch_size: int | None,
    note: str,
    sliders: Mapping[str, tuple[str, StopSlider]],
) -> dict[str, Any]:
    """Return a plan, its numbers and what each rank does. `pinned`: what it is compared with.

    `sliders`: name → (the field of the settings, the slider): the page shows what it was sent before at once.
    """
    settings, kept = answer.settings, answer.settings.cuts is not None
    movable = kept or (answer.plan.stages_per_rank == 1 and settings.stage_devices is None)
    before = pinned.plan if pinned is not None else None
    drawn = scene(answer.plan, answer.problem, answer.trace, bound=answer.bound, batch_size=batch_size, before=before)
    where = blocked(answer.plan, answer.problem, answer.ends) if kept else {"blocked": [], "reasons": []}
    drawn |= {
        "cuts": {
            "at": answer.ends,
            "movable": movable,
            "kept": kept,
            "ghost": answer.best_ends if kept else [],
            **where,
        },
        "hint": "drag a cut, or focus it and press the arrow keys"
        + ("; dashed: the best cuts known" if kept and answer.best_ends else "")
        if movable
        else "layers in network order, height proportional to time",
        "code": answer.as_code(),
        "bases": {name: answer.base(field) for name, (field, _) in sliders.items()},
        "places": _places(answer, sliders),
        "baseline": "" if pinned is None else format(hash(pinned.settings), "x"),
    }
    if drawn["before"] is not None and pinned is not None and pinned.settings != settings:
        drawn["before"]["name"] += f", with {pinned.told()}"
    if note:
        drawn["notes"] = [*drawn["notes"], note]
    return drawn


def _places(answer: Answer, sliders: Mapping[str, tuple[str, StopSlider]]) -> dict[str, list[str]]:
    """Return by slider, and by pinned cut, [a name of all other settings, its value]: these two know the picture."""
    places = {
        name: [answer.place(field, name if field == "devices" else None), slider.key(slider.value)]
        for name, (field, slider) in sliders.items()
    }
    return places | {f"cut {k}": [answer.place("cuts", k), str(at)] for k, at in enumerate(answer.settings.cuts or ())}


def blocked(plan: Plan, problem: Problem, ends: list[int]) -> dict[str, Any]:
    """Return {"reasons": sentences, "blocked": for each cut the ranges [first, last, reason] where it cannot be}.

    The other cuts and all devices stay. A place is the number of layers before the cut.
    """
    num_layers = len(problem.layers)
    bounds, reasons, found = [0, *ends, num_layers], [], []
    between = [(k, at) for k in range(len(ends)) for at in range(bounds[k] + 1, bounds[k + 2])]
    stages = [part for k, at in between for part in ((k, bounds[k], at), (k + 1, at, bounds[k + 2]))]
    too_large = _Need(plan, problem).too_large(stages)

    def reason(text: str) -> int:
        if text not in reasons:
            reasons.append(text)
        return reasons.index(text)

    for k in range(len(ends)):
        low, high = bounds[k], bounds[k + 2]
        why = [-1] * (num_layers + 1)
        for place in range(1, num_layers):
            if place <= low:
                why[place] = reason(f"it must be after cut {k - 1} | {k}, with a layer between them")
            elif place >= high:
                why[place] = reason(f"it must be before cut {k + 1} | {k + 2}, with a layer between them")
            else:
                for stage, a, b in ((k, low, place), (k + 1, place, high)):
                    if text := too_large.get((stage, a, b)):
                        why[place] = reason(text)
        ranges = []
        for value, run in groupby(range(1, num_layers), key=why.__getitem__):
            places = list(run)
            if value >= 0:
                ranges.append([places[0], places[-1], value])
        found.append(ranges)
    return {"reasons": reasons, "blocked": found}


def explorer_export(answer: Answer, before: Answer | None, *, profile: Profile, note: str) -> Export:
    """Return (figure, table) by name of the plan on screen, and of that which it is compared with."""
    answers, names = ([answer], [""]) if before is None else ([before, answer], ["A: ", "B: "])
    plans = [one.plan for one in answers]
    if before is not None:
        plans[0] = replace(plans[0], planner="A")
    own = [f"{name}{one.told()}" for name, one in zip(names, answers, strict=True)]
    whole = in_lines(noted(note, profile.origin), *own)
    figures = {
        "explorer_stages": (plots.stages(*plans, note=whole), plots.stages_table(*plans)),
        "explorer_layers": (plots.compare(*plans, note=whole), plots.compare_table(*plans)),
        "explorer_timeline": (
            plots.timeline(answer.trace, note=in_lines(noted(note, profile.origin), answer.told())),
            plots.timeline_table(answer.trace),
        ),
    }
    return Export(figures, _provenance(answers, profile))


def _provenance(answers: Sequence[Answer], profile: Profile) -> Provenance:
    """Provenance of the plans; the last is that on screen, the one before it A."""
    settings: dict[str, Any] = answers[-1].settings.to_json()
    if len(answers) > 1:
        settings["compared_with"] = answers[0].settings.to_json()
    clusters, plans = [one.cluster for one in answers], [one.plan for one in answers]
    return Provenance.of(profile=profile, cluster=clusters, plans=plans, settings=settings)


def in_lines(*parts: str) -> str:
    """The note of a figure: each part that is not empty begins a line."""
    return "\n".join(filter(None, parts))


class _Need:
    """Bytes of a stage from one cut to another, which are linear in the parts of its need."""

    def __init__(self, plan: Plan, problem: Problem) -> None:
        devices, table = problem.cluster.devices, problem.table
        self.limits = [min(devices[rank].type.memory_bytes for rank in stage.ranks) for stage in plan.stages]
        self.kinds = [
            min((devices[rank].type for rank in stage.ranks), key=lambda kind: kind.memory_bytes).name
            for stage in plan.stages
        ]
        self.bounded = min(self.limits) < float("inf")
        if not self.bounded:
            return
        cuts = Cuts.along(table, problem.layers)
        self.each = [[stage_memory(plan, k, unit) for unit in _UNITS] for k in range(len(plan.stages))]
        self.weights = cuts.total(table.parameter_bytes)
        self.stage_bytes = cuts.stage_bytes(table)
        self.incoming = np.asarray(cuts.payloads(table, held=True)[0][:, 1])

    def too_large(self, stages: Sequence[tuple[int, int, int]]) -> dict[tuple[int, int, int], str]:
        """Return a reason for each (stage, cut before it, cut after it) that does not fit, all of them in one pass."""
        if not self.bounded or not stages:
            return {}
        stage, first, last = np.array(stages).T
        saved, working, _ = self.stage_bytes(first, last)
        parts = np.stack([self.weights[last] - self.weights[first], saved, self.incoming[first], working])
        over = (np.array(self.each)[stage].T * parts).sum(axis=0) > np.array(self.limits)[stage]
        reasons = [
            f"stage {k} would need more than the {SIZE.shown(limit)} of a {kind}"
            for k, (limit, kind) in enumerate(zip(self.limits, self.kinds, strict=True))
        ]
        return {part: reasons[part[0]] for part, is_over in zip(stages, over, strict=True) if is_over}
