"""Stages that come back: the ways of skip connections, and plans in a V against every owner map of small networks."""

import random
from itertools import combinations, pairwise, permutations

import pytest
from coded import raises
from hypothesis import given
from hypothesis import strategies as st

from sparsepipe import (
    Cluster,
    CostSample,
    DeviceType,
    Layer,
    LayerCost,
    LayerGraph,
    Link,
    Node,
    Profile,
    partition,
    simulate,
)
from sparsepipe.planning import Problem, comparable, estimate
from sparsepipe.planning.exact import returning_stages
from sparsepipe.values.graph import layers_across, route

SIZE = 10.0


def hops(teams, source, reader):
    """The fewest packets that other devices must receive, by trying every way along the stages."""
    if source == reader:
        return 0
    ways = [hops(teams, stage, reader) for stage in range(source + 1, reader + 1) if teams[stage] == teams[source]]
    return min([*ways, (teams[source] != teams[source + 1]) + hops(teams, source + 1, reader)])


def shape(places, laps, bent):
    return tuple(places - 1 - k if bent and lap % 2 else k for lap in range(laps) for k in range(places))


@given(st.integers(1, 4), st.integers(1, 3), st.booleans(), st.data())
def test_a_tensor_takes_the_shortest_way_to_every_stage_that_reads_it(places, laps, bent, data):
    teams = shape(places, laps, bent)
    source = data.draw(st.integers(0, len(teams) - 1))
    readers = tuple(k for k in range(source + 1, len(teams)) if data.draw(st.booleans()))
    way = route(teams, source, readers)
    edges, reached = {*((cut - 1, cut) for cut in way.cuts), *way.jumps}, {source}
    for stage in range(source, len(teams)):
        reached |= {b for a, b in edges if a in reached and b == stage}
    assert reached.issuperset(readers), "it gets there"
    assert all(teams[a] == teams[b] and b > a + 1 for a, b in way.jumps)
    for reader in readers:
        alone = route(teams, source, (reader,))
        assert sum(teams[cut - 1] != teams[cut] for cut in alone.cuts) == hops(teams, source, reader)
        if bent and laps <= 2 or laps == 1:  # ways along one line: what they share is sent once
            assert alone.cuts <= way.cuts


def drawn(seed, *, layers, devices, links=(1.0, 5.0, 1e6), skips=2):
    """A chain with skips on devices of up to two types, whose transfers may be the slowest of all."""
    rng = random.Random(seed)
    chosen = [sorted(rng.sample(range(layers), 2)) for _ in range(skips)]
    names = [Layer(f"l{k}", "", 4.0 * rng.randint(0, 2)) for k in range(layers)]
    graph = LayerGraph.chain(names, skips=[(a, b) for a, b in chosen if b > a + 1])
    rows = [(rng.uniform(0.2, 1), rng.uniform(0.2, 2), rng.uniform(0, 3)) for _ in range(layers)]
    slower = {"a": 1.0, "b": rng.choice([1.5, 3.0])}
    costs = {
        kind: [LayerCost((CostSample(SIZE, f * factor, b * factor, size),)) for f, b, size in rows]
        for kind, factor in slower.items()
    }
    profile = Profile(graph, costs, sizes=(SIZE,), update_rates={"a": 0.01, "b": 0.02})
    kinds = tuple(DeviceType("ab"[rng.random() < 0.3 * (seed % 2)]) for _ in range(devices))
    return profile, Cluster((Node("n", kinds, Link(rng.choice(links), rng.choice([0.0, 0.05]))),))


def every_owner_map(problem):
    """All plans in a V of a chain: every cut, every order of devices, and devices left out."""
    layers, everyone = problem.layers, range(len(problem.cluster.devices))
    for count in range(1, len(everyone) + 1):
        for cuts in combinations(range(1, len(layers)), 2 * count - 1):
            for order in permutations(everyone, count):
                spans = [layers[a:b] for a, b in pairwise((0, *cuts, len(layers)))]
                owners = (*order, *reversed(order))
                stages = [problem.stage(span, (rank,)) for span, rank in zip(spans, owners, strict=True)]
                yield problem.plan(stages, "every")


