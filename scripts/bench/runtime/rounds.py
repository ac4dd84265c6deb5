"""The competitors in turn, round by round, and the ratios of neighbours in time."""

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sparsepipe.values.plan import Plan
from sparsepipe.values.profile import Profile

from ..document import say
from ..rounds import load, quartiles, ratios
from .cases import CASES, Case
from .plans import flush_plan, good_cuts, plans, predict
from .processes import start
from .six_messages import six_messages

SETTINGS = "settings.json"  # [cut, number of micro-batches, samples of each], each a setting to try
TORCH = ("torch_1f1b", "torch_1f1b_larger")
COMPETITORS = (
    "limit",
    "predicted",
    "pipeline",
    "ddp",
    "torch_1f1b",
    "ddp_double",
    "torch_1f1b_larger",
    "flush",
    "single",
)


def bench(name: str, folder: Path, *, repeats: int, seconds: float, only: set[str]) -> dict[str, Any]:
    """Measure one workload."""
    case = CASES[name]
    say(f"{name}: profile, two processes at once")
    start("profile", name, folder, seconds, world_size=2)  # as busy as both cores will be
    chosen = Profile.load(folder / "profile-0.json")
    plan, cut = plans(chosen)
    plan.save(folder / "plan.json")
    say(str(plan))
    result: dict[str, list[float]] = {key: [] for key in COMPETITORS}
    notes: dict[str, Any] = {"plan": [list(stage.layers) for stage in plan.stages], "load": [], "peak": [], "held": []}
    arguments = {"ddp": ["--batch-size", str(case.batch_size // 2)]}
    if only.intersection(TORCH):
        arguments |= _best_torch(name, case, folder, chosen, cut, seconds, notes, only)
    flush_plan(chosen, cut, notes.get("torch_1f1b_larger_at")).save(folder / "flush.json")
    for repeat in range(repeats):
        notes["load"].append(round(load(), 2))
        for role, found in _round(name, case, folder, seconds, arguments, only, chosen):
            result[role].append(found["samples_per_second"])
            say(f"{name} {repeat + 1}/{repeats}: {role} {found['samples_per_second']:.1f} samples/s")
            if role == "pipeline":
                stages = found["stages"]
                for which in ("peak", "held"):
                    notes[which].append([stage[f"{which}_bytes"] / stage["planned_bytes"] for stage in stages])
                notes["stages"] = stages
    notes["layers_over_whole"] = chosen.origin["layers_over_whole"]
    for which in ("peak", "held"):
        notes[which] = [statistics.median(of_stage) for of_stage in zip(*notes[which], strict=True)]
    return summary(result, notes)


def _round(
    name: str, case: Case, folder: Path, seconds: float, arguments: dict[str, list[str]], only: set[str], found: Profile
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure each competitor once, one after the other."""
    limit = 0.0
    for role in COMPETITORS:
        if role not in only or (role in TORCH and role not in arguments):
            continue
        if role == "limit":
            both = start("single", name, folder, seconds, world_size=2)
            limit = sum(one["samples_per_second"] for one in both)
            yield role, {"samples_per_second": limit}
        elif role == "predicted":
            plan = Plan.load(folder / "plan.json")
            yield role, {"samples_per_second": predict(plan, found, case, step_seconds=2 * case.batch_size / limit)}
        elif role == "single":
            yield role, start("single", name, folder, seconds, world_size=1)[0]
        else:
            yield role, start(role, name, folder, seconds, world_size=2, extra=arguments.get(role, ()))[0]


def _best_torch(
    name: str, case: Case, folder: Path, found: Profile, cut: int, seconds: float, notes: dict, only: set[str]
) -> dict[str, list[str]]:
    """Find the cut and number of micro-batches at which torch's own schedule is fastest, for either size of these."""
    if not case.in_parts:
        told = start("torch_1f1b", name, folder, seconds, world_size=2, extra=["--cut", str(cut)])
        errors = [each["error"] for each in told if "error" in each]
        notes["torch_1f1b_error"] = min(errors, key=lambda error: "Connection closed" in error)  # the cause, not a loss
        say(f"{name}: torch_1f1b cannot: {notes['torch_1f1b_error']}")
        return {}
    sizes = {
        "torch_1f1b": {count: case.batch_size // count for count in (2, 4, 8)},
        "torch_1f1b_larger": dict.fromkeys((4, 8), case.batch_size),
    }
    chosen = {}
    for role, sizes_of in ((role, sizes_of) for role, sizes_of in sizes.items() if role in only):
        settings = [(place, *each) for place in good_cuts(found, cut) for each in sizes_of.items()]
        (folder / SETTINGS).write_text(json.dumps(settings))
        rates = start("torch_settings", name, folder, seconds / 2, world_size=2)[0]["samples_per_second"]
        rate, (place, count, size) = max(zip(rates, settings, strict=True))
        chosen[role] = ["--cut", str(place), "--microbatches", str(count), "--batch-size", str(size)]
        notes[f"{role}_at"] = {"cut": place, "microbatches": count, "of_samples": size}
        say(f"{name}: {role} is best at cut {place}, {count} micro-batches of {size}: {rate:.1f}")
    return chosen


def summary(result: dict[str, list[float]], notes: dict[str, Any]) -> dict[str, Any]:
    """Return the part of the document that is about one workload: medians, every run, ratios with their spread."""
    document: dict[str, Any] = {key: statistics.median(found) if found else None for key, found in result.items()}
    document["runs"] = result
    neighbours = [("pipeline", other) for other in COMPETITORS if other not in ("pipeline", "flush", "single")]
    for one, other in (*neighbours, ("flush", "torch_1f1b_larger")):
        document[f"{one}/{other}"] = _spread(ratios(result[one], result[other]))
    return document | notes


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    low, middle, high = quartiles(values)
    return {"median": middle, "low": low, "high": high}


def of_the_runtime(folder: Path, repeats: int) -> dict[str, Any]:
    """Measure what does not depend on a workload."""
    (folder / "bare").mkdir()
    (folder / "bare" / "shapes").symlink_to(folder / "shapes")
    found = [start("overhead", "vgg16", folder / "bare", 0, world_size=2) for _ in range(repeats)]
    overheads = [ranks[0]["overhead_ms"] for ranks in found]
    cpu = statistics.median(rank["cpu_ms"] for ranks in found for rank in ranks)
    say(f"overhead: {statistics.median(overheads):.3f} ms a minibatch and stage")
    channel = start("channel", "vgg16", folder / "bare", 0, world_size=2)[0]["gigabytes_per_second"]
    say(f"channel: {channel}")
    cuts = six_messages("minkvgg16bn", folder / "bare")
    return {
        "overhead_ms": statistics.median(overheads),
        "overhead_cpu_ms": cpu,
        "channel": {"rates": channel, "minkvgg16bn": cuts},
    }
