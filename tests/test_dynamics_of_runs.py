"""The drift of a run by its record: when it is over, while it goes on, what is written down, and what is refused."""

import json
from dataclasses import replace

import pytest
from coded import mentions, raises
from command_line import sparsepipe
from drifting_runs import PROFILE, SLOW_FROM, Piece, WrittenRun, as_measured, cluster_with, drifting, halves, slowed

from sparsepipe import Plan, RunRecord, Stage
from sparsepipe.errors import DamagedRecord
from sparsepipe.monitoring import Follower, RunRows, drift_of
from sparsepipe.records import Origin
from sparsepipe.records.run_progress import begin_plan
from sparsepipe.util.io.files import write_json
from sparsepipe.values.replication import parse_rule


def written(folder, **others):
    return WrittenRun(folder, **others).add(*slowed()).record


def test_of_a_run_that_is_over(tmp_path):
    watch = drift_of(written(tmp_path / "run"))
    (alarm,) = watch.alarms
    assert alarm.rank == 1 and SLOW_FROM <= alarm.minibatch < SLOW_FROM + 10
    assert [one.name for one in watch.standings] == ["rank 0", "rank 1", "link 0-1"]


def test_of_a_run_that_does_not_name_its_profile(tmp_path):
    record = written(tmp_path / "run", named=False)
    assert drift_of(record, PROFILE, cluster_with()).alarms
    with raises("run.no_profile"):
        drift_of(record)
    with raises("run.no_profile"):
        Follower(record, PROFILE)


def test_it_is_followed_while_it_goes_on(tmp_path):
    run, (spans, sizes) = WrittenRun(tmp_path / "run"), slowed()
    follower = Follower(run.record)
    assert not follower.look()
    found = []
    for first in range(0, 140, 7):
        run.add(spans, sizes, numbers=range(first, first + 7))
        found += follower.look()
    (alarm,) = drift_of(run.record).alarms
    assert [(one.rank, one.minibatch) for one in found] == [(1, alarm.minibatch)]
    (row,) = run.record.drift("alarm")
    assert (row["rank"], row["minibatch"], row["recovered"]) == (1, alarm.minibatch, False)
    assert row["factor"] == pytest.approx(2, rel=0.15)


def test_one_follower_writes_and_the_next_adds_nothing_twice(tmp_path):
    run = WrittenRun(tmp_path / "run").add(*slowed())
    first, second = Follower(run.record), Follower(run.record)
    assert first.look() and second.look()
    assert len(run.record.drift()) == 1, "two follow, one writes"
    del first
    third = Follower(run.record)
    assert third.look() and len(run.record.drift()) == 1, "what is there is not written again"


def test_torn_damaged_and_replaced_files_are_followed(tmp_path):
    """A torn line waits for its end, a damaged one is passed over, of another file only what is new counts."""
    run, (spans, sizes) = WrittenRun(tmp_path / "run"), slowed()
    run.add(spans, sizes, numbers=range(20))
    path = tmp_path / "run" / "trace-rank0.jsonl"
    whole = path.read_text()
    path.write_text(whole[:-20])
    rows = RunRows(run.folder)
    seen, told = rows.read()
    assert len(told) == 20 and len([s for s in seen if s.rank == 0]) == whole.count("\n") - 1
    path.write_text(whole + "no row\n" + '{"left_out": [3, 4], "spans": 2}\n')
    assert [s.rank for s in rows.read()[0]] == [0] and rows.damaged == 1
    other = tmp_path / "run" / "other"
    other.write_text("".join(whole.splitlines(keepends=True)[10:]))
    other.replace(path)
    assert rows.read() == ([], {})
    run.add(spans, sizes, numbers=range(20, 22))
    newest, told = rows.read()
    assert {s.minibatch for s in newest} == {20, 21} == set(told)


def test_a_plan_that_changes_is_followed(tmp_path):
    layers = [layer.id for layer in PROFILE.graph.layers]
    other = Plan((Stage(tuple(layers[:20]), (0,)), Stage(tuple(layers[20:]), (1,))))
    run, (spans, sizes) = WrittenRun(tmp_path / "run"), drifting(Piece(60))
    follower = Follower(run.record)
    run.add(as_measured(spans), sizes)
    assert not follower.look()
    begin_plan(run.folder, other, 60)
    last = max(span.end for span in spans)
    more, sizes = drifting(Piece(60), plan=other, seed=1)
    later = [s._replace(start=s.start + last, end=s.end + last) for s in as_measured(more)]
    run.add(later, sizes, shift=60)
    assert not follower.look(), "other layers take other times"
    assert [one.minibatches for one in follower.watch.standings[:2]] == [120, 120]
    assert not drift_of(RunRecord.load(run.folder)).alarms
    (run.folder / "plan.json").write_text("{")
    assert not follower.look(), "a record that is damaged now is told by others"


def test_the_verb_tells_it(tmp_path):
    folder = written(tmp_path / "run").folder
    code, out, told = sparsepipe("runs", "drift", folder, "--json")
    document = json.loads(out)
    assert code == 0 and not told
    assert document["alarms"][0]["rank"] == 1 and document["factors"]["ranks"][0] == 1
    assert [row.get("rank") for row in document["standings"]] == [0, 1, None]
    code, out, _ = sparsepipe("runs", "drift", folder)
    assert code == 0 and mentions(out, "rank 1", 2) and "since minibatch" in out


