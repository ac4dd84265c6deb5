"""Sweeps: every combination is planned and simulated; the edge is what nothing beats; the verb writes what it says."""

import json
from dataclasses import replace

import pytest
from coded import raises

from sparsepipe import Cluster, CostSample, Layer, LayerCost, LayerGraph, Link, Plan, Profile, plots
from sparsepipe.cli import main
from sparsepipe.planning import partition
from sparsepipe.planning.forecast import forecast
from sparsepipe.planning.sweeps import RATIOS, sweep


def profile(**origin):
    graph = LayerGraph.chain(Layer(id, f"layer {id}", 1000) for id in "abcd")
    cost = LayerCost((CostSample(100, 0.01, 0.02, 4e6), CostSample(200, 0.02, 0.04, 8e6)))
    return Profile(graph, {"cpu": (cost,) * 4}, (100.0, 150.0, 200.0), origin)


def cluster(**given):
    return Cluster.uniform(2, device_type="cpu", link=Link(1e8), **given)


def test_every_combination_is_planned_and_simulated():
    found = sweep({"": profile(batch_size=8)}, cluster(), schedules=["1f1b", "gpipe"], compressions=["none", "int8"])
    names = {(one.planner, one.schedule, one.compression) for one in found.candidates}
    assert len(names) == len(found.candidates) == 3 * 2 * 2
    plain = next(one for one in found.candidates if one.name == "model-parallel 1f1b")
    plan = partition(profile(), cluster(), planner="model-parallel")
    told = forecast(plan, profile(), cluster(), [100.0, 150.0, 200.0] * 16)
    assert plain.samples_per_second == pytest.approx(8 * told.minibatches_per_second)
    assert plain.memory_bytes == max(told.peak_bytes.values())
    smaller = next(one for one in found.candidates if one.name == "model-parallel 1f1b int8")
    assert smaller.samples_per_second >= plain.samples_per_second and smaller.memory_bytes == plain.memory_bytes


def test_a_boundary_that_is_the_bottleneck_is_as_much_faster_as_it_is_smaller():
    thin = Cluster.uniform(2, device_type="cpu", link=Link(1e6))  # 4 to 8 s a boundary; layers take fractions of one
    found = sweep({"": profile()}, thin, planners=["model-parallel"], schedules=["1f1b"], compressions=RATIOS)
    rates = {one.compression: one.samples_per_second for one in found.candidates}
    for name, ratio in RATIOS.items():
        assert rates[name] / rates["none"] == pytest.approx(ratio, rel=0.1)


def test_the_edge_is_what_no_other_beats():
    found = sweep({"a": profile(), "b": profile(batch_size=2)}, cluster(memory_bytes=6e7))
    for one in found.candidates:
        beaten = any(
            other.fits
            and other.samples_per_second >= one.samples_per_second
            and other.memory_bytes <= one.memory_bytes
            and (other.samples_per_second, -other.memory_bytes) != (one.samples_per_second, -one.memory_bytes)
            for other in found.candidates
        )
        alike = [
            best
            for best in found.best
            if (best.samples_per_second, best.memory_bytes) == (one.samples_per_second, one.memory_bytes)
        ]
        assert bool(alike) == (one.fits and not beaten), one.name


def test_what_is_refused_is_left_out_with_its_reason():
    found = sweep({"": profile()}, cluster(), planners=["data-parallel", "model-parallel"], schedules=["1f1b", "zbv"])
    assert found.left_out and all(text.startswith("data-parallel zbv: ") for text in found.left_out)
    with raises("sweep.no_plan", "nothing could be planned: model-parallel 1f1b: no profile for device type"):
        sweep({"": profile()}, Cluster.uniform(2, device_type="gpu"), planners=["model-parallel"], schedules=["1f1b"])
    with raises("compression.not_simulated", "none, bfloat16", compression="zip"):
        sweep({"": profile()}, cluster(), compressions=["zip"])


def test_the_picture_has_a_mark_for_each_and_the_edge():
    found = sweep({"": profile(batch_size=8)}, cluster(), compressions=["none", "int8"])
    beaten = next(one for one in found.candidates if one not in found.best)
    shown = [replace(one, fits=one != beaten) for one in found.candidates]
    figure = plots.trade_off(shown, found.best, note="two cores")
    marks = [trace for trace in figure.data if trace.mode == "markers"]
    assert sum(len(trace.x) for trace in marks) == len(found.candidates)
    assert figure.data[0].name == "Pareto front" and len(figure.data[0].x) == len(found.best)
    assert any(symbol.endswith("-open") for trace in marks for symbol in trace.marker.symbol)
    table = plots.trade_off_table(found.candidates, found.best)
    assert table.best.sum() == len(found.best) and table.samples_per_second.is_monotonic_decreasing
    with raises("plot.nothing"):
        plots.trade_off([])


def test_without_a_batch_size_a_sweep_is_in_minibatches(tmp_path, capsys):
    """Its axis and its column said samples/s of minibatches."""
    found = sweep({"a": profile(), "b": profile(batch_size=8)}, cluster(), planners=["model-parallel"])
    assert {one.counted for one in found.candidates} == {"minibatches"}, "of all: else they could not be compared"
    table = plots.trade_off_table(found.candidates, found.best)
    assert "samples_per_second" not in table and table.minibatches_per_second.is_monotonic_decreasing
    figure = plots.trade_off(found.candidates, found.best)
    assert figure.layout.yaxis.title.text == "minibatches/s, simulated"
    assert main(["sweep", "--profile", str(profile().save(tmp_path / "p.json")), "--devices", "2"]) == 0
    told = capsys.readouterr().out
    assert "minibatches/s" in told and "samples/s" not in told


def test_the_verb_writes_table_picture_and_the_plans_of_the_edge(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "none"))  # tables and the page need none
    path, other = (profile(batch_size=size).save(tmp_path / f"{size}.json") for size in (4, 8))
    words = ["sweep", "--profile", str(path), "--devices", "2", "--bandwidth", "1GB/s", "--variant", f"eight={other}"]
    assert main([*words, "--compression", "int8", "--out", str(tmp_path / "out"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["variant"] for row in document["candidates"]} == {"first", "eight"}
    kept = {name for name in document["files"] if name.endswith(".json") and "/plans/" in name}
    assert len(kept) == sum(row["best"] for row in document["candidates"]) > 0
    assert all(Plan.load(name).stages for name in kept)
    assert (tmp_path / "out" / "sweep.csv").exists() and "plotly" in (tmp_path / "out" / "sweep.html").read_text()
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "samples/s" in told and "* " in told
    assert main([*words[:-1], "eight"]) == 2
    assert capsys.readouterr().err.endswith("[variant.malformed]\n")
