"""Sizes in the partition explorer: each order loses what the command line says, beside the slider's path."""

import json
import threading
from dataclasses import replace

import pytest
from coded import raises
from processes import until

from sparsepipe import Cluster, CostSample, Layer, LayerCost, LayerGraph, Link, Profile
from sparsepipe.cli import main
from sparsepipe.util.text.numbers import sizes_spread
from sparsepipe.views.widgets import PartitionExplorer
from sparsepipe.views.widgets import sizes as sizes_module
from sparsepipe.views.widgets.explorer_controls import AS_PROFILED, LOGNORMAL
from sparsepipe.views.widgets.sizes import SEED, AskedSizes, Superseded

SCANS = [400.0, 450, 700, 800, 820, 830, 900, 2600]
FACTS = {"batch_size": 2, "voxel_size": 0.04}


def profile_of(**origin):
    def cost(size):
        return CostSample(size, 1e-5 * size, 2e-5 * size, 1e2 * size, 0, 1e2 * size)

    layers = tuple(Layer(f"conv{k}", "", 1e5) for k in range(8))
    costs = {"gpu": tuple(LayerCost((cost(200), cost(20_000))) for _ in layers)}
    return Profile(LayerGraph.chain(layers), costs, (1900.0,), FACTS | origin)


@pytest.fixture
def profile():
    return profile_of(sample_sizes=sizes_spread(SCANS))


@pytest.fixture
def explorer(profile, tmp_path):
    return explorer_of(profile, figures=tmp_path / "figures")


def explorer_of(profile, **folders):
    made = PartitionExplorer(profile, Cluster.uniform(4, device_type="gpu", link=Link(1e9, 1e-5)), **folders)
    made.controls.plan.planner.value = "model-parallel"
    assert len(made.plan.stages) == 4
    return made


def asked(explorer):
    return AskedSizes(explorer.current(), explorer.controls.sizes.cv, explorer.view.serial)


def forecast(explorer):
    return explorer.view.sizes.forecast(asked(explorer))


def drawn(explorer):
    """What the page shows of sizes, once it is of the picture."""

    def scene():
        return json.loads(explorer.view.drawing.sizes)

    until(lambda: scene().get("serial") == explorer.view.serial, "the orders of the plan on screen")
    return scene()


def printed(explorer, profile, folder, capsys, *options):
    plan = explorer.plan.save(folder / "plan.json")
    (folder / "cluster.toml").write_text(explorer.shown_cluster.to_toml())
    given = ("--profile", profile.save(folder / "profile.json"), "--cluster", folder / "cluster.toml", "--seed", SEED)
    orders = [word for order in ("shuffle", "snake", "planned") for word in ("--order", order)]
    assert main([str(word) for word in ("simulate", plan, *given, *orders, *options, "--json")]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("distribution", "options"), [(AS_PROFILED, ()), (LOGNORMAL, ("--sizes", "lognormal:cv=0.8"))])
def test_each_order_loses_what_the_command_line_says(explorer, profile, tmp_path, capsys, distribution, options):
    explorer.controls.sizes.variation.value = 0.8
    explorer.controls.sizes.distribution.value = distribution
    compared = forecast(explorer)
    count = compared.orders[0].minibatches
    document = printed(explorer, profile, tmp_path, capsys, *options, "--minibatches", count)
    assert [epoch.to_json() for epoch in compared.orders] == document["orders"]
    assert compared.cv == document["coefficient_of_variation"] and sum(compared.counts) > 0
    shown = drawn(explorer)
    assert [name for name, *_ in shown["orders"]] == ["shuffle", "snake", "planned", "any order"]
    over = [epoch["seconds"] / epoch["balanced_seconds"] for epoch in document["orders"]]
    assert [row[1] for row in shown["orders"][:3]] == over
    assert [row[2] for row in shown["orders"][:3]] == [f"{value:.2f} × balanced" for value in over]
    assert shown["orders"][3][1] == compared.lower_bound <= min(over) + 1e-9


def test_the_histogram_is_the_profiles_in_the_sizes_of_the_sliders(explorer, profile):
    spread = profile.origin["sample_sizes"]
    before = forecast(explorer)
    assert before.counts == tuple(spread["histogram"])
    explorer.controls.workload.voxel_size.value = 0.08  # a quarter of the voxels
    finer = forecast(explorer)
    assert finer.counts == before.counts and finer.cv == pytest.approx(before.cv)
    assert finer.mean == pytest.approx(before.mean / 4) and finer.most == pytest.approx(before.most / 4)
    explorer.controls.workload.batch_size.value = 8  # of samples that are as large
    many = forecast(explorer)
    assert many.least == pytest.approx(finer.least) and many.mean == pytest.approx(finer.mean, rel=0.1)
    assert many.orders[0].seconds / many.orders[0].balanced_seconds < finer.orders[0].seconds / (
        finer.orders[0].balanced_seconds
    ), "more samples of a minibatch differ less"


