"""`sparsepipe sweep`: plan and simulate many combinations, and draw throughput against memory."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InputError
from ..planning.sweeps import Candidate, Sweep, sweep
from ..records.provenance import Provenance
from ..util.text.numbers import as_measured
from ..values.profile import Profile
from .output import Answer, progress_line, table
from .profile_and_cluster import profile_and_cluster


def run_sweep(options: argparse.Namespace) -> Answer:
    profile, cluster = profile_and_cluster(options)
    profiles = {"": profile} if not options.variant else {_label(profile): profile}
    for text in options.variant:
        label, equals, path = text.partition("=")
        if not (label and equals and path):
            raise InputError(
                "variant.malformed", f"--variant {text}: expected LABEL=FILE, a profile of the same network"
            )
        profiles[label] = Profile.load(path)
    given = {"planners": options.planner, "schedules": options.schedule, "compressions": options.compression}
    asked = {name: list(dict.fromkeys(value)) for name, value in given.items() if value}
    found = sweep(profiles, cluster, **asked, minibatches=options.minibatches)
    for text in found.left_out:
        progress_line(f"left out: {text}")
    document = {"candidates": [_row(one, found) for one in found.candidates], "left_out": list(found.left_out)}
    text = _text(found)
    if options.out:
        document["files"] = _written(found, options, Provenance.of(list(profiles.values()), cluster))
        text += (
            f"\n\n{options.out / 'sweep.html'}: throughput against memory; the plans on the Pareto front are in the "
            "same folder"
        )
    return Answer(document, text)


def _label(profile: Profile) -> str:
    """A name for the first profile among variants: its voxel size where it tells one."""
    data = profile.origin.get("data")
    size = data.get("voxel_size") if isinstance(data, Mapping) else None
    return f"voxel {size}" if size else "first"


def _row(one: Candidate, found: Sweep) -> dict[str, Any]:
    row = {name: getattr(one, name) for name in ("variant", "planner", "schedule", "compression")}
    row |= {f"{one.counted}_per_second": one.samples_per_second, "memory_bytes": one.memory_bytes, "fits": one.fits}
    stages = [len(stage.ranks) for stage in one.plan.stages]
    return row | {"replicas_of_stages": stages, "best": one in found.best}


def _text(found: Sweep) -> str:
    ordered = sorted(found.candidates, key=lambda each: -each.samples_per_second)
    rows = [["", "plan", "replicas of stages", f"{ordered[0].counted}/s", "peak memory", ""]]
    rows += [
        [
            "*" if one in found.best else "",
            one.name,
            "-".join(str(len(stage.ranks)) for stage in one.plan.stages),
            as_measured(one.samples_per_second),
            f"{one.memory_bytes / 1e6:,.1f} MB",
            "" if one.fits else "does not fit",
        ]
        for one in ordered
    ]
    told = "*: on the Pareto front of throughput and memory; all simulated"
    return f"{table(rows)}\n{told}"


def _written(found: Sweep, options: argparse.Namespace, origin: Provenance) -> list[str]:
    """Write the table, the picture and the plans of the best edge; where no browser draws, the page is there."""
    from ..views import plots

    figure = plots.trade_off(found.candidates, found.best)
    stem = options.out / "sweep"
    rows = plots.trade_off_table(found.candidates, found.best)
    try:
        paths = plots.export(figure, stem, table=rows, origin=origin)
    except plots.NoPicture as error:
        progress_line(f"warning: {error}")
        paths = [stem.with_suffix(".csv"), stem.with_suffix(".json")]
    page = stem.with_suffix(".html")
    figure.write_html(page)
    plans = [
        one.plan.save(options.out / "plans" / f"{one.name.replace(' ', '-').replace('/', '-')}.json")
        for one in found.best
    ]
    return [str(path) for path in (*paths, page, *plans)]


VERBS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {"sweep": run_sweep}
