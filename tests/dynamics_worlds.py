"""Networks, clusters and watchers for tests of plans that change while they run."""

import numpy as np

from sparsepipe import Cluster, CostSample, Layer, LayerCost, LayerGraph, Link, Profile
from sparsepipe.monitoring import Alarm, Factors, Watch
from sparsepipe.monitoring.change_point import simulate_from
from sparsepipe.monitoring.interference import Forest, Predictor
from sparsepipe.monitoring.interference.measurements import features_of
from sparsepipe.monitoring.replanner import Replanner
from sparsepipe.monitoring.variants import variant
from sparsepipe.values.stragglers import Stragglers

KIND = "layer"  # of every layer in these networks, which say nothing of themselves
KEPT = 0.25  # share of its pace that a layer keeps, as this predictor has it


def stump(metrics, *, kept=KEPT):
    """A predictor of one tree: layers of that kind keep so much of their pace, whatever the machine says."""
    names = tuple(features_of(dict.fromkeys(metrics, 0.0), "", (KIND,), 1.0, 0.0))
    whole, real = (lambda *values: np.array(values, np.int64)), (lambda *values: np.array(values, np.float64))
    asked, leaf = names.index(f"kind {KIND}"), -1
    parts = whole(asked, leaf, leaf), real(0.5, 0, 0), whole(1, 1, 2), whole(2, 1, 2), real(1, 1, kept)
    return Predictor(Forest(names, whole(0), *parts), tuple(metrics), (KIND,), "a machine")


def network(num_layers=12, *, seconds=None, parameter_bytes=1e6, output_bytes=1e5):
    """A chain whose layers take `seconds` forwards (0.01 each when not given), and twice that backwards."""
    seconds = seconds or [0.01] * num_layers
    graph = LayerGraph.chain(Layer(f"l{k}", "", parameter_bytes) for k in range(len(seconds)))
    costs = tuple(LayerCost((CostSample(1, s, 2 * s, output_bytes),)) for s in seconds)
    return Profile(graph, {"cpu": costs}, (1.0,), size_unit="samples")


def cpus(count, bandwidth=1e9):
    return Cluster.uniform(count, device_type="cpu", link=Link(bandwidth))


class Told:
    """A watcher that is told how slow ranks are, some minibatches after they are."""

    def __init__(self, stragglers, num_ranks, *, late=8):
        self.stragglers, self.num_ranks, self.late = stragglers, num_ranks, late
        self.factors, self.followed = Factors.none(num_ranks), []

    def see(self, spans, sizes, left_out=()):
        minibatch = max(span.minibatch for span in spans) - self.late
        if minibatch < 0:
            return []
        slow = [
            1
            + self.stragglers.extra_seconds(rank, minibatch, 2.0)
            - self.stragglers.extra_seconds(rank, minibatch, 1.0)
            for rank in range(self.num_ranks)
        ]  # what delays a rank whatever it does is no factor
        before, self.factors = self.factors, Factors(tuple(round(one, 6) for one in slow))
        changed = zip(self.factors.ranks, before.ranks, strict=True)
        return [Alarm(minibatch, minibatch, now, then, rank) for rank, (now, then) in enumerate(changed) if now != then]

    def also(self, made_for):
        return ()  # it is told how they are

    def follow(self, plan, *, first_minibatch):
        self.followed.append((first_minibatch, plan))


def followed(name, plan, profile, cluster, truth, *, minibatches, spec="", sizes=None, noise=None):
    """Train in a world where layers take under a plan what `truth(plan)` says, and not what the profile says.

    Returns the seconds of the run and the replanner, whose watch sees noisy spans; who never replans has none. A change
    takes 0.1 s, and begins two minibatches after it is decided.
    """
    sizes, stragglers = sizes or [1.0] * minibatches, Stragglers.parse(spec)
    if name == "never":  # what it would see is nothing to it
        return max(
            span.end for span in simulate_from(plan, truth(plan), cluster, sizes, 0, 0.0, stragglers).spans
        ), None
    watch = Watch(profile, cluster, plan, simulated=True)
    replanner = Replanner(plan, profile, cluster, watch, variant(name), num_minibatches=minibatches)
    first, clock, current = 0, 0.0, plan
    while True:
        trace = simulate_from(current, truth(current), cluster, sizes[first:], first, clock, stragglers)
        found = _decided(replanner, trace, first, sizes, noise)
        if found is None:
            return max(span.end for span in trace.spans), replanner
        at, decision = found
        begins = min(at + 2, minibatches)
        clock = 0.1 + max(span.end for span in trace.spans if span.minibatch < begins)
        replanner.begin(decision, begins)
        if begins == minibatches:
            return clock, replanner
        first, current = begins, decision.plan


def _decided(replanner, trace, first, sizes, noise):
    """(The next minibatch to begin, decision) of the first change in a plan's part of a run; None: there is none."""
    seen, following = [], first
    true = sorted(trace.spans, key=lambda span: span.end)
    told = true if noise is None else noise.on(true, first)
    for span, noisy in zip(true, told, strict=True):
        seen.append(noisy)
        if (span.stage, span.kind) == (0, "forward"):
            following = max(following, span.minibatch + 1)
        if (span.stage, span.kind) == (0, "backward"):
            decision = replanner.see(seen, dict(enumerate(sizes[:following])), following)
            if decision is not None:
                return following, decision
            seen = []
    return None