def test_sizes_are_drawn_if_the_profile_has_none():
    explorer = explorer_of(profile_of())
    sizes = explorer.controls.sizes
    assert sizes.distribution.options == (LOGNORMAL,) and not sizes.variation.disabled and sizes.cv == 0.5
    compared = forecast(explorer)
    assert compared.cv == pytest.approx(0.5, rel=0.2) and compared.mean == pytest.approx(950, rel=0.1)
    assert sum(compared.counts) == 2 * compared.orders[0].minibatches


def test_equal_sizes_lose_nothing_in_any_order(explorer):
    explorer.controls.sizes.distribution.value = LOGNORMAL
    explorer.controls.sizes.variation.value = 1e-6
    assert [row[1] for row in drawn(explorer)["orders"][:3]] == pytest.approx([1, 1, 1], abs=1e-4)


def test_plans_whose_stages_take_the_same_time_share_a_forecast(explorer):
    first = forecast(explorer)
    explorer.controls.devices.memory.value = 1e10
    assert explorer.plan and forecast(explorer) is first
    explorer.controls.devices.inside.value = 1e7
    assert forecast(explorer) is not first
    explorer.controls.devices.inside.value = 1e9
    assert forecast(explorer) is first
    explorer.controls.plan.schedule.value = "1f1b-flush"
    assert forecast(explorer) is not first


def test_a_move_simulates_no_order_itself(profile, monkeypatch):
    simulate, threads = sizes_module.simulate_orders, []

    def simulated(*given, **options):
        threads.append(threading.current_thread())
        return simulate(*given, **options)

    monkeypatch.setattr(sizes_module, "simulate_orders", simulated)
    explorer = explorer_of(profile)
    for count in (3, 2, 3, 4):
        explorer.controls.devices.counts["gpu"].value = count
    drawn(explorer)
    assert threading.main_thread() not in threads
    assert len(threads) == 3, "once for each order of the last plan: the moves before it simulated none"


def test_orders_of_a_plan_before_are_given_up(explorer):
    calls = iter([False, True])
    fresh = explorer_of(explorer.profile)
    with pytest.raises(Superseded):
        fresh.view.sizes.forecast(asked(fresh), lambda: next(calls))
    shown = fresh.view.drawing.sizes
    fresh.view.draw_sizes(replace(asked(fresh), serial=77), superseded=lambda: True)
    assert fresh.view.drawing.sizes == shown or drawn(fresh)["serial"] != 77
    assert forecast(fresh).orders == forecast(explorer).orders, "what was given up is not remembered"


def test_what_would_take_too_long_is_said_and_left_out_of_the_export(explorer):
    explorer.controls.workload.batch_size.value = 200_000
    with raises("explorer.epoch_too_long"):
        forecast(explorer)
    shown = drawn(explorer)
    assert shown["orders"] == shown["counts"] == [] and shown["told"]
    assert "explorer_orders" not in explorer.exporter.make().figures


def test_orders_are_exported_with_what_they_rest_on(explorer):
    explorer.controls.sizes.distribution.value = LOGNORMAL
    made = explorer.exporter.make()
    _, table = made.figures["explorer_orders"]
    compared = forecast(explorer)
    assert list(table.order) == ["shuffle", "snake", "planned"]
    assert list(table.over_balanced) == [epoch.seconds / epoch.balanced_seconds for epoch in compared.orders]
    sizes = made.origin.settings["sizes"]
    count = compared.orders[0].minibatches
    assert sizes == {"distribution": "lognormal:cv=0.5", "batch_size": 2, "minibatches": count, "seed": SEED}
    assert made.origin.plans


def test_orders_of_several_pipelines_are_those_of_the_command_line(explorer, profile, tmp_path, capsys):
    explorer.controls.pipelines.slider.value = 2
    explorer.current()
    compared = forecast(explorer)
    document = printed(explorer, profile, tmp_path, capsys, "--minibatches", compared.orders[0].minibatches)
    assert [epoch.to_json() for epoch in compared.orders] == document["orders"]
    assert drawn(explorer)["orders"]
