"""The plans that are run, and what the simulator says of one."""

from dataclasses import replace

from sparsepipe import simulator
from sparsepipe.planning import Problem, partition
from sparsepipe.planning.by_hand import by_hand
from sparsepipe.runtime.reporting.metrics import pace_of
from sparsepipe.values.cluster import Cluster, Link
from sparsepipe.values.plan import Plan
from sparsepipe.values.profile import LayerCost, Profile

from .cases import Case

CLUSTER = Cluster.uniform(2, device_type="cpu", link=Link(bandwidth=8e9, latency=2e-4))  # shared memory's


def plans(found: Profile, cluster: Cluster = CLUSTER) -> tuple[Plan, int]:
    """Return the plan that is fastest when it is simulated, and the layers before the best cut in two.

    A simulation counts what estimates leave out, such as the kernel maps that each further stage makes anew. Stages are
    interleaved where that is worth 1% and more.
    """
    straight, laps = (
        partition(found, cluster, planner="model-parallel", schedule="1f1b", stages_per_device=count)
        for count in (1, 2)
    )
    cut, best = len(straight.stages[0].layers), partition(found, cluster, planner="optimal", schedule="1f1b")
    if len(best.stages) == 1:  # data parallel is measured as such
        best = straight
    interleaved, period = (_simulated_seconds(plan, found, cluster) for plan in (laps, best))
    return (laps if interleaved < 0.99 * period else best), cut


def good_cuts(found: Profile, cut: int) -> list[int]:
    """Return a cut, and two more, not beside each other, at which a plan with flushes is estimated to be fastest."""
    problem = Problem(found, CLUSTER, "1f1b-flush", 8)
    places = range(1, len(found.graph.layers))
    seconds = {k: by_hand(problem, [k], [(1,), (1,)]).estimate.period_seconds for k in places}
    chosen = [cut]
    for place in sorted(seconds, key=seconds.__getitem__):
        if len(chosen) < 3 and all(abs(place - other) > 1 for other in chosen):
            chosen.append(place)
    return chosen


def flush_plan(found: Profile, cut: int, torchs: dict[str, int] | None) -> Plan:
    """Return a plan with flushes, at the cut and the number of micro-batches at which torch's schedule is best."""
    cut = torchs["cut"] if torchs else cut
    problem = Problem(found, CLUSTER, "1f1b-flush", torchs["microbatches"] if torchs else 8)
    return by_hand(problem, [cut], [(1,), (1,)])


def predict(plan: Plan, found: Profile, case: Case, *, step_seconds: float, cluster: Cluster = CLUSTER) -> float:
    """Simulate the plan by a profile whose layers and update together take as long as a step of the limit, on average.

    A profile has medians, a rate is of all seconds: those in which the machine was busy with something else too.
    """
    (costs,), rate = found.costs.values(), found.update_rates["cpu"]
    layers = [cost.at(count) for count in found.sizes for cost in costs]
    step = sum(layer.forward + layer.backward for layer in layers) / len(found.sizes)
    scale = step_seconds / (step + rate * sum(layer.parameter_bytes for layer in found.graph.layers))
    scaled = tuple(
        LayerCost(tuple(replace(s, forward=scale * s.forward, backward=scale * s.backward) for s in cost.stretched))
        for cost in costs
    )
    found = replace(found, costs={"cpu": scaled}, update_rates={"cpu": scale * rate})
    return case.batch_size / _simulated_seconds(plan, found, cluster)


def _simulated_seconds(plan: Plan, found: Profile, cluster: Cluster) -> float:
    """Seconds per minibatch in steady state, as a run would report them."""
    counts = [found.sizes[k % len(found.sizes)] for k in range(60)]
    trace = simulator.simulate(plan, found, cluster, counts)
    return 1 / pace_of(trace, plan)
