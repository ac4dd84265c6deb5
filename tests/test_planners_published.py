"""The published planners, and the optimum of their cost model, against the originals' answers (golden.jsonl).

Periods are compared, never splits: ties in the originals follow hash order.
"""

import itertools
import json
import re
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path

import pytest
from coded import mentions, raises

from sparsepipe import (
    Cluster,
    DeviceType,
    Layer,
    LayerCost,
    LayerGraph,
    Link,
    Node,
    Plan,
    Profile,
    partition,
)
from sparsepipe.planning import Problem
from sparsepipe.planning.exact.optimal import Optimal
from sparsepipe.planning.published.pipedream import PipeDream
from sparsepipe.planning.published.sparsepipe import SparsePipe, exchange_gpu
from sparsepipe.values.profile import CostSample
from sparsepipe.views.plots.plans import Gap
from sparsepipe.views.plots.table import SPARSEPIPE_2020, plan_names


@pytest.fixture(scope="module")
def golden(shared_reference):
    return [json.loads(line) for line in (shared_reference / "golden.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def load(shared_reference):
    @cache
    def profile(name):
        """A published profile by the original's path, or of one device type of minkvgg at batch size 64."""
        if "/" not in name:
            path = f"minkvgg/minkvgg_v0.02_b64_{name}/graph.txt"
            return Profile.load(shared_reference / "profiles" / path, device_type=name)
        tail = name.split("profiles/")[1]
        folder = "" if tail.startswith("minkvgg") else "image_classification/"
        return Profile.load(shared_reference / f"profiles/{folder}{tail}", device_type="device")

    return profile


def levels(counts, bandwidths, memory):
    """A cluster of like devices: counts and bandwidths from the inside out."""
    node = (DeviceType("device", memory or inf),) * counts[0]
    count = counts[1] if len(counts) > 1 else 1
    return Cluster(tuple(Node(f"n{k}", node, Link(bandwidths[0])) for k in range(count)), Link(bandwidths[-1]))


def servers_of(name):
    """Server entries such as b64_tv2_txp2 or b64_RTX4__tv2_txp1: ((type, count), …) for each server."""
    groups = name.split("_", 1)[1].split("__")
    return [[re.fullmatch(r"(\D+)(\d+)", kind).groups() for kind in group.split("_")] for group in groups]


def mixed(load, servers, bandwidths):
    """(profile of all types in order of appearance, cluster)."""
    kinds = list(dict.fromkeys(kind for server in servers for kind, _ in server))
    profile = load(kinds[0])
    for kind in kinds[1:]:
        profile = profile | load(kind)
    nodes = (
        Node(
            f"Server{k}",
            tuple(DeviceType(kind) for kind, count in server for _ in range(int(count))),
            Link(bandwidths[0]),
        )
        for k, server in enumerate(servers)
    )
    return profile, Cluster(tuple(nodes), Link(bandwidths[-1]))


@pytest.mark.slow
def test_pipedream_answers_as_the_original(golden, load):
    checked = 0
    for row in golden:
        if row["kind"] not in ("homogeneous", "timing") or row["status"] != "ok":
            continue
        profile, cluster = load(row["profile"]), levels(row["n"], row["b"], row.get("mem"))
        planner = PipeDream(
            row["acr"],
            use_memory_constraint=row.get("mem") is not None,
            straight_pipeline=bool(row.get("straight")),
            use_fewer_machines=bool(row.get("fewer")),
            factor=4 if row["optimizer"] == "pipedream" else 2,
        )
        plan = planner.plan(Problem(profile, cluster)).check(profile.graph, cluster)
        assert plan.estimate.period_seconds == pytest.approx(row["pipeline_time"], rel=1e-9), row
        if "dp_time" in row:
            assert plan.estimate.data_parallel_seconds == pytest.approx(row["dp_time"], rel=1e-9)
            assert plan.estimate.single_device_seconds == pytest.approx(row["single_time"], rel=1e-9)
        checked += 1
    assert checked == 263


@pytest.mark.parametrize(
    ("name", "count", "published"),
    [("vgg16", 4, 0.205521), ("vgg16", 16, 0.056530), ("resnet50", 4, 0.162881), ("resnet50", 16, 0.047801)],
)
def test_pipedream_on_other_published_profiles(shared_reference, name, count, published):
    """Values of SEEDS.md, bandwidth 1e9, activations uncompressed."""
    path = shared_reference / f"profiles/image_classification/{name}/graph.txt"
    profile, cluster = Profile.load(path), Cluster.uniform(count, link=Link(1e9))
    plan = partition(profile, cluster, planner="pipedream", activation_compression_ratio=1.0)
    assert plan.estimate.period_seconds == pytest.approx(published, abs=5e-7)


def test_pipedream_sees_as_many_states_as_the_original(golden, shared_reference):
    from sparsepipe.planning.published.pipedream_states import States

    row = next(row for row in golden if row["kind"] == "antichain" and "densenet" in row["profile"])
    profile = Profile.load(shared_reference / "profiles/image_classification/densenet121/graph.txt")
    assert len(States.of(Problem(profile, Cluster.uniform(1)), "device")) == row["states"]


def test_sparsepipe_answers_as_the_original(golden, load):
    checked = 0
    for row in golden:
        if row["kind"] != "heterogeneous" or row["status"] != "ok":
            continue
        profile, cluster = mixed(load, row["servers"], row["b"])
        plan = SparsePipe(row["acr"]).plan(Problem(profile, cluster)).check(profile.graph, cluster)
        assert plan.estimate.period_seconds == pytest.approx(row["pipeline_time"], rel=1e-9), row
        assert plan.estimate.data_parallel_seconds == pytest.approx(row["dp_time_printed"], rel=1e-9)
        checked += 1
    assert checked == 53


def test_sparsepipe_exchanges_devices_as_the_original(golden):
    rows = [row for row in golden if row["kind"] == "exchange_gpu_synthetic"]
    assert len(rows) == 10
    assert all(exchange_gpu(row["pre"]) == row["post"] for row in rows)


def test_sparsepipe_says_which_servers_it_forgets(load):
    profile, cluster = mixed(load, [[("RTX", 1)], [("txp", 1)]], [1e10, 1e9])
    plan = SparsePipe(1.0).plan(Problem(profile, cluster))
    assert plan.ranks == (1,)
    assert mentions(plan.warnings[0], "Server0")


@pytest.mark.slow
def test_optimal_finds_the_published_optimum(golden, load):
    """Every `exact` (all devices used) and `exact_subset`; across servers never worse than `exact`."""
    checked = 0
    for row in golden:
        if row["kind"] not in ("hetero_exact_single", "hetero_exact_multi"):
            continue
        bandwidths = row["b"] if isinstance(row["b"], list) else [row["b"]]
        profile, cluster = mixed(load, servers_of(row["name"]), bandwidths)
        for all_devices, key in ((True, "exact"), (False, "exact_subset")):
            plan = Optimal("published", all_devices, row["acr"]).plan(Problem(profile, cluster))
            plan.check(profile.graph, cluster)
            period = plan.estimate.period_seconds
            assert plan.estimate.gap == 0
            if row["kind"] == "hetero_exact_multi":
                assert period <= row["exact"] * (1 + 1e-9), row
            else:
                assert period == pytest.approx(row[key], rel=1e-9), row
            assert not all_devices or len(plan.ranks) == len(cluster.devices)
            checked += 1
    assert checked == 106


class HierarchicalOptimum:
    """`exact` of several servers straight from its definition (COSTMODEL.md, hetero_exact_multi)."""

    def __init__(self, profile, servers, inside, between, ratio):
        self.count = len(profile.graph.layers) - 1  # the first one loads the data
        self.first, self.inside, self.between, self.ratio = next(iter(profile.costs)), inside, between, ratio
        self.profile, self.servers = profile, servers
        self.totals = {kind: self.seconds(kind, 0, self.count) for kind in profile.costs}

    @cache  # noqa: B019
    def seconds(self, kind, i, j):
        return sum(self.profile.time(range(1 + i, 1 + j), kind))

    @cache  # noqa: B019
    def weights(self, i, j):
        return sum(layer.parameter_bytes for layer in self.profile.graph.layers[1 + i : 1 + j])

    def crossing(self, cut, bandwidth):
        if self.ratio is None or cut in (0, self.count):
            return 0.0
        return 2 * self.profile.cost(cut, self.first).output_bytes / (bandwidth * self.ratio)

    @cache  # noqa: B019
    def inner(self, devices, i, j):
        """Layers i..j on all `devices`, ((type, count), …), of one server, in stages of any devices in any order."""
        total = sum(count for _, count in devices)
        slowest = max((kind for kind, count in devices if count), key=self.totals.get)
        best = (self.seconds(slowest, i, j) + 2 * (total - 1) * self.weights(i, j) / (self.inside * total)) / total
        for taken in itertools.product(*(range(count + 1) for _, count in devices)):
            if 0 < sum(taken) < total:
                first = tuple((kind, n) for (kind, _), n in zip(devices, taken, strict=True))
                rest = tuple((kind, count - n) for (kind, count), n in zip(devices, taken, strict=True))
                for cut in range(i + 1, j):
                    crossing = self.crossing(cut, self.inside)
                    if crossing < best:
                        one = self.single(first, i, cut)
                        if one < best:
                            best = min(best, max(one, crossing, self.inner(rest, cut, j)))
        return best

    def single(self, devices, i, j):
        used = [(kind, count) for kind, count in devices if count]
        total = sum(count for _, count in used)
        slowest = max((kind for kind, _ in used), key=self.totals.get)
        return (self.seconds(slowest, i, j) + 2 * (total - 1) * self.weights(i, j) / (self.inside * total)) / total

    def group(self, servers, i, j):
        if len(servers) == 1:
            return self.inner(self.servers[servers[0]], i, j)
        devices = sum(count for s in servers for _, count in self.servers[s])
        slowest = max(self.inner(self.servers[s], i, j) for s in servers)
        return (slowest + 2 * (devices - 1) * self.weights(i, j) / (self.between * devices)) / len(servers)

    def best(self):
        """Every ordered grouping of all servers into stages × all cuts."""
        everyone, best = range(len(self.servers)), inf
        for order in itertools.permutations(everyone):
            for breaks in itertools.product((False, True), repeat=len(order) - 1):
                groups = [[order[0]]]
                for server, new in zip(order[1:], breaks, strict=True):
                    groups.append([server]) if new else groups[-1].append(server)
                for cuts in itertools.combinations(range(1, self.count), len(groups) - 1):
                    bounds = (0, *cuts, self.count)
                    times = [self.crossing(cut, self.between) for cut in cuts]
                    times += [self.group(g, a, b) for g, a, b in zip(groups, bounds, bounds[1:], strict=False)]
                    best = min(best, max(times))
        return best


@pytest.mark.parametrize("name", ["b64_tv1_RTX2__tv2_txp1", "b64_RTX1__tv1__txp2"])
@pytest.mark.parametrize(("inside", "between"), [(1e9, 1e8), (1e8, 1e8)])
@pytest.mark.parametrize("ratio", [None, 1.0])
def test_optimal_across_servers_is_never_worse_than_the_hierarchy(load, name, inside, between, ratio):
    servers = [tuple((kind, int(count)) for kind, count in server) for server in servers_of(name)]
    profile, cluster = mixed(load, servers, [inside, between])
    # Coarser, for the definition to be worked out in seconds.
    profile = merged_layers(profile, 5)
    exact = HierarchicalOptimum(profile, servers, inside, between, ratio).best()
    plan = Optimal("published", activation_compression_ratio=ratio).plan(Problem(profile, cluster))
    assert plan.estimate.period_seconds <= exact * (1 + 1e-9)


def merged_layers(profile, size):
    """A chain with each run of `size` layers as one, behind a layer that loads the data."""
    old = profile.graph.layers
    runs = [range(k, min(k + size, len(old))) for k in range(1, len(old), size)]
    sizes = [sum(old[i].parameter_bytes for i in run) for run in runs]
    layers = [Layer("input", "Input"), *(Layer(f"r{k}", "", weights) for k, weights in enumerate(sizes))]

    def cost(run, kind):
        return LayerCost((CostSample(0, *profile.time(run, kind), profile.cost(run[-1], kind).output_bytes),))

    nothing = LayerCost((CostSample(0, 0, 0, 0),))
    costs = {kind: (nothing, *(cost(run, kind) for run in runs)) for kind in profile.costs}
    return Profile(LayerGraph.chain(layers), costs)


def test_pipedream_refuses_what_it_cannot_plan(load):
    profile = load("RTX")
    uneven = Cluster((Node("a", (DeviceType("RTX"),)), Node("b", (DeviceType("RTX"),) * 2)))
    with raises("planner.nodes_unequal", "'a' has 1, 'b' has 2"):
        partition(profile, uneven, planner="pipedream")
    tight = Cluster.uniform(2, device_type="RTX", memory_bytes=1e6)
    with raises("planner.no_plan", "memory limit"):
        partition(profile, tight, planner="pipedream", use_memory_constraint=True, straight_pipeline=True)


def test_pipedream_is_blind_to_types_and_says_so(load):
    profile, cluster = mixed(load, [[("RTX", 1), ("txp", 1)]], [1e9])
    plan = partition(profile, cluster, planner="pipedream")
    alone = partition(load("txp"), Cluster.uniform(2, device_type="txp", link=Link(1e9)), planner="pipedream")
    assert plan.estimate.period_seconds == alone.estimate.period_seconds
    assert mentions(plan.warnings[0], "'txp'")


def test_networks_with_too_many_cuts_are_refused_by_the_published_planners(shared_reference):
    profile = Profile.load(shared_reference / "profiles/image_classification/inception_v3/graph.txt")
    for planner in ("pipedream", "sparsepipe"):
        with raises("planner.too_large"):
            partition(profile, Cluster.uniform(2), planner=planner)


@pytest.mark.parametrize("name", ["densenet121", "nasnetamobile"])
def test_optimal_plans_branching_networks_with_a_certified_gap(shared_reference, name):
    profile = Profile.load(shared_reference / f"profiles/image_classification/{name}/graph.txt")
    cluster = Cluster.uniform(8, link=Link(1e10))
    plan = partition(profile, cluster).check(profile.graph, cluster)
    assert isinstance(plan, Plan)
    assert plan.estimate.gap <= 0.01
    assert plan.estimate.lower_bound_seconds >= plan.estimate.single_device_seconds / 8 * (1 - 1e-9)
    if name == "densenet121":
        assert plan.estimate.gap == 0


def test_optimal_is_not_worse_than_the_published_planners_judged_by_its_own_model(load):
    from sparsepipe.planning import comparable, estimate

    profile, cluster = mixed(load, [[("RTX", 2), ("tv", 2), ("txp", 1)]], [1e9])
    names = ("optimal", "pipedream", "sparsepipe", "data-parallel", "model-parallel")
    plans = [partition(profile, cluster, planner=planner) for planner in names]
    best, *others = comparable(plans, profile, cluster)
    assert best == plans[0]
    for plan, other in zip(plans[1:], others, strict=True):
        expected = estimate(plan, Problem(profile, cluster))
        assert other.estimate.period_seconds == expected.period_seconds >= best.estimate.period_seconds * (1 - 1e-9)
        assert other.estimate.lower_bound_seconds == best.estimate.lower_bound_seconds
        assert other.stages == plan.stages
        for own, judged in zip(plan.estimate.stages, other.estimate.stages, strict=True):
            assert own.memory_bytes == judged.memory_bytes > 0
            assert own.sent_bytes == judged.sent_bytes


def test_a_bound_of_plans_with_one_stage_a_device_says_nothing_of_interleaved_ones():
    from sparsepipe.planning import comparable

    graph = LayerGraph.chain(Layer(f"l{k}", "", 1e9) for k in range(8))
    profile = Profile(graph, {"d": (LayerCost((CostSample(0, 1.0, 2.0, 1.0),)),) * 8})
    cluster = Cluster.uniform(2, device_type="d", link=Link(1e8, 0.0))
    settings = {"schedule": "1f1b-flush", "num_microbatches": 4}
    plans = [partition(profile, cluster, **settings)]
    plans += [partition(profile, cluster, planner="model-parallel", stages_per_device=v, **settings) for v in (1, 2)]
    best, straight, interleaved = (plan.estimate for plan in comparable(plans, profile, cluster))
    assert interleaved.period_seconds < best.lower_bound_seconds, "fewer seconds than the bound of the others"
    assert straight.gap == best.gap == 0 and interleaved.lower_bound_seconds is interleaved.gap is None


def test_the_name_of_earlier_versions_plans_the_same():
    """SparsePipe's planner of 2020 was called as this project is."""
    profile = Profile.load(Path(__file__).parent.parent / "data_manifests" / "profiles" / "minkvgg11bn-narrow.json")
    cluster = Cluster.uniform(2, device_type=profile.device_types[0])
    older, plan = (partition(profile, cluster, planner=name) for name in ("sparsepipe", "sparsepipe-2020"))
    assert plan.planner == older.planner == SparsePipe.name and older.stages == plan.stages
    assert older.provenance["settings"] == plan.provenance["settings"]
    named = replace(plan, planner="sparsepipe")  # as in plans of earlier versions
    assert plan_names([plan]) == plan_names([named]) == [SPARSEPIPE_2020], "no figure takes it for this project"
    assert Gap.of(plan, "x", 4, planner="sparsepipe-2020").planner == SPARSEPIPE_2020
