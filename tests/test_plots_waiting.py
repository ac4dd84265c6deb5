"""Figures of replication rules: paces, groups, lost seconds."""

import json
import math

import plotly.graph_objects as go
import pytest
from coded import mentions, raises
from test_pipeline_simulator import like_pipelines, network
from test_plots import shows

from sparsepipe import RunRecord, plots, simulate_pipelines
from sparsepipe.errors import DamagedRecord
from sparsepipe.records import Origin
from sparsepipe.records.provenance import Provenance
from sparsepipe.util.io.files import write_json, write_rows
from sparsepipe.values.stragglers import Stragglers
from sparsepipe.views import html
from sparsepipe.views.plots.outcomes import NOBODY
from sparsepipe.views.plots.theme import finished, resting_on

SLOW = "slow:rank=0,factor=4"


def outcome(rule, straggler="", *, seed=0, source="simulated"):
    stragglers = Stragglers.parse(straggler)
    whole, cluster = like_pipelines(3, 1, rule)
    found = simulate_pipelines(whole, network(1), cluster, [1.0] * 36, stragglers=stragglers, seed=seed)
    return plots.Outcome.of(found.to_json()["replication"], stragglers=stragglers, seed=seed, source=source)


@pytest.fixture(scope="module")
def outcomes():
    return [outcome(rule, straggler) for straggler in ("", SLOW) for rule in ("all-reduce", "quorum:grace=0.5")]


def test_paces_stand_in_the_figure_as_in_the_table(outcomes):
    table = plots.waiting_table(outcomes)
    assert list(table.straggler) == [NOBODY] * 2 + ["rank 0 is 4 times as slow"] * 2
    figure = plots.waiting(outcomes, note="4 pipelines")
    shows(figure, table.samples_per_second)
    assert mentions(" ".join(figure.layout.meta["notes"]), "4 pipelines", NOBODY, "rank 0", 4)
    all_reduce, quorum = table[table.straggler != NOBODY].set_index("rule").share_of_own_pace[:2]
    assert all_reduce < 0.5 < 0.95 < quorum  # three of them at the pace of the slowest; nobody waits


def test_seeds_are_a_mean_and_an_interval(outcomes):
    jitter = "jitter:p=0.3,seconds=2"
    several = [outcome("all-reduce", f"{jitter};seed={seed}", seed=seed) for seed in range(3)]
    bar = plots.waiting(several).data[0]
    paces = [one.samples_per_second for one in several]
    assert len(set(paces)) == 3
    assert bar.y[0] == pytest.approx(sum(paces) / 3)
    assert bar.y[0] + bar.error_y.array[0] == pytest.approx(max(paces))
    assert bar.y[0] - bar.error_y.arrayminus[0] == pytest.approx(min(paces))
    assert "whiskers: min–max over seeds" in plots.waiting(several).layout.meta["notes"][0]
    assert "whiskers" not in plots.waiting(several[:1]).layout.title.text
    alone = plots.waiting(several[:1]).data[0]
    assert math.isnan(alone.error_y.array[0])


def test_no_bar_is_higher_than_its_line_of_who_waits_for_nobody(outcomes):
    """One line, the median over rules, stood below bars whose rules had met less jitter."""
    jitter = [f"jitter:p=0.3,seconds=2;seed={seed}" for seed in range(3)]
    rules = ("all-reduce", "quorum:grace=0.5")
    several = [outcome(rule, told, seed=seed) for seed, told in enumerate(jitter) for rule in rules]
    figure = plots.waiting([*outcomes, *several])
    line, bars = figure.data[-1], [trace for trace in figure.data if trace.type == "bar" and trace.x[0] is not None]
    assert "synchronization stalls" in line.name
    pieces = [(line.x[k : k + 2], line.y[k]) for k in range(1, len(line.x), 3)]
    own = plots.waiting_table([*outcomes, *several]).groupby(["straggler", "rule"], sort=False).own_pace.mean()
    assert {round(y, 6) for _, y in pieces} <= {round(pace, 6) for pace in own}
    for bar in bars:
        for x, height in zip(bar.x, bar.y, strict=True):
            (above,) = (y for (left, right), y in pieces if left < x < right)
            assert height <= above * (1 + 1e-9)


def test_what_real_processes_did_is_a_marker_and_no_bar(outcomes):
    figure = plots.waiting([*outcomes, outcome("all-reduce", SLOW, source="emulated")])
    markers = [trace for trace in figure.data if trace.type == "scatter" and trace.mode == "markers"]
    assert [len(trace.x) for trace in markers] == [1, 1]  # and its key in the legend
    names = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert names == ["all-reduce", "quorum:grace=0.5", "simulated", "emulated, by real processes", names[-1]]


def test_groups_are_shares_and_large_values_are_put_together():
    one = plots.Outcome("ad-psgd", "", "simulated", (1.0,), (1.0,), {2: 3, 1: 1}, {0: 1, 9: 1, 30: 2})
    table = plots.groups_table([one])
    assert table.groupby("what").share.sum().tolist() == pytest.approx([1, 1])
    figure = plots.groups([one])
    sizes, late = figure.data
    assert dict(zip(sizes.x, sizes.y, strict=True)) == {2: 75, 1: 25}
    assert dict(zip(late.x, late.y, strict=True)) == {0: 25, 9: 75}
    axes = (figure.layout.yaxis, figure.layout.yaxis2)
    assert [axis.title.text for axis in axes] == ["share of averages (%)", "share of contributions (%)"]
    measured = plots.Outcome("ad-psgd", "", "measured", (1.0,), (1.0,), {2: 3})
    for found, told in (([one], "simulated · "), ([measured], "measured · "), ([one, measured], "")):
        assert list(plots.groups(found).layout.meta["notes"]) == [told + NOBODY]
    with raises("plot.nothing"):
        plots.groups([plots.Outcome("diloco", "", "simulated", (1.0,), (1.0,))])


