"""What others measured or proved, compared with what is predicted here, as numbers that a figure draws."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from ..data.formats import read as read_cloud
from ..data.formats.base import Cloud
from ..data.formats.las import claimed_points
from ..data.manifests import manifests_folder
from ..errors import InputError
from ..monitoring.interference.colocation import CARDS, FILE, predicted_slowdowns, read_pairs
from ..planning import Problem, partition
from ..planning.measured_plans import predict, published_prediction
from ..planning.published.pipedream import PipeDream
from ..planning.published.sparsepipe import SparsePipe
from ..planning.replaying import Part, replay, what_if
from ..records import load_trace
from ..records.formats.dnn_partitioning import PartitioningFile
from ..records.formats.sailor import SailorFiles
from ..util.io.fields import number, read_yaml, shown
from ..util.io.files import read_json, read_text
from ..values.cluster import Cluster, DeviceType, Link, Node
from ..values.profile import Profile
from ..views.plots.system_bars import HeldAgainst
from .machines import folder_of, reference_folders

SCANNED = "points of a scan"  # the kind of what is counted and not predicted
_UNNAMED = "file's unit"  # of time: dnn-partitioning's graphs do not name it
_TIMES = "×"  # the unit of a slow-down: times as long
_TRACE, _RESULT = "trace-", "result-"  # of ByteDance's files, before a job's name
_SPLITS = {"stage": "stage", "replica": "dp_rank", "operation": "optype"}  # what is split here → their word


def of_jobs(folder: str = "") -> list[HeldAgainst]:
    """`replayed_steps` and `slow_downs` of ByteDance's jobs; a missing folder is reported once."""
    path = folder_of("straggler-analysis", folder)
    return [*replayed_steps(str(path)), *slow_downs(str(path))] if path else []


def replayed_steps(folder: str = "") -> list[HeldAgainst]:
    """Each step of ByteDance's jobs, replayed from its own durations; their simulator's is without launch delays.

    Then its pipeline alone: forwards and backwards in their order, with neither transfers nor delays of launches. Jobs
    are all of which a trace-JOB.parquet is in the folder. If result-JOB.json, their simulator's, is not next to it,
    that is said in one line, and its numbers are left out.
    """
    steps, alone = [], []
    for job, trace, problem in _jobs(folder, "what their simulator says of each step is left out"):
        theirs = problem.get("step_t_nodelay", {})
        for step in replay(load_trace(trace)).steps:
            name = f"{job}, step {step.step}"
            other = number(theirs.get(str(step.step)), f"step_t_nodelay of step {step.step}") if problem else None
            steps.append(HeldAgainst("replayed step", name, step.measured_seconds, step.replayed_seconds, others=other))
            alone.append(
                HeldAgainst("replayed pipeline", name, step.pipeline_measured_seconds, step.pipeline_replayed_seconds)
            )
    return [*steps, *alone]


def slow_downs(folder: str = "") -> list[HeldAgainst]:
    """Slowdowns of ByteDance's jobs by stragglers, relative to an even step.

    First a number for each job, named with the culprit found here; then one for each stage, replica and operation that
    its authors publish, and for delays of launches. A job whose result-JOB.json is not alongside its trace is left out,
    and that is said in one line. Raises InputError in one line for a result that is none.
    """
    whole: list[HeldAgainst] = []
    parts: list[HeldAgainst] = []
    for job, trace, problem in _jobs(folder, "its slow-downs are left out"):
        if not problem:
            continue
        what_if_found = what_if(load_trace(trace))
        split = {Part("launch"): problem.get("launch_slowdown")}
        for category, word in _SPLITS.items():
            theirs = problem.get(f"blocking_decompose_by_{word}", {})
            split |= {
                part: theirs[str(part.key)]
                for part in what_if_found.by
                if part.category == category and str(part.key) in theirs
            }
        whole.append(
            _slow_down(f"{job}: {what_if_found.culprit}", problem.get("blocking_slowdown"), what_if_found.slowdown)
        )
        parts += [
            _slow_down(_named(job, part), theirs, what_if_found.by[part], by="by part")
            for part, theirs in split.items()
        ]
    return [*whole, *parts]


