"""Orders of minibatches compared under a plan: what each loses, how random it is, and the command that says so."""

import json
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from coded import raises
from test_simulator import pipeline

from sparsepipe import Cluster, Link, Plan, Stage, partition
from sparsepipe.cli.command import main
from sparsepipe.data import ORDERS, compose
from sparsepipe.planning import Problem, estimate
from sparsepipe.planning.exact.improvement import deepened
from sparsepipe.planning.orders import (
    distance_from_random,
    lognormal_sizes,
    partition_with_sizes,
    simulate_orders,
    sizes_of_profile,
    synchronous_step,
    waiting_pipeline,
)
from sparsepipe.values.replication import parse_rule


@pytest.mark.parametrize(("stages", "most"), [(2, 1.03), (4, 1.06), (8, 1.12)])
def test_planned_minibatches_lose_a_tenth_of_what_shuffled_ones_do(stages, most):
    """At a coefficient of variation of .5, one scene a minibatch: shuffled 1.24, 1.48 and 1.71 × balanced."""
    machine = pipeline([1.0] * stages, [2.0] * stages)
    found = {one.order: one for one in simulate_orders(*machine, lognormal_sizes(0.5, 768), batch_size=1)}
    assert list(found) == list(ORDERS)
    ratios = {order: one.seconds / one.balanced_seconds for order, one in found.items()}
    assert ratios["planned"] <= most < 1.15 < ratios["shuffle"]
    assert all(one.lower_bound_seconds <= one.seconds for one in found.values())
    assert abs(found["shuffle"].distance) < 0.1 < found["planned"].distance < 1


def test_replicas_with_a_budget_wait_little():
    plan, profile, cluster = pipeline([1.0], [2.0], replicas=(8,))
    sizes = lognormal_sizes(0.5, 1024)
    (found,) = simulate_orders(plan, profile, cluster, sizes, budget=max(4.0, *sizes), orders=["planned"])
    assert found.seconds <= 1.08 * 3 * sum(sizes) / 8


def test_the_distance_from_random_is_none_in_random_order_and_one_when_sorted():
    sizes = lognormal_sizes(0.5, 4000, seed=3)
    assert distance_from_random(sizes) == pytest.approx(0, abs=0.03)
    assert distance_from_random(sorted(sizes)) == pytest.approx(1, abs=0.01)
    assert distance_from_random([1, 9] * 50) < -0.9
    assert distance_from_random([2, 2, 2]) == distance_from_random([4]) == 0
    twice = np.random.default_rng(0).permutation([1.0, 2.0] * 2000)
    assert distance_from_random(twice.tolist()) == pytest.approx(0, abs=0.05), "equal sizes do not count as sorted"


def test_a_synchronous_step_is_what_waits_together():
    assert synchronous_step(pipeline([1.0], [1.0], replicas=(3,))[0]) == 3
    assert synchronous_step(pipeline([1.0, 1.0], [1.0, 1.0])[0]) == 1
    plan, *_ = pipeline([1.0, 1.0], [1.0, 1.0], schedule="gpipe", num_microbatches=6)
    assert synchronous_step(plan) == 6
    several = Plan.alike(replace(plan, num_microbatches=2), 2, parse_rule("all-reduce"), samples=1)
    assert synchronous_step(several) == 4
    pairs = Plan.alike(pipeline([1.0], [1.0], replicas=(2,))[0], 2, parse_rule("all-reduce"), samples=1)
    assert synchronous_step(pairs) == 4


def test_a_pipeline_that_is_empty_after_each_minibatch_keeps_the_random_order():
    machine = pipeline([1.0] * 4, [2.0] * 4, schedule="gpipe", num_microbatches=1)
    (found,) = simulate_orders(*machine, lognormal_sizes(0.5, 768), batch_size=1, orders=["planned"])
    assert waiting_pipeline(machine[0]) is None and abs(found.distance) < 0.1
    deep = pipeline([1.0] * 4, [2.0] * 4)[0]
    assert waiting_pipeline(deep) == deep and waiting_pipeline(pipeline([1.0], [1.0], replicas=(3,))[0]) is None


def test_sizes_are_drawn_as_the_profile_counted_them():
    _, profile, _ = pipeline([1.0], [2.0])
    with raises("simulation.sizes_unknown"):
        sizes_of_profile(profile, 4)
    spread = {"least": 10.0, "most": 1000.0, "histogram": [3, 1]}
    known = replace(profile, origin={"sample_sizes": spread})
    drawn = np.array(sizes_of_profile(known, 4000))
    assert drawn.min() >= 10 and drawn.max() <= 1000
    assert (drawn < 100).mean() == pytest.approx(0.75, abs=0.03)
    assert drawn.tolist() == sizes_of_profile(known, 4000)


def test_lognormal_sizes_have_the_mean_and_the_variation_asked_for():
    drawn = np.array(lognormal_sizes(0.5, 40_000, mean=7.0))
    assert drawn.mean() == pytest.approx(7.0, rel=0.02) and drawn.std() / drawn.mean() == pytest.approx(0.5, rel=0.03)


