"""What is worked out of a value is worked out once, and only the newest answers are kept."""

from sparsepipe import Cluster, CostSample, DeviceType, Layer, LayerCost, LayerGraph, Link, Node, Profile, partition
from sparsepipe.planning import Problem
from sparsepipe.planning.cuts import Cuts
from sparsepipe.util.derived import remembered
from sparsepipe.values.costs import LayerTable


def test_an_answer_is_made_once_and_the_oldest_are_forgotten():
    kept, made = {}, []
    for _ in range(2):
        assert remembered(kept, "square", 3, lambda: made.append(3) or 9) == 9
    assert made == [3]
    for k in range(100):
        remembered(kept, "square", k, lambda k=k: k * k)
    assert len(kept["square"]) <= 16 and remembered(kept, "other", 3, lambda: "own") == "own"


def profile(scale=1.0):
    graph = LayerGraph.chain([Layer(f"l{k}", "", 10.0) for k in range(9)], skips=[(1, 4), (3, 7)])
    costs = tuple(LayerCost((CostSample(10, 0.1 * scale, 0.2, 3 + k, 1 + k % 2, 5),)) for k in range(9))
    return Profile(graph, {"a": costs}, (10.0, 30.0))


def test_tables_and_cuts_are_those_of_a_fresh_profile_whatever_was_asked_before():
    """Kept answers of other sizes, devices or costs are not taken for these."""
    used = profile()
    for sizes in ((5.0,), (7.0, 8.0), (10.0, 20.0)):
        LayerTable.of(used, sizes)
        Problem(used, Cluster.uniform(2, device_type="a")).table  # noqa: B018 - it is kept
    again, fresh = LayerTable.of(used, (10.0, 20.0)), LayerTable.of(profile(), (10.0, 20.0))
    assert LayerTable.of(used, (10.0, 20.0)) is again and (again.output_bytes == fresh.output_bytes).all()
    order = tuple(range(9))
    for table in (LayerTable.of(used, (99.0, 99.0)), again):
        cuts = Cuts.of(table, order, limit=1000)
        for cut, (forward, backward) in enumerate(zip(*cuts.payloads(table), strict=True)):
            expected = table.payload(cuts.before(cut))
            assert (forward == expected[0]).all() and (backward == expected[1]).all()
    assert Cuts.of(again, order, limit=1000) is cuts and Cuts.of(again, order, limit=3) is not cuts


def test_a_limit_of_memory_that_the_free_optimum_keeps_costs_nothing_and_one_that_it_breaks_is_obeyed():
    def cluster(memory):
        return Cluster((Node("n", (DeviceType("a", memory),) * 3, Link(1e3)),), Link(1e3))

    free = partition(profile(), cluster(float("inf")))
    most = max(stage.memory_bytes for stage in free.estimate.stages)
    least = min(stage.memory_bytes for stage in free.estimate.stages)
    assert partition(profile(), cluster(most)).stages == free.stages
    tight = partition(profile(), cluster(max(least, 0.95 * most)))
    assert max(stage.memory_bytes for stage in tight.estimate.stages) <= max(least, 0.95 * most)
    assert tight.estimate.period_seconds > free.estimate.period_seconds