def _named(job: str, part: Part) -> str:
    if part.category == "operation":
        return f"{job}, {part.key}"
    return f"{job}, {part.category} {part.key}".rstrip()


def _slow_down(name: str, theirs: object, ours: float, *, by: str = "of a job") -> HeldAgainst:
    return HeldAgainst(f"what-if slow-down {by}", name, number(theirs, name), ours, _TIMES, known_as="published")


def _jobs(folder: str, without: str) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Each job's name, its trace, and what its authors say of it, {} where that file does not exist. Small ones
    first.
    """
    traces_folder = folder_of("straggler-analysis", folder)
    traces = (
        sorted(traces_folder.rglob(f"{_TRACE}*.parquet"), key=lambda path: (path.stat().st_size, path))
        if traces_folder
        else []
    )
    if traces_folder and not traces:
        raise InputError(
            "bytedance.no_traces", f"{traces_folder}: no {_TRACE}JOB.parquet; give the folder of ByteDance's traces"
        )
    for trace in traces:
        job = trace.stem.removeprefix(_TRACE)
        path = trace.with_name(f"{_RESULT}{job}.json")
        if not path.exists():
            print(f"{path.name} is not beside {trace.name}: {without}")
        document = read_json(path, what="ByteDance's result") if path.exists() else {}
        if not isinstance(document, dict):
            raise InputError("bytedance.malformed", f"{path}: expected a JSON object of ByteDance's results")
        yield job, trace, document


def slow_downs_beside_others(folder: str = "") -> list[HeldAgainst]:
    """Gavel's pairs of jobs on one GPU: what a forest that learned on two kinds of GPU predicts of the third.

    A number for each job with each other one, of each GPU in turn.
    """
    path = folder_of("colocation", folder)
    if path is None:
        return []
    pairs = read_pairs(path / FILE)
    return [
        HeldAgainst(f"slowed by a neighbour, {card.upper()}", f"{pair}", pair.slowdown, predicted, _TIMES)
        for card in CARDS
        for pair, predicted in predicted_slowdowns(pairs, card)
    ]


def points_of_scans(folder: str = "") -> list[HeldAgainst]:
    """The points of airborne scans, all and by return: as they are read here, and as the files' own headers count."""
    scans_folder = folder_of("airborne-scans", folder)
    if scans_folder is None:
        return []
    points = []
    for path in sorted(scans_folder.rglob("*.las")):
        cloud = read_cloud(path)
        assert isinstance(cloud, Cloud) and cloud.attributes is not None
        returns = cloud.attributes[:, cloud.names.index("return_number")]
        for name, count in claimed_points(path).items():
            read = len(cloud) if name == "all" else int((returns == int(name.split()[1])).sum())
            points.append(
                HeldAgainst(
                    SCANNED, f"{path.stem}, {name}", count, read, "points", known_as="by its header", found_as="read"
                )
            )
    return points


def known_optima(folder: str = "") -> list[HeldAgainst]:
    """The least load of dnn-partitioning's graphs, as planned here and as their program finds it."""
    path = folder_of("dnn-partitioning", folder)
    if path is None:
        return []
    optima = []
    for name, optimum in _optima().items():
        file = PartitioningFile.load(path / f"{name}.json")
        plan = partition(file.profile, file.cluster, cost_model="dnn-partitioning")
        assert plan.estimate is not None
        period = plan.estimate.period_seconds
        optima.append(HeldAgainst("known optimum", name, optimum, period, unit=_UNNAMED, known_as="known optimum"))
    return optima


def measured_plans(folder: str = "") -> list[HeldAgainst]:
    """Sailor's measured plans: time of a step and peak memory, with what their simulator says of both."""
    path = folder_of("sailor", folder)
    if path is None:
        return []
    plans = []
    for one in SailorFiles.load(path).plans():
        ours, theirs = predict(one), published_prediction(one)
        what = "unlike GPUs" if one.unlike else "like GPUs"
        known, ours_gb, theirs_gb = (b / 1e9 for b in (one.peak_bytes, ours.peak_bytes, theirs.peak_bytes))
        plans += [
            HeldAgainst(f"step, {what}", one.name, one.seconds, ours.seconds, "s", theirs.seconds, one.time_doubt),
            HeldAgainst(f"peak memory, {what}", one.name, known, ours_gb, "GB", theirs_gb, one.memory_doubt),
        ]
    return sorted(plans, key=lambda one: one.kind, reverse=True)


