"""The simulator against closed forms, hand-drawn schedules, a published simulator and the planners' estimates."""

import itertools
import random
from dataclasses import replace

import pytest
from coded import mentions, raises
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparsepipe import (
    Cluster,
    CostSample,
    DeviceType,
    InputError,
    Layer,
    LayerCost,
    LayerGraph,
    Link,
    Node,
    Plan,
    Profile,
    Stage,
    actions,
    inputs,
    partition,
    simulate,
)
from sparsepipe.cli.plan_verbs import side_by_side
from sparsepipe.planning import Problem, estimate
from sparsepipe.planning.baselines import lap_bounds
from sparsepipe.planning.estimate import memory_need, port_seconds
from sparsepipe.planning.forecast import forecast
from sparsepipe.values.plan import Estimate, StageEstimate
from sparsepipe.values.profile import StepOverhead
from sparsepipe.values.schedule import Action, Op, compile_until_steady
from sparsepipe.values.schedule_rules import SCHEDULE_RULES


def pipeline(forward, backward, transfer=(), *, replicas=(), parameter_bytes=0.0, latency=0.0, **settings):
    """One layer a stage; boundary k moves `transfer[k]` bytes at 1 byte/s. Returns (plan, profile, cluster)."""
    count = len(forward)
    replicas = replicas or (1,) * count
    sizes = [*(transfer or [0.0] * (count - 1)), 0.0]
    graph = LayerGraph.chain(Layer(f"l{k}", "", parameter_bytes) for k in range(count))
    costs = tuple(LayerCost((CostSample(1, f, b, size),)) for f, b, size in zip(forward, backward, sizes, strict=True))
    firsts = [sum(replicas[:k]) for k in range(count)]
    stages = tuple(
        Stage((f"l{k}",), tuple(range(r, r + n))) for k, (r, n) in enumerate(zip(firsts, replicas, strict=True))
    )
    cluster = Cluster.uniform(sum(replicas), device_type="d", link=Link(1.0, latency))
    return Plan(stages, **settings), Profile(graph, {"d": costs}), cluster


@pytest.mark.parametrize("schedule", ["1f1b", "sequential", "gpipe"])
def test_what_a_step_takes_beside_its_layers_is_of_the_first_and_the_last_stage(schedule):
    """Small networks trained at 58 to 89% of what was planned: nobody had counted reading, nor the loss."""
    flush = {"num_microbatches": 3} if schedule == "gpipe" else {}
    plan, profile, cluster = pipeline([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], schedule=schedule, **flush)
    told = replace(
        profile,
        step_overheads={
            "d": StepOverhead(0.5, 0.25),
        },
    )
    slow, _, _ = pipeline([1.5, 1.0, 1.25], [2.0, 2.0, 2.0], schedule=schedule, **flush)
    _, slower, _ = pipeline([1.5, 1.0, 1.25], [2.0, 2.0, 2.0])
    assert simulate(plan, told, cluster, [1] * 6) == simulate(slow, slower, cluster, [1] * 6)
    terms = (schedule, plan.num_microbatches)
    assert estimate(plan, Problem(told, cluster, *terms)) == estimate(slow, Problem(slower, cluster, *terms))
    whole = Plan((Stage(("l0", "l1", "l2"), (0,)),))
    assert simulate(whole, told, cluster, [1]).makespan == 9.75
    others = replace(told, costs={"d": told.costs["d"], "e": told.costs["d"]})  # of "e" nothing is known
    cluster = Cluster.uniform(3, device_type="e", link=Link(1.0))
    assert simulate(plan, others, cluster, [1] * 6) == simulate(
        plan, profile, *pipeline([1.0] * 3, [2.0] * 3)[2:], [1] * 6
    )


@pytest.mark.parametrize("schedule", ["1f1b", "sequential", "gpipe"])
def test_every_process_that_reads_minibatches_takes_the_time(schedule):
    """A data set's items were read in two processes, for inputs and for targets, and counted in one."""
    flush = {"num_microbatches": 3} if schedule == "gpipe" else {}
    plan, profile, cluster = pipeline([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], schedule=schedule, **flush)
    told = replace(profile, step_overheads={"d": StepOverhead(0.5, 0.25, 0.125)}, sample_readers=("l2",))
    slow, slower, _ = pipeline([1.5, 1.0, 1.375], [2.0, 2.0, 2.0], schedule=schedule, **flush)
    assert simulate(plan, told, cluster, [1] * 6) == simulate(slow, slower, cluster, [1] * 6)
    terms = (schedule, plan.num_microbatches)
    found, expected = estimate(plan, Problem(told, cluster, *terms)), estimate(slow, Problem(slower, cluster, *terms))
    assert (found.period_seconds, found.stages) == (expected.period_seconds, expected.stages)
    assert found.single_device_seconds == expected.single_device_seconds - 0.125, "one process reads once"