def test_the_verb_takes_a_profile(tmp_path):
    folder = written(tmp_path / "run", named=False).folder
    PROFILE.save(tmp_path / "profile.json")
    (tmp_path / "cluster.toml").write_text(cluster_with().to_toml())
    given = ("--profile", tmp_path / "profile.json", "--cluster", tmp_path / "cluster.toml")
    assert sparsepipe("runs", "drift", folder, *given)[0] == 0
    code, _, told = sparsepipe("runs", "drift", folder)
    assert code == 2 and len(told) == 1 and "give --profile" in told[0]
    code, _, told = sparsepipe("runs", "drift", folder, *given[2:], "--memory", "1GB")
    assert code == 2 and len(told) == 1 and "change them" in told[0]


def damaged_trace(run):
    (run.folder / "trace-rank0.jsonl").write_text('{"rank": "0"}\n{"rank": 0}\n')


def damaged_metrics(run):
    (run.folder / "metrics.jsonl").write_text('{"event": "step", "minibatch": "3"}\n')


def damaged_profile(run):
    (run.folder / "profile.json").write_text('{"format": 3}')


def another_network(run):
    write_json(run.folder / "plan.json", Plan((Stage(("other",), (0,)),)).to_json())
    (run.folder / "plans" / "000.json").unlink()


def another_unit(run):
    text = (run.folder / "metrics.jsonl").read_text()
    (run.folder / "metrics.jsonl").write_text(text.replace("voxels", "tokens"))


def nothing_done(run):
    for path in run.folder.glob("*.jsonl"):
        path.unlink()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (damaged_trace, "trace-rank0.jsonl:1"),
        (damaged_metrics, "metrics.jsonl:1"),
        (damaged_profile, "profile.json"),
        (another_network, "the plan cannot run"),
        (another_unit, "have no size in voxels"),
        (nothing_done, "no completed minibatches yet"),
    ],
)
def test_what_is_damaged_or_of_another_kind_is_one_line(damage, told, tmp_path):
    run = WrittenRun(tmp_path / "run").add(*slowed())
    damage(run)
    code, out, lines = sparsepipe("runs", "drift", run.folder)
    assert code == 2 and not out and len(lines) == 1 and told in lines[0]


def several(folder, *parts):
    """A run of pipelines on ranks (0, 2) and (1, 3), each with the spans and sizes of a run of its own."""
    plans = [Plan(tuple(Stage(s.layers, (2 * s.ranks[0] + k,)) for s in halves().stages)) for k in range(2)]
    whole = Plan.together(tuple(plans), parse_rule("partial-reduce"))
    record = RunRecord.create(folder, whole, {"engine": "replay", "model": "vgg"}, Origin())
    PROFILE.save(folder / "profile.json")
    (folder / "cluster.toml").write_text(cluster_with(devices=4).to_toml())
    for k, (spans, sizes) in enumerate(parts):  # they take minibatches in turn
        own = [span._replace(minibatch=2 * span.minibatch + k) for span in spans]
        WrittenRun(folder / "pipelines" / str(k)).add(own, {2 * m + k: size for m, size in sizes.items()})
    return record


def test_of_several_pipelines_each_is_held_against_its_own_plan(tmp_path):
    """What is found is what is found of each by itself, with ranks and links as in the plan's file."""
    healthy, slow = drifting(Piece(140), seed=1), slowed()
    record = several(tmp_path / "run", (as_measured(healthy[0]), healthy[1]), slow)
    watch, alone = drift_of(record), drift_of(record.pipelines[1])
    (alarm,), (own,) = watch.alarms, alone.alarms
    assert own.rank == 1 and alarm == replace(own, rank=3, pipeline=1)
    names = ["rank 0", "rank 2", "link 0-2", "rank 1", "rank 3", "link 1-3"]
    assert [one.name for one in watch.standings] == [f"pipeline {k // 3}, {name}" for k, name in enumerate(names)]
    assert watch.factors.ranks == (1, 1, 1, alone.factors.ranks[1])
    follower = Follower(record)
    assert follower.look() == [alarm]
    (row,) = record.drift("alarm")
    assert (row["pipeline"], row["rank"]) == (1, 3)
    code, out, _ = sparsepipe("runs", "drift", record.folder)
    assert code == 0 and mentions(out, "rank 3", "pipeline 1", 2) and mentions(out, "pipeline 0", "link 0-2")
    begin_plan(record.folder, replace(record.plan, replication=parse_rule("all-reduce")), 200)  # as one that resumed
    assert {one.minibatches for one in drift_of(record).standings if one.rank is not None} == {40}, "under it alone"


def test_a_pipeline_that_is_slow_from_its_beginning_is_so_beside_the_others(tmp_path):
    """By itself all of its ranks are alike, and as slow as that is usual for them."""
    parts = drifting(Piece(140)), drifting(Piece(140, "slow:rank=0,factor=2;slow:rank=1,factor=2"), seed=1)
    record = several(tmp_path / "run", *((as_measured(spans), sizes) for spans, sizes in parts))
    assert drift_of(record.pipelines[1]).factors.ranks == pytest.approx((1, 1), rel=0.15)
    watch = drift_of(record)
    assert watch.factors.ranks == pytest.approx((1, 2, 1, 2), rel=0.15)
    assert [str(alarm).endswith("minibatch 1") for alarm in watch.alarms] == [True] * 2


@pytest.mark.parametrize(
    "row", ['{"event": "alarm", "rank": "1"}', '{"event": "alarm", "factor": -1}', "[]", '{"rank": 1}']
)
def test_a_damaged_row_of_drift_is_named_and_not_added_to(row, tmp_path):
    run = WrittenRun(tmp_path / "run").add(*slowed())
    (run.folder / "drift.jsonl").write_text(row + "\n")
    with pytest.raises(DamagedRecord, match="drift.jsonl:1"):
        run.record.drift()
    assert Follower(run.record).look(), "the run is followed all the same"
    assert (run.folder / "drift.jsonl").read_text() == row + "\n"
