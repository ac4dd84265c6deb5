"""Replays of several pipelines beside their simulation: who takes which minibatch, and weights on their way."""

import itertools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from pipeline_jobs import replayed_pipelines
from processes import ENOUGH

from sparsepipe import Cluster, DeviceType, Link, Node
from sparsepipe.launching import launch
from sparsepipe.planning.simulator import simulate_pipelines
from sparsepipe.planning.simulator.exchange import Exchange, Push, Routes, ServerPorts, members_of
from sparsepipe.runtime.workloads.replay import OtherPipelines
from sparsepipe.util.io.files import read_rows
from sparsepipe.values.replication.base import SERVER, Merge
from sparsepipe.values.stragglers import Stragglers

slow = pytest.mark.slow


def _rows(folder: Path, name: str, event: str) -> list[Mapping]:
    return [row for row in read_rows(folder / f"{name}.jsonl") if row["event"] == event]


@slow
def test_a_replay_hands_minibatches_out_as_its_simulation_does(tmp_path) -> None:
    """Pipeline 0 stops at its first minibatch, and has two more by then. The other may be two waves ahead: it has five
    when its bound keeps it from more. The last two are pipeline 0's: until it has made three updates."""
    plan, config, profile, _ = replayed_pipelines((1, 1), rule="wsp:every=1,bound=2", seconds=0.2)
    cluster = Cluster.uniform(2, device_type="fast", link=Link(1.2e6, 0.001))
    given, told = {"profile": profile, "cluster": cluster}, "stop:rank=0,at=0,seconds=4"
    job = launch(plan, config.replace(minibatches=10), run_dir=tmp_path / "run", stragglers=told, **given)
    summary = job.wait(timeout=ENOUGH)
    found = [one["lost_seconds"]["straggler"] for one in summary["replication"]["pipelines"]]
    assert found == pytest.approx([4, 0]), "as in a simulation: what it slept"
    taken = {m: row["pipeline"] for row in _rows(tmp_path / "run", "minibatches", "taken") for m in row["minibatches"]}
    expected = simulate_pipelines(plan, **given, sizes=[1.0] * 10, stragglers=Stragglers.parse(told))
    assert [one.lost_seconds["straggler"] for one in expected.pipelines] == pytest.approx([4, 0])
    simulated = expected.taken
    assert Counter(taken.values()) == {k: len(own) for k, own in enumerate(simulated)} == {0: 5, 1: 5}
    assert {m: k for k, own in enumerate(simulated) for m in own if m >= 8} == {8: 0, 9: 0}
    assert taken[8] == taken[9] == 0
    # The weights of all layers, 12 kB, go to the server and back.
    pushed = [row for row in _rows(tmp_path / "run", "merges", "applied") if not row.get("last")]
    assert pushed and all(row["seconds"] >= 2 * (0.001 + 12e3 / 1.2e6) for row in pushed)


@slow
def test_a_replay_waits_for_gradients_as_long_as_its_simulation(tmp_path) -> None:
    """Half of 12 kB go out and as many come back, each way with its latency: at once, as a replay had it before."""
    plan, config, profile, _ = replayed_pipelines((1, 1), rule="all-reduce", seconds=0.03)
    cluster = Cluster.uniform(2, device_type="fast", link=Link(1.2e5, 0.01))
    given, exchange = {"profile": profile, "cluster": cluster}, 2 * (0.01 + 6e3 / 1.2e5)
    job = launch(plan, config.replace(minibatches=10), run_dir=tmp_path / "run", **given)
    summary = job.wait(timeout=ENOUGH)
    assert summary["replication"]["group_sizes"] == {"2": 5}, "the average at its end is in neither"
    waited = [row["waited"] for row in _rows(tmp_path / "run", "merges", "applied") if not row.get("last")]
    assert len(waited) == 10 and min(waited) >= exchange
    simulated = simulate_pipelines(plan, **given, sizes=[1.0] * 10)
    assert simulated.group_sizes == {2: 5}
    for one in simulated.pipelines:
        assert one.lost_seconds["exchange"] == pytest.approx(5 * exchange)


def test_merges_last_in_replays_as_long_as_in_simulations() -> None:
    """Pipelines that are cut unlike, on two nodes: of each set of members, of pairs, and with a parameter server."""
    plan, _, profile, _ = replayed_pipelines((2, 3, 1), rule="diloco:bits=8", seconds=1.0)
    device, inside, between = DeviceType("fast"), Link(2e3, 0.5), Link(100.0, 3.0)
    cluster = Cluster((Node("a", (device,) * 3, inside), Node("b", (device,) * 3, inside)), between)
    replayed = [OtherPipelines.of(plan, k, profile, cluster) for k in range(3)]
    costs = replayed[0].costs
    assert costs.of((2, 0)) == 12e3 / 4, "a byte for each number of four"
    merges = [Merge(0, own, own, own) for count in (1, 2, 3) for own in itertools.combinations(range(3), count)]
    merges += [Merge(0, (one,), (0,), (1.0,), partner=other) for one, other in itertools.permutations(range(3), 2)]
    for merge in merges:
        exchange = Exchange(merge, 0.0, 0, Routes(costs, members_of(merge)))
        for place in (place for place in exchange.routes.around if place[0] in merge.members):
            exchange.come(place, 0.0)
        for k in merge.members:
            for stage in range(len(plan.pipelines[k].stages)):
                found = replayed[k].seconds(merge, stage)
                assert found == pytest.approx(exchange.results[k, stage])
                assert (found > 0) == (len(exchange.members) > 1)
    push = Push(Merge(0, (1,), (0,), (1.0,), partner=SERVER), 0.0, 0, costs, ServerPorts())
    push.come((1, 2), 0.0)
    assert replayed[1].seconds(push.merge, 2) == pytest.approx(push.results[1, 2]) == 2 * (3.0 + 1e3 / 100)