def test_a_process_reads_a_minibatch_once_whatever_stages_it_has():
    graph = LayerGraph.chain(Layer(f"l{k}", "", 0.0) for k in range(4))
    costs = tuple(LayerCost((CostSample(1, 1.0, 2.0, 0.0),)) for _ in range(4))
    told = Profile(
        graph, {"d": costs}, step_overheads={"d": StepOverhead(0.0, 0.0, 0.125)}, sample_readers=("l2", "l3")
    )
    cluster = Cluster.uniform(3, device_type="d", link=Link(1.0, 0.0))

    def forwards(*ranks, **options):
        stages = tuple(Stage((f"l{k}",), (rank,)) for k, rank in enumerate(ranks))
        spans = simulate(Plan(stages, **options), told, cluster, [1] * 2).spans
        seconds = {s.stage: s.end - s.start for s in spans if s.kind == "forward"}
        return [seconds[k] for k in range(4)]

    several = {"schedule": "1f1b-flush", "num_microbatches": 2}
    assert forwards(0, 1, 0, 1, **several) == [1.0, 1.0, 1.0, 1.125], "rank 0 has the first stage"
    whole = Plan((Stage(("l0", "l1", "l2", "l3"), (0,)),))
    assert simulate(whole, told, cluster, [1]).makespan == 12.0


def test_a_stage_makes_anew_the_kernel_maps_that_earlier_stages_made():
    """Layers 0, 2 and 3 share a map (as many pairs), made in 0.25 s; layer 1 has its own."""
    graph = LayerGraph.chain(Layer(f"l{k}", "", 0.0) for k in range(4))
    pairs, made = (90, 50, 90, 90), (0.25, 0.125, 0.25, 0.25)
    costs = tuple(
        LayerCost((CostSample(1, 1.0, 2.0, 0.0, kernel_map_pairs=p, kernel_map_seconds=s),))
        for p, s in zip(pairs, made, strict=True)
    )
    profile, cluster = Profile(graph, {"d": costs}), Cluster.uniform(3, device_type="d", link=Link(1.0, 0.0))

    def forwards(*cuts):
        bounds = list(zip((0, *cuts), (*cuts, 4), strict=True))
        stages = tuple(Stage(tuple(f"l{k}" for k in range(a, b)), (r,)) for r, (a, b) in enumerate(bounds))
        spans = simulate(Plan(stages), profile, cluster, [1]).spans
        return [s.end - s.start for s in sorted(spans, key=lambda s: s.stage) if s.kind == "forward"]

    assert forwards() == [4.0]
    assert forwards(2) == [2.0, 2.25], "once for both layers"
    assert forwards(1, 3) == [1.0, 2.25, 1.25], "by each stage that needs it; layer 1 makes its own as ever"

    def forwards_in_a_v(graph, engine=None):
        told = Profile(graph, {"d": costs}, origin={"source": "measured", "engine": engine} if engine else {})
        stages = tuple(Stage((f"l{k}",), (rank,)) for k, rank in enumerate((0, 1, 1, 0)))
        spans = simulate(Plan(stages, schedule="1f1b-v"), told, cluster, [1]).spans
        return [s.end - s.start for s in sorted(spans, key=lambda s: s.stage) if s.kind == "forward"]

    skip = LayerGraph.chain(graph.layers, skips=[(0, 3)])
    assert forwards_in_a_v(skip) == [1.0, 1.0, 1.25, 1.0], "rank 0 keeps the map with the skip"
    assert forwards_in_a_v(graph) == [1.0, 1.0, 1.25, 1.25], "nothing is left for the last stage"
    assert forwards_in_a_v(skip, "minkowski") == [1.0, 1.0, 1.25, 1.25], "this engine makes its own"


def drawn(trace, rank):
    """The actions of a rank with their start and end, as a diagram would show them."""
    spans = sorted(
        (s for s in trace.spans if s.rank == rank and s.kind in ("forward", "backward")), key=lambda s: s.start
    )
    return " ".join(f"{s.name}@{s.start:g}-{s.end:g}" for s in spans)


