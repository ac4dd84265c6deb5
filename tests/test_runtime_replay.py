"""A replay drives the real runtime through a cluster nobody owns, and takes the time that the simulator predicts."""

import pytest

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
)
from sparsepipe.launchers import launch
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.metrics import pace, steady_window
from sparsepipe.simulator import simulate

GRAPH = LayerGraph.chain([Layer(f"l{k}", "", 4e6) for k in range(6)])
CONFIG = RunConfig("six layers", "nothing", engine="replay", minibatches=12, batch_size=2, threads=1)


def _profile(seconds: float) -> Profile:
    """Six like layers on two types, one half as fast; a layer puts out 1 MB."""
    costs = {
        kind: tuple(LayerCost((CostSample(100.0, factor * seconds, 2 * factor * seconds, 1e6),)) for _ in GRAPH.layers)
        for kind, factor in (("fast", 1.0), ("slow", 2.0))
    }
    return Profile(GRAPH, costs, (100.0,))


def _cluster(link: Link) -> Cluster:
    fast, slow = DeviceType("fast"), DeviceType("slow")
    return Cluster((Node("a", (fast, slow), link), Node("b", (fast, slow), link)), link)


def _plan(**options) -> Plan:
    ids = [layer.id for layer in GRAPH.layers]
    return Plan((Stage(tuple(ids[:3]), (0, 1), (2, 1)), Stage(tuple(ids[3:]), (2,))), **options)


@pytest.mark.slow
def test_a_replay_takes_as_long_as_predicted(tmp_path) -> None:
    """Layers of 10 and 20 ms and a link of 20 MB/s, slow enough that the machine's own noise is small beside them."""
    profile, cluster, plan = _profile(0.01), _cluster(Link(20e6, 1e-3)), _plan(schedule="1f1b")
    job = launch(plan, CONFIG, run_dir=tmp_path / "run", profile=profile, cluster=cluster)
    summary = job.wait(timeout=120)
    trace = simulate(plan, profile, cluster, [100.0] * 12)
    ends = {span.minibatch: span.end for span in trace.spans if span.name.startswith("1B")}
    times = [ends[m] for m in range(12)]
    predicted = pace(times, [2] * 12, steady_window(times, plan), 0.0)
    assert summary["engine"] == "replay" and summary["synthetic"] is True
    assert summary["samples_per_second"] == pytest.approx(predicted, rel=0.35)  # machines of tests are busy
    assert summary["samples_per_second"] < 1.02 * predicted, "no faster than it can be"
    measured = job.record.trace()
    assert {span.name for span in measured.spans if span.kind == "forward"} == {
        span.name for span in trace.spans if span.kind == "forward"
    }


def test_a_replay_without_a_profile_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="engine 'replay' needs the profile and the cluster"):
        launch(_plan(), CONFIG, run_dir=tmp_path / "run")
