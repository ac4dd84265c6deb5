"""What is timed: the cases with a target, growth in each size, the simulator."""

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparsepipe import Cluster, Link, Plan, Profile, Stage, partition, simulate
from sparsepipe.planning import Problem, estimate

from ..document import REPOSITORY
from ..rounds import turns
from .cases import cells, chain, devices, hosts, minkvgg16, mixed_hosts

ORIGINAL_RESNET101_SECONDS = 7.8  # CPU seconds of PipeDream's own optimizer, resnet101 on 16 like devices


def seconds(function: Callable[[], Any], repeats: int) -> float:
    """Median CPU seconds of `function`, after one call to warm it up."""

    def timed() -> float:
        start = time.process_time()
        function()
        return time.process_time() - start

    return statistics.median(turns(repeats, {"this": timed})["this"])


def first_call() -> float:
    """Wall seconds of import and first plan in a fresh process."""
    code = (
        "import time; start = time.perf_counter(); import sys; sys.path.insert(0, sys.argv[1])\n"
        "from scripts.bench.planner.cases import chain, devices; from sparsepipe import partition\n"
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
    for name in ("optimal", "sparsepipe-2020", "pipedream", "data-parallel", "model-parallel"):
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


def growing(largest: bool) -> dict[str, dict[str, tuple[Profile, Cluster]]]:
    """Networks and clusters as layers, cells, devices, types and hosts grow, one at a time."""
    eight_each = (4, 8, 16, 32, 64) if largest else (4, 8, 16)
    return {
        "layers (8 devices, 2 types)": {
            str(n): (chain(n, "ab"), devices("ab", 8)) for n in (25, 50, 100, 200, 400, 800)
        },
        "cells of five branches (8 devices)": {str(n): (cells(n), devices("a", 8)) for n in (2, 4, 8, 16, 32, 64)},
        "devices (100 layers, 2 types)": {str(n): (chain(100, "ab"), devices("ab", n)) for n in (2, 4, 8, 16, 32, 64)},
        "types (100 layers, 12 devices)": {
            str(n): (chain(100, "abcdef"[:n]), devices("abcdef"[:n], 12)) for n in (1, 2, 3, 4, 6)
        },
        "hosts (100 layers, 4 types, a device each)": {
            str(n): (chain(100, "abcd"), hosts("abcd", n, 1)) for n in (4, 8, 16, 32, 64)
        },
        "hosts (100 layers, 4 types, 8 devices each)": {
            str(n): (chain(100, "abcd"), hosts("abcd", n, 8)) for n in eight_each
        },
        "hosts (100 layers, 8 devices of 3 types each)": {
            str(n): (chain(100, "abc"), mixed_hosts("aaabbbcc", n)) for n in (2, 4, 8)
        },
    }


def growth(repeats: int, largest: bool) -> dict[str, dict[str, float]]:
    """Seconds to plan as each size grows."""
    times = max(1, repeats // 2)
    return {
        name: {
            size: seconds(lambda profile=profile, cluster=cluster: partition(profile, cluster), times)
            for size, (profile, cluster) in rows.items()
        }
        for name, rows in growing(largest).items()
    }


def bounds(largest: bool) -> dict[str, dict[str, float]]:
    """The gap of each plan as each size grows: the share of its period that a better one could save at most."""
    return {
        name: {size: _gap(profile, cluster) for size, (profile, cluster) in rows.items()}
        for name, rows in growing(largest).items()
    }


def _gap(profile: Profile, cluster: Cluster) -> float:
    estimate = partition(profile, cluster).estimate
    assert estimate is not None and estimate.gap is not None
    return estimate.gap


def simulation(repeats: int, largest: bool) -> dict[str, dict[str, float]]:
    """Seconds to simulate: stages × replicas × minibatches, on one node, and with a host for each stage."""
    found = {}
    cases = [(8, 8, 1000, 1), (64, 1, 1000, 1), (8, 8, 4000, 1), (32, 8, 1000, 1), (32, 8, 1000, 32), (64, 8, 1000, 64)]
    cases += [(128, 8, 10_000, 1), (128, 8, 10_000, 128)] if largest else []
    for stages, replicas, minibatches, nodes in cases:
        devices_here = stages * replicas
        profile = chain(stages, "d")
        cluster = devices("d", devices_here) if nodes == 1 else hosts("d", nodes, devices_here // nodes)
        ranks = [range(s * replicas, (s + 1) * replicas) for s in range(stages)]
        plan = Plan(tuple(Stage((f"l{s}",), tuple(own)) for s, own in enumerate(ranks)))
        voxels = [random.Random(0).uniform(1, 2)] * minibatches

        def run(plan=plan, profile=profile, cluster=cluster, voxels=voxels) -> None:
            simulate(plan, profile, cluster, voxels)

        spent = seconds(run, repeats) if minibatches < 10_000 else -time.process_time()
        if spent < 0:
            run()
            spent += time.process_time()
        where = f" on {nodes} hosts" if nodes > 1 else ""
        name = f"{devices_here} devices ({stages} stages × {replicas}){where}, {minibatches} minibatches"
        found[name] = {"seconds": spent, "seconds_per_million_actions": spent / (stages * minibatches * 2) * 1e6}
    return found
