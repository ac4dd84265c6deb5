"""A replay drives the real runtime through a cluster nobody owns, and takes the time that the simulator predicts."""

import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from coded import raises
from processes import ENOUGH

from sparsepipe import (
    Cluster,
    CostSample,
    DeviceType,
    Layer,
    LayerCost,
    LayerGraph,
    Link,
    Node,
    Plan,
    Profile,
    Stage,
    partition,
)
from sparsepipe.launching import Job, launch
from sparsepipe.planning.simulator import simulate
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.rendezvous.server import StoreServer
from sparsepipe.runtime.rendezvous.store import KeyedStore
from sparsepipe.runtime.reporting.metrics import pace_of
from sparsepipe.runtime.wire.messages import ListenerAddress
from sparsepipe.runtime.worker.run import run
from sparsepipe.runtime.workloads.replay import LinksOfHost, LinksOverHosts, Replay
from sparsepipe.util.io.files import read_rows
from sparsepipe.values.schedule import Op, compile
from sparsepipe.values.trace import WORK

KINDS = ("RTX", "tv", "txp")
GRAPH = LayerGraph.chain([Layer(f"l{k}", "", 4e6) for k in range(6)])
CONFIG = RunConfig("six layers", "nothing", engine="replay", minibatches=12, batch_size=2, threads=1)


def _profile(seconds: float) -> Profile:
    """Six like layers on two types, one half as fast; a layer puts out 2 MB, of which half crosses between nodes."""
    coded = {"coded_output_bytes": 1e6, "coded_gradient_bytes": 1e6}
    costs = {
        kind: tuple(
            LayerCost((CostSample(100.0, factor * seconds, 2 * factor * seconds, 2e6, **coded),)) for _ in GRAPH.layers
        )
        for kind, factor in (("fast", 1.0), ("slow", 2.0))
    }
    return Profile(GRAPH, costs, (100.0,))


def _cluster(link: Link) -> Cluster:
    fast, slow = DeviceType("fast"), DeviceType("slow")
    return Cluster((Node("a", (fast, slow), link), Node("b", (fast, slow), link)), link)


def _plan(**options) -> Plan:
    ids = [layer.id for layer in GRAPH.layers]
    return Plan((Stage(tuple(ids[:3]), (0, 1), (2, 1)), Stage(tuple(ids[3:]), (2,))), **options)


def _replayed(
    folder: Path, plan: Plan, config: RunConfig, profile: Profile, cluster: Cluster, *, expected: float, rel: float
) -> Job:
    """Replay a plan and assert its samples/s; return its job.

    What else a busy machine does holds a run up, and no run makes that good: one of three keeps its pace, mostly the
    first.
    """
    found: list[float] = []
    for _ in range(3):
        job = launch(plan, config, run_dir=folder / f"run-{len(found)}", profile=profile, cluster=cluster)
        found.append(job.wait(timeout=ENOUGH)["samples_per_second"])
        if found[-1] == pytest.approx(expected, rel=rel):
            return job
    raise AssertionError(f"{found} samples/s, expected {expected:.2f}")


@pytest.mark.slow
def test_a_replay_takes_as_long_as_predicted(tmp_path) -> None:
    """Layers of 10 and 20 ms and a link of 20 MB/s, slow enough that the machine's own noise is small beside them."""
    profile, cluster, plan = _profile(0.01), _cluster(Link(20e6, 1e-3)), _plan(schedule="1f1b")
    trace = simulate(plan, profile, cluster, [100.0] * 12)
    job = _replayed(tmp_path, plan, CONFIG, profile, cluster, expected=2 * pace_of(trace, plan), rel=0.35)
    summary = job.wait()
    assert summary["engine"] == "replay" and summary["synthetic"] is True
    assert job.record.trace().makespan > 0.98 * trace.makespan, "no faster than it can be"
    (row,) = job.record.metrics("epoch")
    assert row["sent_bytes"] == 12 * 2 * 1e6, "1 MB each way"
    measured = job.record.trace()
    assert {span.name for span in measured.spans if span.kind == "forward"} == {
        span.name for span in trace.spans if span.kind == "forward"
    }
    # One numbering: a picture of both lays minibatch over minibatch, and averaging belongs to a round's last one.
    assert numbered(measured) == numbered(trace)
    assert {minibatch for *_, minibatch in numbered(trace)} == {2, 5, 8, 11}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["zbv", "dualpipe-v"])
