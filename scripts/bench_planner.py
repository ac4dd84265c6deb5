"""Time the planners and the simulator, each competitor under its own name: `python scripts/bench_planner.py [--json]`.

Seconds are CPU time of this process, medians over `--repeats`, one thread. Published profiles are looked
for in the folder that SPARSEPIPE_REFERENCE names, else beside the repository; without them their rows are left out.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from sparsepipe import (  # noqa: E402
    Cluster,
    CostSample,
    DeviceType,
    Layer,
    LayerCost,
    LayerGraph,
    Link,
    Node,
    Plan,
    Profile,
    Stage,
    partition,
    simulate,
)
from sparsepipe.planners import Problem, estimate  # noqa: E402

ORIGINAL_RESNET101_SECONDS = 7.8  # CPU seconds of PipeDream's own optimizer, resnet101 on 16 like devices
LINK = Link(1e9, 10e-6)


def reference() -> Path | None:
    """The folder of published profiles, if it is there."""
    folder = Path(os.environ.get("SPARSEPIPE_REFERENCE") or REPOSITORY.parent / "shared" / "reference")
    return folder if (folder / "profiles").is_dir() else None


def chain(num_layers: int, types: str, *, seed: int = 0) -> Profile:
    """A random chain on device types of different speeds, each layer a little better or worse on each."""
    rng = random.Random(seed)
    layers = [Layer(f"l{k}", "", rng.choice([0, 1e4, 1e6, 4e6])) for k in range(num_layers)]
    base = [(rng.uniform(1, 10) * 1e-3, rng.uniform(1, 10) * 1e5) for _ in layers]
    costs = {}
    for place, kind in enumerate(types):
        times = [seconds * (1 + place / 2) * rng.uniform(0.8, 1.2) for seconds, _ in base]
        samples = [CostSample(0, t, 2 * t, size) for t, (_, size) in zip(times, base, strict=True)]
        costs[kind] = tuple(LayerCost((sample,)) for sample in samples)
    return Profile(LayerGraph.chain(layers), costs)


def devices(types: str, count: int) -> Cluster:
    """One node with `count` devices, spread over `types`."""
    kinds = tuple(DeviceType(types[k * len(types) // count]) for k in range(count))
    return Cluster((Node("node", kinds, LINK),), LINK)


def seconds(function: Callable[[], Any], repeats: int) -> float:
    """Median CPU seconds of `function`, after one call to warm it up."""
    function()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return statistics.median(times)


def minkvgg16(folder: Path) -> tuple[Profile, Cluster]:
    """MinkVGG16 as published, on 3 RTX, 3 TITAN V and 2 TITAN Xp."""
    kinds = ("RTX", "tv", "txp")
    paths = [folder / f"profiles/minkvgg/minkvgg_v0.02_b64_{kind}/graph.txt" for kind in kinds]
    first, *others = (Profile.load(path, device_type=kind) for path, kind in zip(paths, kinds, strict=True))
    for other in others:
        first = first | other
    listed = tuple(DeviceType(kind) for kind in ("RTX",) * 3 + ("tv",) * 3 + ("txp",) * 2)
    return first, Cluster((Node("node", listed, LINK),), LINK)


def first_call() -> float:
    """Wall seconds of import and first plan in a fresh process."""
    code = (
        "import time; start = time.perf_counter(); import sys; sys.path.insert(0, sys.argv[1])\n"
        "from scripts.bench_planner import chain, devices, partition\n"
        "partition(chain(200, 'abcd'), devices('abcd', 16)); print(time.perf_counter() - start)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(REPOSITORY)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def planning(folder: Path | None, repeats: int) -> dict[str, Any]:
    """The cases with a target, and every planner on one of them."""
    profile, cluster = chain(200, "abcd"), devices("abcd", 16)
    found: dict[str, Any] = {
        "first_call": {"seconds": first_call(), "target": 2.0},
        "200_layers_16_devices_4_types": {
            "seconds": seconds(lambda: partition(profile, cluster), repeats),
            "target": 0.2,
        },
    }
    if folder is None:
        return found
    profile, cluster = minkvgg16(folder)
    found["minkvgg16_8_devices_3_types"] = {
        "seconds": seconds(lambda: partition(profile, cluster), repeats),
        "target": 0.05,
    }
    planners = {}
    for name in ("optimal", "sparsepipe", "pipedream", "data-parallel", "model-parallel"):
        plan = partition(profile, cluster, planner=name)
        period = estimate(plan, Problem(profile, cluster)).period_seconds
        spent = seconds(lambda name=name: partition(profile, cluster, planner=name), repeats)
        planners[name] = {"seconds": spent, "period_seconds": period}
    found["planners_on_minkvgg16"] = planners
    for name, count in (("resnet101", 16), ("densenet121", 16), ("inception_v3", 16), ("nasnetamobile", 16)):
        profile = Profile.load(folder / f"profiles/image_classification/{name}/graph.txt")
        cluster = Cluster.uniform(count, link=Link(1e9))
        spent = seconds(lambda p=profile, c=cluster: partition(p, c), max(1, repeats // 2))
        found[f"{name}_{count}_devices"] = {"seconds": spent, "gap": partition(profile, cluster).estimate.gap}
    resnet = found["resnet101_16_devices"]
    resnet["times_as_fast_as_the_original"] = ORIGINAL_RESNET101_SECONDS / resnet["seconds"]
    return found


def growth(repeats: int) -> dict[str, dict[str, float]]:
    """Seconds to plan as layers, devices and types grow, one at a time."""

    def spent(layers: int, count: int, types: str) -> float:
        profile, cluster = chain(layers, types), devices(types, count)
        return seconds(lambda: partition(profile, cluster), max(1, repeats // 2))

    return {
        "layers (8 devices, 2 types)": {str(n): spent(n, 8, "ab") for n in (25, 50, 100, 200, 400, 800)},
        "devices (100 layers, 2 types)": {str(n): spent(100, n, "ab") for n in (2, 4, 8, 16, 32, 64)},
        "types (100 layers, 12 devices)": {str(n): spent(100, 12, "abcdef"[:n]) for n in (1, 2, 3, 4, 6)},
    }


def simulation(repeats: int, largest: bool) -> dict[str, dict[str, float]]:
    """Seconds to simulate: stages × replicas × minibatches."""
    found = {}
    cases = [(8, 8, 1000), (64, 1, 1000), (8, 8, 4000), (32, 8, 1000)] + ([(128, 8, 10_000)] if largest else [])
    for stages, replicas, minibatches in cases:
        profile, cluster = chain(stages, "d"), devices("d", stages * replicas)
        ranks = [range(s * replicas, (s + 1) * replicas) for s in range(stages)]
        plan = Plan(tuple(Stage((f"l{s}",), tuple(own)) for s, own in enumerate(ranks)))
        voxels = [random.Random(0).uniform(1, 2)] * minibatches

        def run(plan=plan, profile=profile, cluster=cluster, voxels=voxels) -> None:
            simulate(plan, profile, cluster, voxels)

        spent = seconds(run, repeats) if minibatches < 10_000 else -time.process_time()
        if spent < 0:
            run()
            spent += time.process_time()
        name = f"{stages * replicas} devices ({stages} stages × {replicas}), {minibatches} minibatches"
        found[name] = {"seconds": spent, "seconds_per_million_actions": spent / (stages * minibatches * 2) * 1e6}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--largest", action="store_true", help="also simulate 1,024 devices × 10,000 minibatches (minutes)"
    )
    options = parser.parse_args()
    document = {
        "planning": planning(reference(), options.repeats),
        "growth": growth(options.repeats),
        "simulation": simulation(options.repeats, options.largest),
    }
    if options.json:
        print(json.dumps(document, indent=2))
        return
    for part, rows in document.items():
        print(f"\n{part}")
        for name, row in rows.items():
            cells = ", ".join(f"{key}: {_cell(value)}" for key, value in row.items())
            print(f"  {name:60} {cells}")


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{key} {_cell(inner)}" for key, inner in value.items()) + ")"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