def written_run(folder, rule, *, seconds=1.0, stragglers=SLOW):
    """A run of two pipelines, written as the coordinator writes it: ten minibatches, each after so many seconds."""
    whole, _ = like_pipelines(2, 1, rule)
    config = {"model": "tiny", "batch_size": 8, "engine": "native", "seed": 3, "stragglers": stragglers}
    record = RunRecord.create(folder, whole, config, Origin(facts={"seed": 3}))
    step = {"event": "step", "epoch": 0, "samples": 8}
    rows = [step | {"seconds": 5 + seconds * k, "minibatch": k, "loss": 2.0 - k / 10} for k in range(10)]
    one = {"minibatches": 5, "samples_per_second": 4.0, "own_pace": 8.0}
    one["lost_seconds"] = {"group": 1.0, "exchange": 0.5, "bound": 0.0}
    told = {"rule": rule, "group_sizes": {"2": 4, "1": 2}, "staleness": {"1": 6}, "pipelines": [one, one]}
    rows.append({"event": "summary", "seconds": 20.0, "samples_per_second": 8.0, "replication": told})
    write_rows(record.folder / "metrics.jsonl", rows)
    applied = [
        {"event": "applied", "seconds": 7.0 + k, "merge": k, "pipeline": p, "applied": True, "distance": 0.01 * (p + k)}
        for k in range(3)
        for p in range(2)
    ]
    merges = [{"event": "merge", "seconds": 6.0, "merge": 0, "members": [0, 1]}, *applied]
    write_rows(record.folder / "merges.jsonl", merges)
    write_json(record.folder / "status.json", {"state": "finished"})
    return record


@pytest.fixture
def trained(tmp_path):
    runs = (("quorum", 1.0), ("all-reduce", 2.0))
    return [written_run(tmp_path / rule, rule, seconds=seconds) for rule, seconds in runs]


def test_a_run_is_an_outcome_as_a_simulation_is(trained):
    one = plots.Outcome.of_run(trained[0])
    assert (one.rule, one.source, one.seed, one.run) == ("quorum", "measured", 3, "quorum")
    assert one.samples_per_second == 8 and one.own_pace == 16 and one.group_sizes == {1: 2, 2: 4}
    assert mentions(one.straggler, "rank 0", 4)
    assert one.lost_seconds == {"group": 2.0, "exchange": 1.0, "bound": 0.0}
    write_rows(trained[0].folder / "metrics.jsonl", [])
    with raises("run.not_finished"):
        plots.Outcome.of_run(trained[0])


def test_losses_are_by_samples_and_by_seconds_since_the_first_minibatch(trained):
    table = plots.losses_table(*trained)
    ends = table.groupby("rule", sort=False).last()
    assert list(ends.samples) == [80, 80] and list(ends.seconds) == [9, 18]
    figure = plots.losses(*trained)
    shows(figure, table.smooth_loss)
    told = figure.layout.title.text
    assert told.count("4 times") == 1 and "doubtful" not in told
    write_rows(trained[0].folder / "metrics.jsonl", [])
    with raises("run.no_loss"):
        plots.losses(trained[0])


def test_what_was_slow_on_purpose_is_no_doubt_of_a_run_and_told_by_every_figure_of_it(trained):
    origin = Provenance.of(runs=trained)
    assert origin.held_up == ("rank 0 is 4 times as slow",) and not any("slow" in text for text in origin.warnings)
    assert Provenance.from_json(json.loads(json.dumps(origin.to_json()))).held_up == origin.held_up
    assert not trained[0].warnings and "injected delay" in html(trained[0])
    for figure in (plots.throughput(*trained), resting_on(finished(go.Figure(), "Where time went"), origin)):
        assert mentions(figure.layout.title.text, "rank 0", 4)


def test_a_run_of_several_pipelines_is_a_strategy_by_its_rule(trained):
    """They were told as one pipeline of as many stages, and their throughput ended with a traceback."""
    table = plots.throughput_table(*trained)
    assert list(table.strategy) == ["2 pipelines (quorum)", "2 pipelines (all-reduce)"]
    assert list(table.samples_per_second) == [8, 8]


def test_distances_are_means_over_members_and_none_where_gradients_are_averaged(trained):
    table = plots.distances_table(*trained).set_index("run")
    assert table.distance["quorum"].tolist() == pytest.approx([0.005, 0.015, 0.025])
    assert table.most_distance["quorum"].tolist() == pytest.approx([0.01, 0.02, 0.03])
    assert set(table.distance["all-reduce"]) == {0.0}
    shows(plots.distances(*trained), 100 * table.distance)
    (trained[1].folder / "merges.jsonl").unlink()
    with raises("run.no_averages"):
        plots.distances(trained[1])


def test_a_damaged_row_of_merges_is_named(trained):
    path = trained[0].folder / "merges.jsonl"
    path.write_text(path.read_text() + '{"event": "applied", "seconds": 9.0, "merge": "two"}\n')
    with pytest.raises(DamagedRecord, match=r"merges.jsonl:8.*merge"):
        trained[0].merges("applied")