@pytest.mark.parametrize(("stages", "minibatches"), [(2, 2), (4, 8), (8, 32), (5, 3)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b-flush"])
def test_bubble_of_a_balanced_flush_is_gpipes_closed_form(stages, minibatches, schedule):
    plan, profile, cluster = pipeline([1.0] * stages, [2.0] * stages, schedule=schedule, num_microbatches=minibatches)
    trace = simulate(plan, profile, cluster, [1] * minibatches)
    assert trace.bubble_fraction == pytest.approx((stages - 1) / (minibatches + stages - 1))
    assert trace.makespan == pytest.approx(3.0 * (minibatches + stages - 1))


@pytest.mark.parametrize(("ranks", "laps", "minibatches"), [(2, 2, 4), (4, 2, 8), (4, 4, 8), (3, 3, 12), (2, 5, 6)])
def test_interleaved_stages_divide_the_bubble_by_the_laps(ranks, laps, minibatches):
    """Narayanan et al., SC 2021, section 2.2.2: a bubble of (p - 1)(F + B) / v, where 1F1B has (p - 1)(F + B)."""
    count, settings_ = ranks * laps, {"schedule": "1f1b-flush", "num_microbatches": minibatches}
    chain, profile, cluster = pipeline([1.0] * count, [2.0] * count, **settings_)
    layers = [stage.layers[0] for stage in chain.stages]
    looped = Plan(tuple(Stage((id,), (k % ranks,)) for k, id in enumerate(layers)), **settings_)
    straight = Plan(tuple(Stage(tuple(layers[r * laps : (r + 1) * laps]), (r,)) for r in range(ranks)), **settings_)
    work = 3.0 * laps * minibatches  # of each rank
    makespans = [simulate(plan, profile, cluster, [1] * minibatches).makespan for plan in (looped, straight)]
    assert [span - work for span in makespans] == pytest.approx([3.0 * (ranks - 1), 3.0 * (ranks - 1) * laps])


@pytest.mark.parametrize(("ranks", "minibatches"), [(1, 3), (2, 4), (3, 6), (4, 8), (4, 12)])
@pytest.mark.parametrize("schedule", ["interleaved-zero-bubble", "zbv", "dualpipe-v"])
def test_split_backwards_leave_only_the_wait_for_the_first_forwards(ranks, minibatches, schedule):
    """Of equal F, I and W: the last rank waits for a forward of each rank before it, and then none waits again."""
    count = 2 * ranks
    _, profile, _ = pipeline([1.0] * count, [2.0] * count)
    cluster = Cluster.uniform(ranks, device_type="d", link=Link(1e12, 0.0))
    settings_ = {"planner": "model-parallel", "schedule": schedule, "stages_per_device": 2}
    plan = partition(profile, cluster, num_microbatches=minibatches, **settings_)
    step = simulate(plan, profile, cluster, [1] * minibatches).makespan
    assert (
        step
        == pytest.approx(6.0 * minibatches + ranks - 1)
        == pytest.approx(minibatches * plan.estimate.period_seconds)
    )


@pytest.mark.parametrize(("ranks", "laps", "minibatches"), [(2, 2, 4), (4, 2, 9), (4, 1, 8), (3, 3, 5)])
def test_breadth_first_has_the_bubble_of_interleaved_stages(ranks, laps, minibatches):
    """Lamy-Poirier, MLSys 2023, section 3: as much shorter than GPipe's as there are stages on a rank."""
    count = ranks * laps
    _, profile, _ = pipeline([1.0] * count, [2.0] * count)
    cluster = Cluster.uniform(ranks, device_type="d", link=Link(1e12, 0.0))
    settings_ = {"planner": "model-parallel", "schedule": "looped-bfs", "stages_per_device": laps}
    plan = partition(profile, cluster, num_microbatches=minibatches, **settings_)
    step = simulate(plan, profile, cluster, [1] * minibatches).makespan
    assert step == pytest.approx(3.0 * laps * minibatches + 3.0 * (ranks - 1))
    assert step == pytest.approx(minibatches * plan.estimate.period_seconds)


@pytest.mark.parametrize(
    ("schedule", "options", "error"),
    [
        (
            "zbv",
            {"planner": "dynpipe"},
            ("schedule.stages_per_device", "1 stage", "zbv", "puts 2 stages on each device", "model-parallel"),
        ),
        (
            "zbv",
            {"planner": "model-parallel", "stages_per_device": 3},
            ("schedule.stages_per_device", "3 stages", "zbv", "puts 2"),
        ),
        (
            "interleaved-zero-bubble",
            {"planner": "data-parallel"},
            ("schedule.stages_per_device", "1 stage", "at least 2 stages on"),
        ),
    ],
)
def test_stages_that_a_schedule_does_not_place_are_not_planned(schedule, options, error):
    _, profile, _ = pipeline([1.0] * 8, [2.0] * 8)
    with raises(*error):
        partition(profile, Cluster.uniform(2, device_type="d"), schedule=schedule, **options)


def test_a_planner_lays_interleaved_stages_over_the_devices_and_knows_their_step():
    _, profile, _ = pipeline([1.0] * 8, [2.0] * 8, parameter_bytes=1e7)
    cluster = Cluster.uniform(2, device_type="d", link=Link(100.0, 0.0))
    given_ = {"planner": "model-parallel", "stages_per_device": 2, "num_microbatches": 4}
    plan = partition(profile, cluster, schedule="1f1b-flush", **given_)
    assert [stage.ranks for stage in plan.stages] == [(0,), (1,), (0,), (1,)] and plan.ranks == (0, 1)
    step = simulate(plan, profile, cluster, [1] * 4).makespan
    assert step == pytest.approx(4 * plan.estimate.period_seconds) == pytest.approx(4 * 12.0 + 6.0)
    told = forecast(plan, profile, cluster, [1] * 8)
    assert told.bubble.imbalance == pytest.approx(0.0) and told.bubble.dependency > 0
    assert Plan.from_json(plan.to_json()) == plan
    told = side_by_side([plan], profile).splitlines()  # two stages per device, two layers a stage, each thrice
    assert [line.split()[-2:] for line in told if line.startswith("peak memory")] == [["120", "MB"]]
    assert any(line.split() == ["slowest", "stage", "0,", "2:", "compute"] for line in told), "a device's, together"
    for schedule in ("2bw", "gpipe", "zero-bubble"):
        with raises("schedule.stages_per_device", "1f1b-flush"):
            partition(profile, cluster, schedule=schedule, **given_)


seconds_of_layers = st.lists(st.floats(0.5, 4.0), min_size=6, max_size=9)


@given(seconds_of_layers, st.integers(1, 3), st.sampled_from([2, 3]))
@example([1.0, 1.0, 1.125, 1.5, 1.125, 1.0, 1.84375, 2.8125, 2.5], 3, 2)  # two ranks with nearly as much to do
@settings(max_examples=12)
def test_interleaved_stages_without_flushes_keep_the_busiest_device_busy(layers, devices, laps):
    """The device that has most to do never waits, whatever the stages take; the simulator does what is estimated."""
    devices = min(devices, len(layers) // laps)
    _, profile, _ = pipeline(layers, [2 * seconds for seconds in layers])
    cluster = Cluster.uniform(devices, device_type="d", link=Link(1e12, 0.0))
    plan = partition(profile, cluster, planner="model-parallel", stages_per_device=laps)
    assert [stage.ranks for stage in plan.stages] == [(k,) for k in range(devices)] * laps
    works = [stage.compute_seconds for stage in plan.estimate.stages]
    busiest = max(sum(works[k::devices]) for k in range(devices))
    assert plan.estimate.period_seconds == pytest.approx(busiest, rel=0.02)
    depth = len(plan.stages)
    trace = simulate(plan, profile, cluster, [1] * 40 * depth)
    ends = {span.minibatch: span.end for span in trace.spans if (span.stage, span.kind) == (depth - 1, "backward")}
    assert (ends[30 * depth] - ends[10 * depth]) / (20 * depth) == pytest.approx(busiest, rel=0.02)


def test_cuts_of_laps_are_the_best_of_all_where_all_can_be_tried():
    """Brute force over all cuts: the busiest device has less to do in none."""
    generator = random.Random(0)
    for _ in range(20):
        layers = [generator.uniform(0.1, 1.0) ** 2 for _ in range(12)]
        _, profile, _ = pipeline(layers, [2 * seconds for seconds in layers])
        for devices in (1, 2, 3):
            cluster = Cluster.uniform(devices, device_type="d", link=Link(1e12, 0.0))
            plan = partition(profile, cluster, planner="model-parallel", stages_per_device=2)
            loads = []
            for cuts in itertools.combinations(range(1, 12), 2 * devices - 1):
                stages = [3 * sum(layers[a:b]) for a, b in itertools.pairwise((0, *cuts, 12))]
                loads.append(max(sum(stages[k::devices]) for k in range(devices)))
            works = [stage.compute_seconds for stage in plan.estimate.stages]
            assert min(loads) <= 1.000001 * max(sum(works[k::devices]) for k in range(devices)) <= 1.006 * min(loads)
    layers = [generator.uniform(0.1, 1.0) for _ in range(60)]  # too many cuts to try all
    bounds = lap_bounds((*range(0, 56, 7), 60), [layers] * 8, 4, crossing=[0.0] * 61, kept=[0.0] * 60)
    stages = [sum(layers[a:b]) for a, b in itertools.pairwise(bounds)]
    assert max(sum(stages[k::4]) for k in range(4)) <= 1.02 * sum(layers) / 4


def test_a_rank_of_interleaved_stages_holds_the_memory_of_all_of_them():
    count, settings_ = 4, {"schedule": "1f1b-flush", "num_microbatches": 2}
    plan, profile, cluster = pipeline([1.0] * count, [2.0] * count, parameter_bytes=10.0, **settings_)
    looped = replace(plan, stages=tuple(replace(s, ranks=(k % 2,)) for k, s in enumerate(plan.stages)))
    alone, shared = (forecast(p, profile, cluster, [1] * 2).peak_bytes for p in (plan, looped))
    assert alone == dict.fromkeys(range(4), 30.0) and shared == dict.fromkeys(range(2), 60.0)


@pytest.mark.parametrize("schedule", [name for name, rules in SCHEDULE_RULES.items() if rules.interleaves])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_interleaved_stages_are_not_all_at_their_fullest_at_once(seed, recompute, schedule):
    """Both follow the action lists: the planner by counts, the simulator by the minibatches themselves."""
    generator = random.Random(seed)
    times = [generator.uniform(1, 3) for _ in range(6)]
    sizes = [generator.uniform(1, 9) for _ in range(5)]
    rules = SCHEDULE_RULES[schedule]
    size = 6 // (rules.stages_per_rank[1] or 3)
    settings_ = {"schedule": schedule, "num_microbatches": 1 if schedule == "1f1b" else 6}
    plan, profile, cluster = pipeline(times, [2 * t for t in times], sizes, parameter_bytes=3.0, **settings_)
    placed = (replace(s, ranks=(rules.position(k, size),), recompute=recompute) for k, s in enumerate(plan.stages))
    plan = replace(plan, stages=tuple(placed))
    problem = Problem(profile, cluster, plan.schedule, plan.num_microbatches)
    plan = replace(plan, estimate=estimate(plan, problem))
    parts = [stage.memory_bytes for stage in plan.estimate.stages]
    together = {rank: sum(parts[k] for k in own) for rank, own in enumerate(plan.positions)}
    assert forecast(plan, profile, cluster, [1] * 60).peak_bytes == pytest.approx(together)
    apart, steady = 0.0, compile_until_steady(plan)
    for k in plan.positions[0]:
        alone = memory_need(problem, plan.stages[k], ([0.0, *sizes])[k])
        counts = {"versions": steady.num_versions(k, 0), "minibatches": steady.in_flight(k, 0)}
        apart += alone.total(**counts, recompute=recompute)
    assert together[0] <= apart * (1 + 1e-12)


@pytest.mark.parametrize(("stages", "minibatches"), [(2, 4), (4, 8), (8, 16)])
def test_zero_bubble_of_equal_stages_is_the_papers_closed_form(stages, minibatches):
    """Qi et al., table 2: (p - 1)(F + B - W) of waiting, where 1F1B waits (p - 1)(F + B + W)."""
    settings_ = {"schedule": "zero-bubble", "num_microbatches": minibatches}
    plan, profile, cluster = pipeline([1.0] * stages, [2.0] * stages, **settings_)
    assert simulate(plan, profile, cluster, [1] * minibatches).makespan == 3 * minibatches + (stages - 1)


@given(st.lists(st.floats(0.5, 4), min_size=2, max_size=5), st.integers(1, 8))
def test_zero_bubble_does_no_worse_than_1f1b_where_the_planner_knew_the_stages(forward, minibatches):
    backward = [2 * seconds for seconds in forward]
    plan, profile, cluster = pipeline(forward, backward, schedule="1f1b-flush", num_microbatches=minibatches)
    known = Estimate(1.0, tuple(StageEstimate(f + b) for f, b in zip(forward, backward, strict=True)))
    other = replace(plan, schedule="zero-bubble", estimate=known)
    spans = [simulate(one, profile, cluster, [1] * minibatches).makespan for one in (plan, other)]
    assert spans[1] <= spans[0] + 1e-9


def test_a_plan_for_zero_bubble_is_planned_for_1f1b_and_says_so():
    _, profile, cluster = pipeline([1.0, 1.0], [2.0, 2.0])
    plan = partition(profile, cluster, planner="model-parallel", schedule="zero-bubble", num_microbatches=4)
    assert (plan.schedule, plan.weights, plan.num_microbatches) == ("zero-bubble", "flush", 4)
    assert plan.estimate.gap is None
    assert mentions(plan.warnings[-1], "1f1b-flush")
    told = forecast(plan, profile, cluster, [1] * 4)
    assert told.trace.makespan == 13
    assert told.peak_bytes.keys() == {0, 1}


def test_one_forward_one_backward_as_drawn():
    """Two stages, forward 1, backward 2, no transfers (the diagram of one_forward_one_backward.py)."""
    trace = simulate(*pipeline([1.0, 1.0], [2.0, 2.0]), [1] * 3)
    assert drawn(trace, 0) == "0F0@0-1 0F1@1-2 0B0@4-6 0F2@6-7 0B1@7-9 0B2@10-12"
    assert drawn(trace, 1) == "1F0@1-2 1B0@2-4 1F1@4-5 1B1@5-7 1F2@7-8 1B2@8-10"


def test_transfers_run_beside_computation():
    """A boundary of 1 s: the sender goes on, the receiver waits for what has not arrived."""
    trace = simulate(*pipeline([1.0, 1.0], [1.0, 1.0], [1.0]), [1] * 2)
    assert drawn(trace, 0) == "0F0@0-1 0F1@1-2 0B0@5-6 0B1@7-8"
    assert drawn(trace, 1) == "1F0@2-3 1B0@3-4 1F1@4-5 1B1@5-6"
    sends = {(s.name, s.start, s.end, s.peer) for s in trace.spans if s.kind == "send"}
    assert sends == {("0F0", 1, 2, 1), ("0F1", 2, 3, 1), ("1B0", 4, 5, 0), ("1B1", 6, 7, 0)}


def test_a_port_carries_one_transfer_at_a_time():
    """The sender makes a tensor every second; its port needs three for each."""
    plan, profile, cluster = pipeline([1.0, 0.0], [0.0, 0.0], [3.0], schedule="gpipe", num_microbatches=3)
    sends = [(s.name, s.start, s.end) for s in simulate(plan, profile, cluster, [1] * 3).spans if s.kind == "send"]
    assert [s for s in sends if s[0].startswith("0F")] == [("0F0", 1, 4), ("0F1", 4, 7), ("0F2", 7, 10)]


def test_devices_of_a_node_share_its_port_to_the_network():
    plan, profile, _ = pipeline([1.0, 1.0], [0.0, 0.0], [4.0], replicas=(2, 2), schedule="gpipe", num_microbatches=2)
    one = Cluster.uniform(4, device_type="d", link=Link(1.0))
    kind = DeviceType("d")
    two = Cluster((Node("a", (kind, kind), Link(1.0)), Node("b", (kind, kind), Link(1.0))), Link(1.0))
    first_sends = [
        sorted((s.start, s.end) for s in simulate(plan, profile, c, [1] * 2).spans if s.kind == "send" and s.stage == 0)
        for c in (one, two)
    ]
    assert first_sends == [[(1, 5), (1, 5)], [(1, 5), (5, 9)]]


def test_averaging_blocks_all_replicas_until_the_last_has_come():
    """Unequal minibatches on two replicas: 2 × (P/2)/B = 6 s of averaging start when the slower one is done."""
    graph = LayerGraph.chain([Layer("a", "", 6.0)])
    cost = LayerCost((CostSample(1, 1.0, 1.0, 0.0), CostSample(2, 2.0, 2.0, 0.0)))
    plan = Plan((Stage(("a",), (0, 1)),))
    cluster = Cluster.uniform(2, device_type="d", link=Link(1.0))
    trace = simulate(plan, Profile(graph, {"d": (cost,)}), cluster, [1, 2, 1, 1])
    assert [(s.start, s.end) for s in trace.spans if s.kind == "average" and s.rank == 0] == [(4, 10), (12, 18)]


def test_averaging_over_hosts_crosses_the_network_once_a_host():
    """Three replicas of 12 bytes on two hosts.

    2 × 6 bytes at 3 a second and 12 back within the host that has two, 2 × 6 bytes at 1 a second between the two.
    """
    graph = LayerGraph.chain([Layer("a", "", 12.0)])
    profile = Profile(graph, {"d": (LayerCost((CostSample(1, 1.0, 1.0, 0.0),)),)})
    kind = DeviceType("d")
    nodes = (Node("a", (kind, kind), Link(3.0, 0.5)), Node("b", (kind,), Link(1e-3, 9.0)))
    trace = simulate(Plan((Stage(("a",), (0, 1, 2)),)), profile, Cluster(nodes, Link(1.0, 0.25)), [1] * 3)
    assert [s.end - s.start for s in trace.spans if s.kind == "average"] == [(4 + 4 + 3 * 0.5) + (12 + 2 * 0.25)] * 3


def test_sockets_between_hosts_carry_what_was_measured_and_a_hosts_memory_plain_bytes():
    """8 bytes each way within a host, 2 and 4 between two, a byte a second; as large as they are where unknown."""
    graph = LayerGraph.chain([Layer("a", "", 0.0), Layer("b", "", 0.0)])
    coded = {"coded_output_bytes": 2.0, "coded_gradient_bytes": 4.0}
    plan = Plan((Stage(("a",), (0,)), Stage(("b",), (1,))))
    kind, link = DeviceType("d"), Link(1.0)
    one = Cluster((Node("a", (kind, kind), link),), link)
    two = Cluster((Node("a", (kind,), link), Node("b", (kind,), link)), link)
    for known, cluster, lasting in ((coded, one, [8, 8]), (coded, two, [2, 4]), ({}, two, [8, 8])):
        profile = Profile(graph, {"d": (LayerCost((CostSample(1, 1.0, 1.0, 8.0, **known),)),) * 2})
        sends = [s.end - s.start for s in simulate(plan, profile, cluster, [1]).spans if s.kind == "send"]
        assert sends == lasting
        assert max(port_seconds(plan, Problem(profile, cluster))) == max(lasting)


@pytest.mark.parametrize("count", [1, 3])
def test_the_optimizers_step_follows_every_backward_of_a_lone_device(count):
    """Two layers of 6 and 2 bytes at half a second a byte: 4 s a minibatch after 2 × (1 + 2) s."""
    graph = LayerGraph.chain([Layer("a", "", 6.0), Layer("b", "", 2.0)])
    cost = LayerCost((CostSample(1, 1.0, 2.0, 0.0),))
    profile = Profile(graph, {"d": (cost, cost)}, update_rates={"d": 0.5})
    cluster, plan = Cluster.uniform(1, device_type="d"), Plan((Stage(("a", "b"), (0,)),))
    trace = simulate(plan, profile, cluster, [1] * count)
    assert [(s.name, s.end - s.start) for s in trace.spans if s.kind == "update"] == [
        (f"0U{m}", 4.0) for m in range(count)
    ]
    assert trace.makespan == 10 * count == count * estimate(plan, Problem(profile, cluster)).period_seconds


def test_a_stage_that_keeps_older_versions_copies_its_weights_before_the_step():
    """Two stages of 10 bytes, a second a byte: the first has a minibatch in flight when it steps, the last has none."""
    plan, profile, cluster = pipeline([1.0, 1.0], [1.0, 1.0], parameter_bytes=10.0)
    trace = simulate(plan, replace(profile, update_rates={"d": 1.0}), cluster, [1] * 4)
    steps = {(s.stage, s.end - s.start) for s in trace.spans if s.kind == "update"}
    assert steps == {(0, 10 * (1 + 3 / 5)), (1, 10.0)}


def test_each_replica_makes_its_own_step_once_averaging_is_over():
    """6 bytes: 6 s of averaging, then 3 s on the one type and none on the other, which has no rate."""
    graph, cost = LayerGraph.chain([Layer("a", "", 6.0)]), LayerCost((CostSample(1, 1.0, 1.0, 0.0),))
    profile = Profile(graph, {"slow": (cost,), "fast": (cost,)}, update_rates={"slow": 0.5})
    cluster = Cluster((Node("n", (DeviceType("slow"), DeviceType("fast")), Link(1.0)),))
    trace = simulate(Plan((Stage(("a",), (0, 1)),)), profile, cluster, [1, 1])
    after = {(s.kind, s.rank): (s.start, s.end) for s in trace.spans if s.kind in ("average", "update")}
    assert after == {("average", 0): (2, 8), ("average", 1): (2, 8), ("update", 0): (8, 11)}


def test_recomputation_runs_the_forward_again():
    plan, profile, cluster = pipeline([1.0], [2.0])
    again = Plan(tuple(Stage(s.layers, s.ranks, recompute=True) for s in plan.stages))
    assert drawn(simulate(again, profile, cluster, [1]), 0) == "0F0@0-1 0B0@1-4"
    _, profile, cluster = pipeline([1.0, 2.0, 4.0], [2.0] * 3)
    segmented = Plan((Stage(("l0", "l1", "l2"), (0,), segments=(("l0", "l0"), ("l2", "l2"))),))
    assert drawn(simulate(segmented, profile, cluster, [1]), 0) == "0F0@0-7 0B0@7-18"  # of l0 and l2: 5 more
    assert estimate(segmented, Problem(profile, cluster)).period_seconds == 18


def dynpipe_period(trace, stages, minibatches):
    """DynPipe's measure: mean over k of the time between forwards kS and (k − 1)S of stage 0, per minibatch.

    The last S minibatches are left out.
    """
    ends = [s.end for s in sorted(trace.spans, key=lambda s: s.minibatch) if s.stage == 0 and s.kind == "forward"]
    marks = ends[: minibatches - stages : stages]
    steps = [(b - a) / stages for a, b in zip(marks, marks[1:], strict=False)]
    return sum(steps) / len(steps)


@pytest.mark.parametrize(
    ("forward", "backward", "transfer", "published"),
    [
        ([1, 1], [3, 3], [1], 5.0),
        ([1] * 4, [2] * 4, [0] * 3, 3.0),
        ([1] * 4, [2] * 4, [1] * 3, 4.5),
        ([1, 2, 1, 1], [2, 4, 2, 2], [0.5] * 3, 5.93478),
        ([1, 3], [2, 6], [0.5], 8.94792),
    ],
)
def test_agrees_with_dynpipes_simulator(forward, backward, transfer, published):
    """Values that DynPipe's published simulator gives for 99 microbatches (SEEDS.md), where both assume the same."""
    trace = simulate(*pipeline(forward, backward, transfer), [1] * 99)
    assert dynpipe_period(trace, len(forward), 99) == pytest.approx(published, rel=1e-5)


def test_agrees_with_dynpipes_simulator_but_for_the_fill():
    """Its sixth value: it fills this pipeline 7 s later than its own description says; both settle at 12 s."""
    trace = simulate(*pipeline([1, 9, 1], [1, 3, 3], [0, 0]), [1] * 99)
    assert dynpipe_period(trace, 3, 99) * 93 == pytest.approx(11.9355 * 93 - 7, abs=0.01)
    ends = sorted(s.end for s in trace.spans if s.name.startswith("0F"))
    assert ends[60] - ends[30] == 12 * 30


@st.composite
def runs(draw):
    """Small pipelines of any replication, schedule and voxel counts."""
    count = draw(st.integers(1, 4))
    numbers = st.lists(st.integers(1, 5), min_size=count, max_size=count)
    replicas = tuple(draw(st.lists(st.integers(1, 3), min_size=count, max_size=count)))
    schedule = draw(st.sampled_from(["1f1b", "1f1b-flush", "gpipe", "sequential"]))
    plan, profile, cluster = pipeline(
        draw(numbers),
        draw(numbers),
        draw(st.lists(st.integers(0, 4), min_size=count - 1, max_size=count - 1)),
        replicas=replicas,
        parameter_bytes=draw(st.integers(0, 3)),
        schedule=schedule,
        num_microbatches=draw(st.integers(1, 6)),
    )
    shares = [tuple(draw(st.integers(1, 3)) for _ in stage.ranks) for stage in plan.stages]
    stages = tuple(Stage(s.layers, s.ranks, share) for s, share in zip(plan.stages, shares, strict=True))
    return Plan(stages, schedule, num_microbatches=plan.num_microbatches), profile, cluster, draw(st.integers(1, 14))


@settings(max_examples=60)
@given(runs())
def test_obeys_the_action_lists_and_their_inputs(run):
    """Each rank does its list in order, one thing at a time, and nothing starts before what it needs has ended."""
    plan, profile, cluster, count = run
    trace = simulate(plan, profile, cluster, [1] * count)
    spans = {Action.parse(s.name): s for s in trace.spans if s.kind in ("forward", "backward")}
    lists = actions(plan, count)
    for rank, todo in lists.items():
        own = sorted((s for s in trace.spans if s.rank == rank and s.kind != "send"), key=lambda s: (s.start, s.end))
        assert [s.name for s in own if s.kind != "average"] == [str(a) for a in todo if a.op is not Op.UPDATE]
        assert all(a.end <= b.start for a, b in zip(own, own[1:], strict=False))
        for action in todo:
            if action.op is not Op.UPDATE:
                assert all(spans[source].end <= spans[action].start for source in inputs(action, plan, count))
    for span in trace.spans:
        if span.kind == "average":
            sources = inputs(Action.parse(span.name), plan, count)
            assert all(spans[source].end <= span.start for source in sources)
            assert span.minibatch == max(source.minibatch for source in sources), "numbered as a run numbers it"


@settings(max_examples=16)
@given(runs())
def test_the_parts_of_the_bubble_add_up(run):
    plan, profile, cluster, count = run
    result = forecast(plan, profile, cluster, [1] * count)
    parts = result.bubble
    assert parts.imbalance + parts.dependency + parts.communication == pytest.approx(
        result.trace.bubble_fraction, abs=1e-9
    )
    assert min(parts.imbalance, parts.dependency) >= -1e-9


def test_the_bubble_of_a_balanced_pipeline_is_all_dependency():
    plan, profile, cluster = pipeline([1.0] * 4, [2.0] * 4, schedule="gpipe", num_microbatches=8)
    parts = forecast(plan, profile, cluster, [1] * 8).bubble
    assert (parts.imbalance, parts.communication) == (pytest.approx(0), pytest.approx(0))
    assert parts.dependency == pytest.approx(3 / 11)


def test_peak_memory_counts_versions_optimizer_and_minibatches_in_flight():
    """Stage 0 of two: versions of 2 minibatches in flight, gradients, momentum; activations, and stage 1's input."""
    plan, profile, cluster = pipeline([1.0, 1.0], [1.0, 1.0], [5.0], parameter_bytes=100.0)
    peaks = forecast(plan, profile, cluster, [1] * 12).peak_bytes
    assert peaks == {0: 100 * (2 + 2) + 2 * 5, 1: 100 * (1 + 2) + 5}


def test_simulated_memory_is_what_the_planner_expects():
    plan, profile, cluster = pipeline([1.0] * 3, [2.0] * 3, [5.0, 7.0], parameter_bytes=10.0)
    expected = partition(profile, cluster, planner="model-parallel").estimate.stages
    peaks = forecast(plan, profile, cluster, [1] * 30).peak_bytes
    assert [peaks[k] for k in range(3)] == [stage.memory_bytes for stage in expected]


@pytest.mark.parametrize("bandwidth", [2.0, 5.0, 1e9])
@pytest.mark.parametrize("seed", range(6))
def test_steady_state_reaches_the_planners_period(seed, bandwidth):
    """The planner's period assumes that transfers and averaging hide behind computation: its plans see to that."""
    rng = random.Random(seed)
    graph = LayerGraph.chain(Layer(f"l{k}", "", rng.uniform(0, 2)) for k in range(8))
    speeds = {"a": 1.0, "b": rng.uniform(1, 2.5)}
    base = [(rng.uniform(1, 3), rng.uniform(2, 6), rng.uniform(0, 4)) for _ in range(8)]
    costs = {
        kind: tuple(LayerCost((CostSample(1, f * slow, b * slow, size),)) for f, b, size in base)
        for kind, slow in speeds.items()
    }
    kinds = tuple(DeviceType(rng.choice("ab")) for _ in range(5))
    cluster = Cluster((Node("n", kinds, Link(bandwidth)),), Link(bandwidth))
    rates = {kind.name: rng.choice([0.0, 0.3]) for kind in cluster.device_types}
    profile = Profile(graph, {name: costs[name] for name in rates}, update_rates=rates)
    plan = partition(profile, cluster)
    rate = forecast(plan, profile, cluster, [1] * 240).minibatches_per_second
    assert 0.95 < 1 / rate / plan.estimate.period_seconds < 1.05


def test_a_default_warm_up_leaves_replicas_waiting_for_each_other():
    """One stage before two replicas: with a minibatch in flight for each rank, a round's second one comes too late."""
    plan, profile, cluster = pipeline([1.0, 2.0], [2.0, 4.0], replicas=(1, 2))
    deeper = Plan((replace(plan.stages[0], warmup=3), plan.stages[1]))
    rates = [forecast(p, profile, cluster, [1] * 240).minibatches_per_second for p in (plan, deeper)]
    assert 1 / rates[0] == pytest.approx(3.75, rel=0.01)
    assert 1 / rates[1] == pytest.approx(3.0, rel=0.01)


def test_nothing_to_do_gives_an_empty_trace():
    plan, profile, cluster = pipeline([1.0], [1.0])
    assert simulate(plan, profile, cluster, []).spans == ()


def test_refuses_a_plan_for_another_graph():
    plan, profile, cluster = pipeline([1.0], [1.0])
    with raises("plan.violations", "different graph"):
        simulate(Plan((Stage(("other",), (0,)),)), profile, cluster, [1])


@pytest.mark.parametrize("sizes", [5, "4096", ["a"], [8.0, -1.0], [float("nan")]])
def test_refuses_what_are_no_sizes_of_minibatches(sizes):
    """A minibatch of -1 was simulated, by the line through the samples."""
    plan, profile, cluster = pipeline([1.0], [1.0])
    with pytest.raises(InputError, match=r"sizes? .*given, expected"):
        simulate(plan, profile, cluster, sizes)