def test_stages_there_and_back_are_replayed_in_their_order_and_pace(schedule, tmp_path) -> None:
    """Two of four stages on each of two ranks; neighbours on the last rank send each other nothing."""
    profile, cluster = _profile(0.02), Cluster.uniform(2, device_type="fast", link=Link(1e9, 1e-4))
    plan = partition(profile, cluster, planner="model-parallel", schedule=schedule, num_microbatches=6)
    assert [stage.ranks for stage in plan.stages] == [(0,), (1,), (1,), (0,)]
    trace = simulate(plan, profile, cluster, [100.0] * 12)
    job = _replayed(tmp_path, plan, CONFIG, profile, cluster, expected=2 * pace_of(trace, plan), rel=0.2)
    (row,) = job.record.metrics("epoch")
    assert row["sent_bytes"] == 12 * 2 * 2 * 2e6, "2 MB over each of two boundaries each way, within a node"
    program = compile(plan, 12)
    for played, updates in ((trace, False), (job.record.trace(), True)):  # a simulated update takes no time here
        for rank, todo in program.actions.items():
            done = [span.name for span in played.spans if span.rank == rank and span.kind in WORK]
            assert done == [str(action) for action in todo if updates or action.op is not Op.UPDATE]
        assert sent(played) == fed(program)


@pytest.mark.slow
def test_a_stage_whose_ranks_share_scenes_is_replayed_between_others(tmp_path) -> None:
    """Each of its two ranks receives every packet, and the first sends: six packets of 2 MB for each minibatch."""
    profile, cluster = _profile(0.02), Cluster.uniform(4, device_type="fast", link=Link(1e9, 1e-4))
    ids = [layer.id for layer in GRAPH.layers]
    stages = Stage(tuple(ids[:2]), (0,)), Stage(tuple(ids[2:5]), (1, 2), sharding="space"), Stage((ids[5],), (3,))
    plan = Plan(stages)
    trace = simulate(plan, profile, cluster, [100.0] * 12)
    job = _replayed(tmp_path, plan, CONFIG, profile, cluster, expected=2 * pace_of(trace, plan), rel=0.35)
    (row,) = job.record.metrics("epoch")
    assert row["sent_bytes"] == 12 * 6 * 2e6
    assert sent(job.record.trace()) == sent(trace)


def fed(program):
    """(action, rank that it is sent to) of all whose results another rank needs, as the program says."""
    found = []
    for action in (action for todo in program.actions.values() for action in todo):
        target = program.target(action.stage, action.op)
        if target is not None and action.op is not Op.UPDATE:
            own, peer = (program.rank_of(stage, action.minibatch) for stage in (action.stage, target))
            found += [(str(action), peer)] if own != peer else []
    return sorted(found)


def sent(trace):
    return sorted((span.name, span.peer) for span in trace.spans if span.kind == "send")


def numbered(trace):
    return {(s.rank, s.stage, s.name, s.minibatch) for s in trace.spans if s.kind == "average"}


@pytest.mark.slow
def test_eight_unlike_devices_of_published_profiles_keep_the_simulated_pace(tmp_path, shared_reference) -> None:
    """MinkVGG on 4 RTX and 2 + 2 TITANs, 1 Gbit/s between their machines; everything three times slower than there.

    So sleeps are long beside what two busy cores need for eight processes. What is sent keeps its size, 12 MB each way.
    """
    slower, folder = 3.0, shared_reference / "profiles/minkvgg"
    found = [Profile.load(folder / f"minkvgg_v0.02_b64_{kind}/graph.txt", device_type=kind) for kind in KINDS]
    joined = found[0] | found[1] | found[2]
    costs = {kind: tuple(_slower(cost, slower) for cost in own) for kind, own in joined.costs.items()}
    profile = replace(joined, costs=costs)
    rtx, tv, txp = map(DeviceType, KINDS)
    inside, between = Link(12e9 / slower, 1e-5 * slower), Link(1.25e8 / slower, 5e-5 * slower)
    cluster = Cluster((Node("a", (rtx,) * 4, inside), Node("b", (tv, tv, txp, txp), inside)), between)
    plan = partition(profile, cluster, all_devices=True)
    assert len(plan.stages) > 1 and len(plan.ranks) == 8
    config = replace(CONFIG, batch_size=1, minibatches=42)
    trace = simulate(plan, profile, cluster, [0.0] * 42)
    _replayed(tmp_path, plan, config, profile, cluster, expected=pace_of(trace, plan), rel=0.1)