def least_busy(problem, plan):
    """Seconds of the busiest device or port, from the definitions: tensors go by the devices between their ends."""
    index, graph, table = problem.graph.index, problem.graph, problem.table
    stage_of = {index[id]: k for k, stage in enumerate(plan.stages) for id in stage.layers}
    link, last = problem.cluster.nodes[0].link, len(plan.stages) - 1
    depth = [min(stage, last - stage) for stage in range(last + 1)]
    busy, ports = dict.fromkeys(plan.ranks, 0.0), {}
    for layer, stage in stage_of.items():
        (rank,) = plan.stages[stage].ranks
        busy[rank] += problem.alone(problem.cluster.devices[rank].type.name)[layer]
    for cut in range(1, last + 1):
        crossing = 0.0
        for layer in range(len(graph.layers)):
            ends = [stage_of[reader] for reader in graph.consumers[layer] if stage_of[reader] > stage_of[layer]]
            a, depth_of_cut = depth[stage_of[layer]], min(depth[cut - 1], depth[cut])
            for b in ends:  # down on the way there while it gets deeper, up on the way back
                down = cut - 1 < cut <= last // 2 and a <= depth_of_cut < depth[b] and stage_of[layer] < cut
                up = cut > last // 2 + 1 and depth[b] <= depth_of_cut < a and b >= cut
                if down or up:
                    crossing += float(table.output_bytes[layer, 0])
                    break
        if plan.stages[cut - 1].ranks != plan.stages[cut].ranks:
            seconds = link.latency + crossing / link.bandwidth
            for way in (("out", plan.stages[cut - 1].ranks), ("in", plan.stages[cut].ranks)):
                ports[way] = ports.get(way, 0.0) + seconds
    return max([*busy.values(), *ports.values()])


@pytest.mark.parametrize(("layers", "devices", "seeds"), [(8, 2, range(8)), (8, 3, (100, 101, 103)), (9, 4, (7,))])
def test_no_owner_map_of_all_is_better_and_the_bound_is_the_least_of_all(layers, devices, seeds):
    for seed in seeds:
        profile, cluster = drawn(seed, layers=layers, devices=devices)
        plan = partition(profile, cluster, schedule="1f1b-v")
        problem = Problem(profile, cluster, "1f1b-v")
        every = [(least_busy(problem, other), other) for other in every_owner_map(problem)]
        least, period = min(busy for busy, _ in every), plan.estimate.period_seconds
        assert plan.estimate.lower_bound_seconds == pytest.approx(least), seed
        for busy, other in every:  # no plan is faster than its busiest device
            assert 1.002 * busy >= period or 1.002 * estimate(other, problem).period_seconds >= period, seed
        assert estimate(plan, problem).period_seconds == plan.estimate.period_seconds
        assert comparable([plan], profile, cluster)[0].estimate.gap == pytest.approx(plan.estimate.gap)


@pytest.mark.parametrize("schedule", ["zbv", "dualpipe-v"])
def test_no_step_that_flushes_is_shorter_than_the_bound(schedule):
    for seed in range(4):
        profile, cluster = drawn(seed, layers=8, devices=2, links=(5.0, 1e6))
        plan = partition(profile, cluster, schedule=schedule, planner="optimal", num_microbatches=6)
        problem = Problem(profile, cluster, schedule, 6)
        best = min(estimate(other, problem).period_seconds for other in every_owner_map(problem))
        assert plan.estimate.lower_bound_seconds <= best * (1 + 1e-9)
        assert plan.estimate.period_seconds <= 1.02 * best, "moving cuts finds it, or nearly"


