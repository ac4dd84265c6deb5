"""What the partition explorer's export button writes: the figures on screen, and what their numbers rest on."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .. import plots
from ..plots.table import noted
from ..profile import Profile
from ..provenance import Provenance
from .exporter import Export
from .planning import Answer


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
    """What the plans rest on; the last is that on screen, the one before it A."""
    settings: dict[str, Any] = answers[-1].settings.to_json()
    if len(answers) > 1:
        settings["compared_with"] = answers[0].settings.to_json()
    clusters, plans = [one.cluster for one in answers], [one.plan for one in answers]
    return Provenance.of(profile=profile, cluster=clusters, plans=plans, settings=settings)


def in_lines(*parts: str) -> str:
    """The note of a figure: each part that is not empty begins a line."""
    return "\n".join(filter(None, parts))