def planners_answers(folder: str, most: int) -> list[HeldAgainst]:
    """Periods that the original planners of PipeDream and SparsePipe print, and ours on the same profiles.

    `folder` has their answers, golden.jsonl, and the profiles; "": where published profiles are looked for. `most`: of
    each planner, spread over all there are.
    """
    places = [Path(folder)] if folder else reference_folders()
    place = next((place for place in places if (place / "golden.jsonl").exists()), None)
    if place is None:
        print("the results of the original planners are missing and omitted")
        return []
    rows = [json.loads(line) for line in read_text(place / "golden.jsonl").splitlines() if line.strip()]
    profiles = place / "profiles"
    load = cache(lambda name: _reference_profile(profiles, name))
    answers = []
    for kinds, answer in ((("homogeneous", "timing"), _pipedream), (("heterogeneous",), _sparsepipe)):
        matching_rows = [row for row in rows if row["kind"] in kinds and row["status"] == "ok"]
        for row in matching_rows[:: max(1, -(-len(matching_rows) // most))] if most else ():
            name, period = answer(row, load)
            answers.append(
                HeldAgainst(
                    "original planner's period", name, row["pipeline_time"], period, known_as="original planner's"
                )
            )
    return answers


def _pipedream(row: dict[str, Any], load: Callable[[str], Profile]) -> tuple[str, float]:
    counts, bandwidths = row["n"], row["b"]
    node = (DeviceType("device", row.get("mem") or inf),) * counts[0]
    outer = counts[1] if len(counts) > 1 else 1
    nodes = (Node(f"n{k}", node, Link(bandwidths[0])) for k in range(outer))
    planner = PipeDream(
        row["acr"],
        use_memory_constraint=row.get("mem") is not None,
        straight_pipeline=bool(row.get("straight")),
        use_fewer_machines=bool(row.get("fewer")),
        factor=4 if row["optimizer"] == "pipedream" else 2,
    )
    plan = planner.plan(Problem(load(row["profile"]), Cluster(tuple(nodes), Link(bandwidths[-1]))))
    assert plan.estimate is not None
    return f"{row['profile'].split('/')[-2]} on {' x '.join(map(str, counts))}", plan.estimate.period_seconds


def _sparsepipe(row: dict[str, Any], load: Callable[[str], Profile]) -> tuple[str, float]:
    kinds = list(dict.fromkeys(kind for server in row["servers"] for kind, _ in server))
    profile = load(kinds[0])
    for kind in kinds[1:]:
        profile = profile | load(kind)
    nodes = (Node(f"Server{k}", tuple(_devices(server)), Link(row["b"][0])) for k, server in enumerate(row["servers"]))
    plan = SparsePipe(row["acr"]).plan(Problem(profile, Cluster(tuple(nodes), Link(row["b"][-1]))))
    assert plan.estimate is not None
    return row["name"], plan.estimate.period_seconds


def _devices(server: Sequence[tuple[str, int]]) -> Iterator[DeviceType]:
    for kind, count in server:
        yield from [DeviceType(kind)] * int(count)


def _reference_profile(folder: Path, name: str) -> Profile:
    """A published profile by the original's path, or MinkVGG's of one device type."""
    if "/" not in name:
        return Profile.load(folder / f"minkvgg/minkvgg_v0.02_b64_{name}/graph.txt", device_type=name)
    tail = name.split("profiles/")[1]
    return Profile.load(
        folder / ("" if tail.startswith("minkvgg") else "image_classification") / tail, device_type="device"
    )


def _optima() -> dict[str, float]:
    path = manifests_folder().parent / "published" / "dnn-partitioning.yaml"
    document = read_yaml(path, what="file of published numbers")
    optima = document.get("optima") if isinstance(document, dict) else None
    if not isinstance(optima, dict):
        raise InputError(
            "bytedance.optima_malformed", f"{path}: 'optima' is {shown(optima)}, expected a number per graph"
        )
    return {name: number(value, f"{path}: {name}") for name, value in optima.items()}