def test_a_replay_is_evaluated_like_any_workload(tmp_path) -> None:
    """Run by itself, with settings that a launcher leaves out for what trains nothing."""
    (tmp_path / "logs").mkdir()
    profile, cluster = _profile(0.0), Cluster.uniform(1, device_type="fast", link=Link(1e12, 0.0))
    ids = [layer.id for layer in GRAPH.layers]
    plan = Plan((Stage(tuple(ids), (0,), recompute=True),), schedule="1f1b")
    config = CONFIG.replace(validate=True, checkpoint_every=0)
    run(tmp_path, plan, config, workload=Replay(tmp_path, config, profile, cluster))
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["voxels"] for row in rows if row["event"] == "step"] == [100] * 12
    (epoch,) = [row for row in rows if row["event"] == "epoch"]
    assert epoch["validation"] == {"loss": None, "accuracy": None, "samples": 24, "counted": 0}


def _slower(cost: LayerCost, factor: float) -> LayerCost:
    samples = (replace(s, forward=factor * s.forward, backward=factor * s.backward) for s in cost.samples)
    return LayerCost(tuple(samples))


@pytest.fixture
def store():
    """What connects a rank to the store of a job on several hosts."""
    server = StoreServer("127.0.0.1", b"0123456789abcdef")
    where = ListenerAddress("127.0.0.1", server.port, b"0123456789abcdef")
    with ExitStack() as stack:
        stack.callback(server.close)
        yield lambda rank: stack.enter_context(closing(KeyedStore(where, rank=rank, timeout=ENOUGH)))


@pytest.mark.parametrize("over_hosts", [False, True])
def test_transfers_between_nodes_wait_for_each_other_whoever_sends(tmp_path, store, over_hosts) -> None:
    """Each of 0.1 s; within a node every device has ports of its own, for each direction."""
    start, cluster = time.monotonic(), _cluster(Link(1e7, 0.0))
    links = [  # one a rank
        LinksOverHosts(store(k), cluster, rank=k) if over_hosts else LinksOfHost(tmp_path / "ports", cluster)
        for k in range(4)
    ]
    sent = [links[a].send(a, b, 10**6, forward=forward, to=b) - start for a, b, forward in TRANSFERS]
    took = time.monotonic() - start
    for end, turn in zip(sent, (1, 2, 3, 1, 1, 1, 2, 1), strict=True):
        assert 0.1 * turn - 1e-3 <= end <= 0.1 * turn + took


def test_when_a_transfer_ends_is_told_by_the_clock_of_who_receives_it(store) -> None:
    """Here both are one clock; the second rank says that its own is 1000 s behind that of the store's host."""
    cluster, other = _cluster(Link(1e7, 0.0)), store(1)
    first, _ = LinksOverHosts(store(0), cluster, rank=0), LinksOverHosts(other, cluster, rank=1)
    other.set("clock/1", repr(1000.0))
    before = time.monotonic()
    end = first.send(0, 1, 10**6, forward=True, to=1)
    assert before - 1000 + 0.1 - 1e-3 <= end <= time.monotonic() - 1000 + 0.1


# In the order of time: ranks 0 and 1 are one node, 2 and 3 the other.
TRANSFERS = (
    *((0, 2, True), (1, 3, True), (0, 3, False)),  # one after the other out of the first node
    (2, 0, False),  # the other way
    *((0, 1, True), (0, 1, False), (0, 1, True), (1, 0, True)),  # within
)


def test_a_replay_without_a_profile_is_refused(tmp_path) -> None:
    with raises("engine.no_profile", engine="replay"):
        launch(_plan(), CONFIG, run_dir=tmp_path / "run")


@pytest.mark.slow
def test_a_replay_resumes_by_the_profile_that_its_run_kept(tmp_path) -> None:
    with launch(_plan(), CONFIG, run_dir=tmp_path / "run", profile=_profile(0.01), cluster=_cluster(Link(1e9))) as job:
        job.wait(timeout=ENOUGH)
    with pytest.warns(UserWarning):  # it starts over, as it has no checkpoint
        job = launch(_plan(), CONFIG, run_dir=tmp_path / "run", resume=True)
    with job:
        job.wait(timeout=ENOUGH)
    assert len(job.record.metrics("step")) == 12
