"""Networks, clusters and watchers for tests of plans that change while they run."""

from sparsepipe import Cluster, CostSample, Layer, LayerCost, LayerGraph, Link, Profile
from sparsepipe.dynamics import Factors


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
        return [minibatch] if self.factors != before else []

    def follow(self, plan, *, first_minibatch):
        self.followed.append((first_minibatch, plan))