def test_the_command_compares_orders(tmp_path, capsys):
    plan, profile, _ = pipeline([1.0, 1.0], [2.0, 2.0])
    files = [plan.save(tmp_path / "plan.json"), "--profile", profile.save(tmp_path / "profile.json"), "--devices", 2]
    orders = ["--order", "shuffle", "--order", "planned"]
    words = list(map(str, ["simulate", *files, *orders, "--sizes", "lognormal:cv=0.5", "--minibatches", 64]))
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] == 64 and found["coefficient_of_variation"] == pytest.approx(0.5, abs=0.2)
    shuffled, planned = found["orders"]
    assert (shuffled["order"], planned["order"]) == ("shuffle", "planned")
    assert planned["lower_bound_seconds"] <= planned["seconds"] < shuffled["seconds"]
    assert planned["lost_seconds"] == pytest.approx(planned["seconds"] - planned["balanced_seconds"])
    assert main(words) == 0
    assert "planned" in capsys.readouterr().out
    for wrong, code in (
        (["--sizes", "normal:cv=1"], "simulation.distribution_unknown"),
        (["--order", "planned", "--sizes", "lognormal:cv=1e30"], "simulation.distribution_unknown"),
        (["--sizes", "lognormal:cv=0.5", "--data", "x"], "option.two_sources"),
        (["--data", "x"], "simulation.no_voxel_size"),
        ([], "simulation.sizes_unknown"),
        (["--straggler", "slow:rank=0,factor=2"], "option.of_one_order"),
    ):
        assert main([*map(str, ["simulate", *files, *orders, *wrong])]) == 2
        assert f"[{code}]" in capsys.readouterr().err
    for wrong in (["--sizes", "lognormal:cv=1"], ["--batch-voxels", "9"]):
        assert main([*map(str, ["simulate", *files, *wrong])]) == 2
        assert "[option.of_orders]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("budget", "most"), [(["--batch-voxels", "4"], 4), (["--batch-seconds", "15"], 5), (["--batch-bytes", "12"], 6)]
)
def test_the_command_composes_by_a_budget(tmp_path, capsys, budget, most):
    """A minibatch of size 1 takes 3 s on a stage, and keeps 2 bytes."""
    plan, profile, cluster = pipeline([1.0, 1.0], [2.0, 2.0])
    costs = tuple(
        replace(cost, samples=tuple(replace(sample, saved_bytes=2.0) for sample in cost.samples))
        for cost in profile.costs["d"]
    )
    profile = replace(profile, costs={"d": costs}, origin={"sample_sizes": {"least": 0.5, "most": 2, "histogram": [1]}})
    files = [plan.save(tmp_path / "plan.json"), "--profile", profile.save(tmp_path / "profile.json"), "--devices", 2]
    words = list(map(str, ["simulate", *files, "--order", "planned", "--minibatches", 32, "--json"]))
    assert main([*words, *budget]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["budget"] == pytest.approx(most, rel=1e-3) and found["batch_size"] is None
    drawn = sizes_of_profile(profile, found["samples"])
    (expected,) = simulate_orders(plan, profile, cluster, drawn, budget=found["budget"], orders=["planned"])
    assert found["orders"][0]["seconds"] == pytest.approx(expected.seconds)
    for wrong, code in (
        ([*budget, "--batch-size", "2"], "setting.two_budgets"),
        ([budget[0], "1e14"], "simulation.too_many_samples"),
    ):
        assert main([*words, *wrong]) == 2
        assert f"[{code}]" in capsys.readouterr().err
    assert main([*words, "--batch-size", "1e8"]) == 2
    assert "[simulation.too_many_samples]" in capsys.readouterr().err


def plans_of(profile, count):
    """Every plan of a chain on identical devices: runs of layers, replicas of each."""
    names = [layer.id for layer in profile.graph.layers]
    for stages in range(1, count + 1):
        for cuts in combinations(range(1, len(names)), stages - 1):
            bounds = [0, *cuts, len(names)]
            for replicas in product(range(1, count + 1), repeat=stages):
                if (used := sum(replicas)) <= count:
                    ranks = np.split(np.arange(used), np.cumsum(replicas)[:-1])
                    runs = zip(bounds, bounds[1:], ranks, strict=False)
                    yield Plan(tuple(Stage(tuple(names[a:b]), tuple(own.tolist())) for a, b, own in runs))


@pytest.mark.parametrize(("cv", "order"), [(0.05, "shuffle"), (1.0, "shuffle"), (1.0, "planned")])
def test_plans_that_count_sizes_are_the_fastest_of_each_number_of_stages_by_brute_force(cv, order):
    random = np.random.default_rng(7)
    costs = random.uniform(1, 2, 5)
    _, profile, _ = pipeline(costs.tolist(), (2 * costs).tolist(), [0.3] * 4, parameter_bytes=1.5)
    cluster = Cluster.uniform(4, device_type="d", link=Link(1.0))
    sizes = lognormal_sizes(cv, 192)
    problem, best = Problem(profile, cluster), {}
    for plan in plans_of(profile, 4):
        period = estimate(plan, problem).period_seconds
        for most in range(len(plan.stages), 5):
            known = best.get(most, (np.inf, None))
            best[most] = min(known, (period, deepened(plan, problem)), key=lambda pair: pair[0])
    expected = {
        period: simulate_orders(plan, profile, cluster, sizes, batch_size=1, orders=[order])[0].seconds
        for period, plan in best.values()
    }
    found = partition_with_sizes(profile, cluster, sizes, batch_size=1, order=order)
    periods = [pair.plan.estimate.period_seconds for pair in found]
    assert sorted(periods) == pytest.approx(sorted(expected)) and len(expected) > 1
    seconds = [pair.forecast.seconds for pair in found]
    assert seconds == sorted(seconds)
    assert seconds[0] == pytest.approx(min(expected.values()), rel=1e-9)
    whole = partition(profile, cluster)
    assert max(len(pair.plan.stages) for pair in found) == len(whole.stages)


def test_the_command_plans_with_sizes(tmp_path, capsys):
    _, profile, _ = pipeline([1.0, 1.1, 1.2], [2.0, 2.2, 2.4], parameter_bytes=9.0)
    words = [
        "plan",
        "--profile",
        str(profile.save(tmp_path / "profile.json")),
        "--devices",
        "3",
        "--bandwidth",
        "1 B/s",
    ]
    asked = ["--sample-sizes", "lognormal:cv=0.8", "--order", "shuffle", "--batch-size", "1"]
    assert main([*words, *asked, "--out", str(tmp_path / "plan.json"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    compared = document["with_sizes"]["plans"]
    assert [one["seconds"] for one in compared] == sorted(one["seconds"] for one in compared) and len(compared) > 1
    assert compared[0]["plan"]["stages"] == document["stages"]
    assert Plan.load(tmp_path / "plan.json").to_json()["stages"] == document["stages"]
    sizes = lognormal_sizes(0.8, 256, mean=profile.size())
    (first, *_) = partition_with_sizes(
        profile, Cluster.uniform(3, device_type="d", link=Link(1.0)), sizes, batch_size=1
    )
    assert compared[0]["seconds"] == pytest.approx(first.forecast.seconds)
    assert main([*words, *asked]) == 0
    assert "lost to sizes" in capsys.readouterr().out
    for wrong, code in (
        (["--batch-size", "1"], "option.of_orders"),
        (["--order", "snake"], "simulation.sizes_unknown"),
        ([*asked, "--pipelines", "2"], "option.of_one_pipeline"),
        ([*asked, "--objective", "latency"], "option.of_planner"),
        ([*asked, "--batch-voxels", "3"], "setting.two_budgets"),
    ):
        assert main([*words, *wrong]) == 2
        assert f"[{code}]" in capsys.readouterr().err


def test_a_cost_model_without_a_limit_on_stages_has_one_plan():
    _, profile, cluster = pipeline([1.0] * 3, [2.0] * 3, parameter_bytes=9.0)
    (found,) = partition_with_sizes(profile, cluster, [1.0, 3.0] * 8, batch_size=1, cost_model="dnn-partitioning")
    assert found.plan.stages == partition(profile, cluster, cost_model="dnn-partitioning").stages


def test_time_lost_to_sizes_is_that_of_training():
    _, profile, cluster = pipeline([1.0] * 3, [2.0] * 3)
    with raises("planner.sizes_of_training"):
        partition_with_sizes(profile, cluster, [1.0, 3.0] * 8, batch_size=1, objective="latency")


@pytest.mark.parametrize(("verb", "option"), [("plan", "--sample-sizes"), ("simulate", "--sizes")])
def test_unknown_sizes_name_the_option_that_each_verb_has(verb, option, tmp_path, capsys):
    """`plan --sizes` are the layers of each stage, for DynPipe's planner."""
    plan, profile, _ = pipeline([1.0, 1.0], [2.0, 2.0])
    files = [plan.save(tmp_path / "plan.json")] if verb == "simulate" else []
    files += ["--profile", profile.save(tmp_path / "profile.json"), "--devices", 2, "--order", "shuffle"]
    assert main([verb, *map(str, files)]) == 2
    error = capsys.readouterr().err
    assert "[simulation.sizes_unknown]" in error and f" {option} " in error


def test_pipelines_share_what_is_composed():
    plan, profile, _ = pipeline([1.0, 1.0], [2.0, 2.0], schedule="gpipe", num_microbatches=2)
    several = Plan.alike(plan, 2, parse_rule("all-reduce"), samples=1)
    cluster = Cluster.uniform(4, device_type="d", link=Link(1.0))
    sizes = lognormal_sizes(0.5, 64)
    found = simulate_orders(several, profile, cluster, sizes, batch_size=1)
    assert all(one.lower_bound_seconds <= one.seconds * (1 + 1e-9) for one in found)
    assert sorted(sum(compose(sizes, batch_size=1, order="planned", step=4), ())) == list(range(64))