def unet(skip_bytes=1e4):
    """Ends that exchange large skips, and a middle of as much work that exchanges little with them."""
    layers = [Layer(f"l{k}") for k in range(8)]
    graph = LayerGraph.chain(layers, skips=[(0, 7), (1, 6)])
    sizes = [skip_bytes, skip_bytes, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    costs = [LayerCost((CostSample(SIZE, 1.0, 2.0, size),)) for size in sizes]
    return Profile(graph, {"a": costs}, sizes=(SIZE,))


def test_skips_whose_ends_are_on_one_device_send_nothing():
    profile, cluster = unet(), Cluster.uniform(2, device_type="a", link=Link(1e5, 0.0))
    plan = partition(profile, cluster, schedule="1f1b-v", planner="optimal")
    owners = {id: stage.ranks[0] for stage in plan.stages for id in stage.layers}
    assert owners["l0"] == owners["l7"] and owners["l1"] == owners["l6"] and plan.estimate.gap == 0
    straight = partition(profile, cluster, planner="model-parallel")
    assert sum(stage.sent_bytes for stage in straight.estimate.stages) > 4e4
    assert plan.estimate.period_seconds <= straight.estimate.period_seconds
    trace = simulate(plan, profile, cluster, [SIZE] * 8)
    sent = sum(stage.sent_bytes for stage in plan.estimate.stages)
    seconds = sum(span.end - span.start for span in trace.spans if span.kind == "send") / 8
    assert sent == pytest.approx(seconds * 1e5), "the simulator sends as much"
    across, kept = (layers_across(profile.graph, plan, with_kept=with_kept) for with_kept in (False, True))
    assert not {0, 1} & set(across[2]) and {0, 1} <= set(kept[3]), "what a stage takes counts as memory"


def chain_of(layers):
    costs = [LayerCost((CostSample(SIZE, 1.0, 2.0, 1.0),))] * layers
    return Profile(LayerGraph.chain([Layer(f"l{k}") for k in range(layers)]), {"a": costs}, sizes=(SIZE,))


def test_bad_input_of_plans_in_a_v_is_one_line():
    profile, cluster = unet(), Cluster.uniform(2, device_type="a")
    with raises("planner.option_of_one_stage", "1f1b-v"):
        partition(profile, cluster, schedule="1f1b-v", planner="optimal", most_stages=1)
    small = Cluster((Node("n", (DeviceType("a", memory_bytes=1.0),) * 2, Link()),))
    with raises("planner.no_plan"):
        partition(profile, small, schedule="1f1b-v", planner="optimal")
    for devices in (2, 5):
        with raises("planner.no_plan"):
            partition(chain_of(1), Cluster.uniform(devices, device_type="a"), schedule="1f1b-v")
    five = Cluster.uniform(5, device_type="a")
    plan = partition(profile, five, schedule="1f1b-v", planner="optimal")
    assert len(plan.ranks) == 4, "eight layers are two for each of four devices"
    with raises("schedule.stages_per_device"):
        partition(profile, cluster, schedule="1f1b-v", planner="data-parallel")


def test_an_interrupted_search_in_a_v_returns_its_best_plan_with_a_bound_of_all():
    profile, cluster = drawn(100, layers=8, devices=3)
    states = []
    best = partition(profile, cluster, schedule="1f1b-v", progress=states.append).estimate
    assert states and all(a.period_seconds > b.period_seconds for a, b in pairwise(states))
    for stop in range(len(states)):
        left = iter(range(stop))

        def interrupt(state, left=left):
            if next(left, None) is None:
                raise KeyboardInterrupt

        plan = partition(profile, cluster, schedule="1f1b-v", progress=interrupt)
        assert plan.warnings and plan.estimate.period_seconds <= 1.002 * states[stop].period_seconds
        assert plan.estimate.lower_bound_seconds <= best.period_seconds <= plan.estimate.period_seconds * 1.002


def test_a_search_out_of_time_has_a_plan_of_few_cuts_and_the_bound_of_the_work(monkeypatch):
    profile, cluster = drawn(0, layers=80, devices=2)
    best = partition(profile, cluster, schedule="1f1b-v").estimate
    monkeypatch.setattr(returning_stages, "_SEARCH_SECONDS", -1.0)
    late = partition(profile, cluster, schedule="1f1b-v").estimate
    assert late.lower_bound_seconds <= best.lower_bound_seconds <= late.period_seconds
    assert best.period_seconds <= 1.002 * late.period_seconds <= 1.2 * best.period_seconds
