"""Intruders that come and go beside a job, and what records of disturbed runs say of iterations and changes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from coded import mentions, raises
from dynamics_worlds import cpus, network
from processes import ENOUGH, until
from runtime_jobs import PLAIN, plan_of

from scripts.bench.replan.variants import cost_of_intruder
from sparsepipe import InputError, RunConfig, RunRecord, partition
from sparsepipe.monitoring.factors import Factors
from sparsepipe.monitoring.following import DECISIONS
from sparsepipe.monitoring.launching import launch
from sparsepipe.records import Origin
from sparsepipe.study.contention import FILE, Contention, came_and_went
from sparsepipe.study.foresight import AHEAD, Foresight, Wanted, foreseen, slowed_by
from sparsepipe.study.moving import (
    bars_by_load,
    bars_of_runs,
    changes,
    changes_markdown,
    changes_table,
    changes_told,
    devices_in_use,
    iterations,
    learning_by_seconds,
    losses_by_seconds,
    moments,
    moving_text,
    samples_per_second,
    seconds_bars,
    simulated_stays,
    whole_run_seconds,
)
from sparsepipe.util.host.background_load import processors_of

PLAN = plan_of(PLAIN, [[0], [1]], cuts=(5,))


def written(folder: Path) -> RunRecord:
    """A run of eight minibatches that took 1 s each, 3 s from the fourth to the sixth; one change, one refusal."""
    record = RunRecord.create(folder, PLAN, {}, Origin())
    ends = [1.0, 2.0, 3.0, 6.0, 9.0, 12.0, 13.0, 14.0]
    rows = [{"event": "step", "epoch": 0, "minibatch": k, "seconds": end} for k, end in enumerate(ends)]
    rows.append({"event": "replan", "minibatch": 6, "seconds": 12.0, "pause_seconds": 0.25, "moved_bytes": 100})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    decided = {"event": "decision", "predicted_gain_seconds": 4.0, "predicted_cost": {"seconds": 0.5}, "reason": "so"}
    told = [
        decided | {"minibatch": 1, "changes": False},
        decided | {"minibatch": 3, "changes": True},
        {"event": "refused", "reason": "no room"},
        decided | {"minibatch": 5, "changes": True},
        {"event": "changed", "minibatch": 6},
    ]
    (folder / DECISIONS).write_text("".join(json.dumps(row) + "\n" for row in told))
    document = {"kind": "training", "visits": [[0.3, 0.7]], "came_and_went": [[2, 5]]}
    (folder / FILE).write_text(json.dumps(document))
    return record


def test_iterations_are_told_by_what_disturbed_them(tmp_path):
    record = written(tmp_path / "run")
    assert iterations(record) == [(1, 1.0), (2, 1.0), (3, 3.0), (4, 3.0), (5, 3.0), (6, 1.0), (7, 1.0)]
    bars = {bar.case: bar.value for bar in seconds_bars({"live": [record]})}
    assert bars["before the load"] == 1 and bars["under the load"] == 3
    assert bars["the whole run"] == pytest.approx(13 / 7)
    assert moments(record) == [(2, "workload starts"), (5, "workload ends")]
    (record.folder / FILE).unlink()
    assert [bar.case for bar in seconds_bars({"live": [record]})] == ["before the load", "the whole run"]


def test_replicas_that_end_together_have_the_mean_of_their_round(tmp_path):
    """Ends at 1, 1, 5, 5, 9, 9: no minibatch took 4 s, and none took nothing."""
    plan = plan_of(PLAIN, [[0, 1]])
    record = RunRecord.create(tmp_path / "run", plan, {}, Origin())
    rows = [{"event": "step", "epoch": 0, "minibatch": k, "seconds": 1.0 + 4 * (k // 2)} for k in range(6)]
    (record.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert iterations(record) == [(k, 2.0) for k in range(2, 6)] and moments(record) == []


def test_of_several_runs_a_bar_knows_the_least_and_the_most(tmp_path):
    first, second = written(tmp_path / "first"), written(tmp_path / "second")
    path = second.folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row | {"seconds": 2 * row["seconds"]}) + "\n" for row in rows))
    bars = {bar.case: (bar.value, bar.least, bar.most) for bar in seconds_bars({"live": [first, second]})}
    assert bars["under the load"] == (4.5, 3, 6) and bars["before the load"] == (1.5, 1, 2)
    assert whole_run_seconds(second) == 2 * whole_run_seconds(first)
    by_load = bars_by_load({"light": {"live": [first]}, "heavy": {"live": [first, second]}})
    assert [(bar.case, bar.value, bar.most) for bar in by_load] == [
        ("light workload", 3, None),
        ("heavy workload", 4.5, 6),
    ]
    assert {(bar.least, bar.most) for bar in seconds_bars({"live": [first]})} == {(None, None)}


def test_paces_losses_and_use_of_the_devices_are_read_off_a_run(tmp_path):
    """Ends after 1, 2, 4 and 5 s; the first minibatch has nothing before it. Rank 1 computes for half of the time."""
    record = RunRecord.create(tmp_path / "run", PLAN, {}, Origin())
    told = zip((1.0, 2.0, 4.0, 5.0), (8.0, 4.0, 2.0, 2.0), (32, 32, 32, 16), strict=True)
    rows = [
        {"event": "step", "epoch": 0, "minibatch": k, "seconds": end, "loss": loss, "samples": samples}
        for k, (end, loss, samples) in enumerate(told)
    ]
    (record.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for rank, end in ((0, 4.0), (1, 2.0)):
        span = {"rank": rank, "name": "F0", "start": 0.0, "end": end, "stage": rank, "minibatch": 0, "kind": "forward"}
        (record.folder / f"trace-rank{rank}.jsonl").write_text(json.dumps(span) + "\n")
    assert samples_per_second(record) == (32 + 32 + 16) / 4
    assert devices_in_use(record) == pytest.approx(75)
    assert losses_by_seconds({"live": [record]}) == {"live": [(0, 8), (1, 6), (3, 14 / 3), (4, 4)]}
    (bar,) = bars_of_runs("all", {"live": [record], "never": []}, samples_per_second)
    assert (bar.case, bar.system, bar.value, bar.source, bar.least) == ("all", "live", 20, "ours", None)


def test_the_clock_stands_while_a_run_validates(tmp_path):
    """Ends after 1 and 2 s, a validation until 7 s, ends after 8 and 9 s, a last validation until 11 s."""
    record = RunRecord.create(tmp_path / "run", PLAN, {}, Origin())
    rows = [
        {"event": "step", "epoch": k // 2, "minibatch": k, "seconds": end, "loss": 1.0, "samples": 32}
        for k, end in enumerate((1.0, 2.0, 8.0, 9.0))
    ]
    told = {"event": "epoch", "train": {"loss": 1.0}}
    rows.insert(2, told | {"epoch": 0, "minibatches": 2, "seconds": 7.0, "validation": {"loss": 1.0, "accuracy": 0.25}})
    rows.append(told | {"epoch": 1, "minibatches": 4, "seconds": 11.0, "validation": {"loss": 1.0, "accuracy": 0.5}})
    (record.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert iterations(record) == [(1, 1.0), (2, 1.0), (3, 1.0)] and samples_per_second(record) == 32
    assert learning_by_seconds({"light": {"live": [record]}, "heavy": {"never": [record]}}) == {
        "light workload (validation accuracy, %)": {"live": [(1, 25), (3, 50)]},
        "heavy workload (validation accuracy, %)": {"never": [(1, 25), (3, 50)]},
        "heavy workload (training loss)": {"never": [(0, 1), (1, 1), (2, 1), (3, 1)]},
    }


def test_what_an_intruder_costs_each_rank_is_read_off_a_run_that_never_moved(tmp_path):
    """Rank 1 takes three times as long beside it; the first minibatches, slow whatever disturbs, do not count."""
    record = RunRecord.create(tmp_path / "run", PLAN, {}, Origin())
    (record.folder / FILE).write_text(json.dumps({"kind": "training", "visits": [], "came_and_went": [[39, 59]]}))
    for rank in (0, 1):
        seconds = {m: 9.0 if m < 20 else 3.0 if rank and 39 < m <= 59 else 1.0 for m in range(80)}
        rows = [
            {"rank": rank, "name": f"{name}{m}", "start": 100 * m + begin, "end": 100 * m + begin + seconds[m]}
            | {"stage": rank, "minibatch": m, "kind": kind}
            for m in seconds
            for begin, name, kind in ((0, "F", "forward"), (20, "B", "backward"))
        ]
        (record.folder / f"trace-rank{rank}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert slowed_by(record).ranks == pytest.approx((1.0, 3.0))
    (record.folder / FILE).unlink()
    with raises("run.no_intruder"):
        slowed_by(record)
    with raises("run.no_intruder", "none were beside the intruder, or all; give more --minibatches"):
        cost_of_intruder(record)  # bench_replan's, of a run that was over before the intruder came


def test_an_oracle_asks_for_the_best_plan_when_the_intruder_comes_and_for_the_first_when_it_goes():
    profile, cluster = network(12), cpus(2)
    plan, intrusion = partition(profile, cluster), Contention.of("training", [[0.2, 0.5], [0.6, 0.9]])
    asked = foreseen(intrusion, plan, profile, cluster, Factors((1.0, 2.0)), minibatches=1000)
    assert [one.minibatch for one in asked] == [200, 500, 600, 900]
    assert [[len(stage.layers) for stage in one.plan.stages] for one in asked] == [[8, 4], [6, 6]] * 2
    assert foreseen(intrusion, plan, profile, cluster, Factors((1.0, 1.0)), minibatches=1000) == ()
    quick = network(seconds=[1e-5] * 12)
    slow = Factors((1.0, 2.0))
    assert foreseen(intrusion, partition(quick, cluster), quick, cluster, slow, minibatches=99) == (), "none pays"


def test_a_change_is_told_with_what_it_took_and_a_refused_one_without(tmp_path):
    record = written(tmp_path / "run")
    told = [(one.minibatch, one.changed_at, one.pause_seconds, one.moved_bytes) for one in changes("live", record)]
    assert told == [(1, None, None, None), (3, None, None, None), (5, 6, 0.25, 100)]
    table = changes_table({"live": record})
    assert list(table.expected_gain_seconds) == [4.0] * 3 and set(table.variant) == {"live"}
    refused, _, made = changes_told({"live": record})
    assert (refused["pause"], refused["measured"], refused["expected gain"]) == ("not made", "–", "4.00 s")
    assert (made["pause"], made["measured"], made["expected cost"]) == ("0.250 s", "not known", "0.500 s")
    assert changes_markdown({"live": record}).count("\n| live | ") == 3
    rows = (
        (record.folder / DECISIONS).read_text().replace('"predicted_gain_seconds": 4.0', '"predicted_gain_seconds": 0')
    )
    (record.folder / DECISIONS).write_text(rows)
    assert {(one["expected gain"], one["expected cost"]) for one in changes_told({"live": record})} == {("none", "–")}
    (record.folder / DECISIONS).unlink()
    assert "|" not in changes_markdown({"live": record})
    assert changes("live", record) == [] and list(changes_table({"live": record}).columns) == list(table.columns)


def test_whether_moving_paid_is_told_of_the_whole_run():
    """ "A pause is made good in **34 minibatches**" stood in bold beside a run that took 104% of the time."""
    still, names = {"under the load": 0.1, "the whole run": 0.06}, ("never", "live")

    def told(beside, whole, pauses=(0.1, 0.08)):
        return moving_text(still, {"under the load": beside, "the whole run": whole}, pauses, names=names)

    lost = told(0.0973, 0.0624)
    assert mentions(lost, "104%", "`never`", 2)
    assert mentions(lost, "97.3 ms", "100.0 ms", "90 ms", 33)
    assert mentions(lost, "`live`") and lost.count("**") == 4
    assert mentions(told(0.11, 0.066), "90 ms")
    assert "**90%**" in (gained := told(0.05, 0.054)) and "**repartitioning paid off" in gained and "lost" not in gained
    assert "neither gained" in told(0.1, 0.06)
    elsewhere = told(0.0997, 0.0582)
    assert "**97%**" in elsewhere and "explain this difference**" in elsewhere, "it was as slow beside the intruder"
    assert mentions(elsewhere, "`live`")
    assert "almost nothing" in told(0.0997, 0.066)
    assert told(0.1, 0.06, ()).endswith("never changed.")
    slow, usual = {"before the load": 0.06, "the whole run": 0.06}, {"before the load": 0.05} | still
    assert mentions(moving_text(usual, slow, (0.1,), names=names), "50.0 ms")
    both = moving_text(usual, slow, (0.1,), names=names, early=True)
    assert both.endswith("already changed.")


def test_in_simulations_moving_pays_for_who_stays_and_not_for_who_is_gone_at_once():
    profile, cluster = network(12), cpus(2)
    table = simulated_stays(partition(profile, cluster), profile, cluster, [3, 100], minibatches=200)
    told = table.pivot(index="stay", columns="variant", values="seconds")
    assert told.live[3] == told.never[3] and told.live[100] < 0.95 * told.never[100]
    changes_by_stay = table[table.variant == "live"].set_index("stay").changes
    assert changes_by_stay[3] == 0 < changes_by_stay[100]
    assert not table[table.variant == "never"].changes.any()


@pytest.mark.parametrize(
    ("kind", "visits", "error"),
    [
        ("rain", [[0.1, 0.2]], ("intruder.kind_unknown", "rain")),
        ("training", [[0.3, 0.2]], ("visits.malformed",)),
        ("training", [[0.1, 0.5], [0.4, 0.6]], ("visits.malformed",)),
        ("training", [[0.1, 1.5]], ("visits.malformed",)),
        ("training", [[0.1]], ("visits.malformed",)),
    ],
)
def test_visits_that_cannot_be_are_refused_in_one_line(kind, visits, error):
    with raises(*error) as caught:
        Contention.of(kind, visits)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "document", [[], {"kind": "training"}, {"kind": 1}, {"came_and_went": [[1]]}, {"came_and_went": [], "share": 2}]
)
def test_a_file_that_tells_of_no_visits_is_refused(tmp_path, document):
    record = written(tmp_path / "run")
    whole = {"kind": "training", "visits": [], "came_and_went": []}
    (record.folder / FILE).write_text(json.dumps(whole))
    assert came_and_went(record) == [], "what other tests of this file break"
    broken = whole | document if "came_and_went" in document else document
    (record.folder / FILE).write_text(json.dumps(broken))
    with pytest.raises(InputError, match=FILE):
        came_and_went(record)


@pytest.mark.slow
@pytest.mark.skipif(len(processors_of()) < 2, reason="two ranks need a processor each")
def test_an_intruder_comes_and_goes_beside_each_rank_on_its_own_processor(tmp_path):
    profile, cluster = network(seconds=[0.012] * 8), cpus(2)
    config = RunConfig("net", "replay", engine="replay", batch_size=1, minibatches=60, timeout_seconds=120)
    config = config.replace(validate=False, checkpoint_every=0)  # as a replay has it
    plan, intrusion = partition(profile, cluster), Contention.of("matrix-products", [[0.2, 0.4], [0.6, 0.7]])
    layers = [layer for stage in plan.stages for layer in stage.layers]
    cut = zip(plan.stages, (layers[:6], layers[6:]), strict=True)
    other = replace(plan, stages=tuple(replace(stage, layers=tuple(own)) for stage, own in cut), estimate=None)
    assert intrusion.finished_run(tmp_path, "net-moving", plan, config) is None
    folder, devices = tmp_path / "net-moving-001", {"profile": profile, "cluster": cluster}
    with (
        launch(plan, config, run_dir=folder, replan="never", **devices) as job,
        Foresight(job, [Wanted(15 + AHEAD, other)]) as foresight,
    ):
        until(lambda: bool(job.rows), "its first row")
        intrusion.inject(job, minibatches=60)
        for rank, core in enumerate(sorted(processors_of())[:2]):
            held = processors_of(int((folder / "logs" / f"rank{rank}.pid").read_text()))
            assert held in ({core}, frozenset()), "on its own, or over by now"
        job.wait(timeout=ENOUGH)
    visits = came_and_went(job.record)
    flat = [moment for visit in visits for moment in visit]
    assert flat == sorted(flat) and flat[0] >= 12 and flat[1] >= 24 and len(flat) in (2, 4), "4 unless it was over"
    assert [told for _, told in moments(job.record) if told != "6, 2"] == ["workload starts", "workload ends"] * len(
        visits
    )
    followed = job.record.plans
    assert not foresight.fault and len(followed) == 2 and followed[1][0] > 15 and followed[1][1] == other
    assert intrusion.finished_run(tmp_path, "net-moving", plan, config).folder == folder
    assert Contention.of("training", intrusion.visits).finished_run(tmp_path, "net-moving", plan, config) is None
    assert replace(intrusion, share=0.5).finished_run(tmp_path, "net-moving", plan, config) is None, "of another load"
