"""Steady pace and busy shares of made-up runs whose numbers are known, and of replays in which one rank is slow."""

import pytest
from runtime_jobs import Job, one_at_a_time, run_jobs

from sparsepipe import (
    Cluster,
    CostSample,
    DeviceType,
    Layer,
    LayerCost,
    LayerGraph,
    Node,
    Plan,
    Profile,
    RunRecord,
    Stage,
)
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.reporting.metrics import busy_seconds, median_summaries, pace, stage_summary, steady_window


def _plan(**options) -> Plan:
    return Plan((Stage(("a",), (0,)), Stage(("b",), (1,))), **options)


def test_the_pace_leaves_out_filling_and_draining() -> None:
    """Slow first minibatches, then one of 8 samples every half second."""
    times = [5.0, 7.0, *(7.5 + 0.5 * k for k in range(10))]
    window = steady_window(times, _plan(schedule="1f1b"))
    assert window == (2, 11)
    assert pace(times, [8] * 12, window, started=0.0) == pytest.approx(16.0)


def test_the_pace_of_a_flush_is_that_of_whole_steps() -> None:
    """Steps of 2 minibatches, 3 s each with their bubble; the last one is cut short and does not count."""
    times = [1.0, 3.0, 4.0, 6.0, 7.0, 9.0, 10.0]
    window = steady_window(times, _plan(schedule="1f1b-flush", num_microbatches=2))
    assert window == (1, 5)
    assert pace(times, [3] * 7, window, started=0.0) == pytest.approx(2.0)


@pytest.mark.parametrize("count", range(18, 26))
def test_the_pace_of_replicas_is_that_of_whole_rounds(count: int) -> None:
    """Ends come in twos and fours: four minibatches of 8 samples every 2 s, wherever the epoch ends."""
    for own in (Plan((Stage(("a", "b"), (0, 1, 2, 3)),)), Plan((Stage(("a",), (0, 1, 2, 3)), Stage(("b",), (4, 5))))):
        size = own.stages[-1].round
        times = [2.0 * (m // 4) + m % 4 // size * 0.1 for m in range(count)]
        assert pace(times, [8] * count, steady_window(times, own), started=0.0) == pytest.approx(16.0)


def test_a_short_epoch_counts_as_a_whole() -> None:
    times = [2.0, 4.0]
    assert steady_window(times, _plan(schedule="1f1b")) is None
    assert pace(times, [10, 10], None, started=0.0) == pytest.approx(5.0)


def test_busy_shares_count_what_lies_in_the_window() -> None:
    spans = [("forward", 0.0, 2.0), ("wait", 2.0, 3.0), ("backward", 3.0, 6.0), ("update", 6.0, 7.0)]
    seconds = busy_seconds(spans, 1.0, 5.0)
    assert (seconds["forward"], seconds["wait"], seconds["backward"], seconds["update"]) == (1.0, 1.0, 2.0, 0.0)
    summary = stage_summary(0, (0,), seconds, 4.0)
    assert summary["busy_fraction"] == pytest.approx(0.75)
    assert summary["bubble_fraction"] == pytest.approx(0.25)
    assert summary["wait_fraction"] == pytest.approx(0.25)


def test_summaries_are_medians_over_epochs() -> None:
    epochs = [[stage_summary(0, (0, 1), busy_seconds([("forward", 0, busy)], 0, 10), 10)] for busy in (2.0, 4.0, 12.0)]
    merged = median_summaries(epochs)
    assert merged[0]["ranks"] == [0, 1]
    assert merged[0]["busy_fraction"] == pytest.approx(0.2)


# --- one rank is slow: the others wait for it, and are said to -------------------------------------------------------

# Seconds of a backward in the first stage, many times what a busy machine adds; all else takes a tenth of it.
SLOW = 0.6


@pytest.fixture(scope="module")
def waited(tmp_path_factory) -> dict[str, RunRecord]:
    folder = tmp_path_factory.mktemp("waited")
    graph = LayerGraph.chain(Layer(id) for id in "ab")
    costs = (LayerCost((CostSample(1, SLOW / 10, SLOW, 4000),)), LayerCost((CostSample(1, SLOW / 10, SLOW / 10, 40),)))
    profile, cluster = Profile(graph, {"cpu": costs}, (1.0,)), Cluster((Node("box", (DeviceType("cpu"),) * 2),))
    config = RunConfig("two layers", "nothing", engine="replay", batch_size=1, validate=False, checkpoint_every=0)
    stages = (Stage(("a",), (0,)), Stage(("b",), (1,)))
    flush = {"schedule": "gpipe", "num_microbatches": 2}
    settings = {"clipped": {"clip_norm": 1.0}, "half": {"precision": "float16"}, "plain": {}}
    jobs = []
    for name, changes in settings.items():
        (folder / name).mkdir()
        profile.save(folder / name / "profile.json")
        (folder / name / "cluster.toml").write_text(cluster.to_toml())
        own = RunConfig(**(config.to_json() | {"minibatches": 4, "threads": 1} | changes))
        jobs.append(Job(name, Plan(stages, **flush), own))
    return {name: RunRecord(result.folder) for name, result in run_jobs(folder, jobs).items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clipped", "half"])
def test_a_wait_within_an_update_is_not_work(name: str, waited) -> None:
    """The last stage is done with a step two slow backwards before the first, and waits for it to know the norm."""
    trace = waited[name].trace()
    of_updates = [span for span in trace.spans if span.rank == 1 and span.name in ("1U0", "1U1")]
    seconds = {kind: sum(span.seconds for span in of_updates if span.kind == kind) for kind in ("update", "wait")}
    assert {span.kind for span in of_updates} == {"update", "wait"}
    assert seconds["wait"] > 2 * SLOW > seconds["update"]
    assert {span.peer for span in of_updates} == {-1} and {span.minibatch for span in of_updates} == {1, 3}


@pytest.mark.slow
def test_no_second_of_a_rank_is_left_out(waited) -> None:
    """Without a norm to wait for, the last stage waits at the end of the epoch."""
    for name, record in waited.items():
        trace = record.trace()
        for rank in trace.ranks:
            spans = one_at_a_time(trace, rank)
            assert sum(span.seconds for span in spans) > 0.85 * trace.makespan, (name, rank)
