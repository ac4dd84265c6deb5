import json
from dataclasses import replace

import pytest
from coded import mentions, raises

from sparsepipe import Cluster, InputError, Layer, LayerGraph, Plan, Stage
from sparsepipe.util.io.files import write_json
from sparsepipe.values.plan import Estimate, StageEstimate
from sparsepipe.values.replication import parse_rule
from sparsepipe.values.schedule import compile_until_steady
from sparsepipe.views import html

GRAPH = LayerGraph.chain(map(Layer, "abcd"))


def plan(**changes) -> Plan:
    stages = (
        Stage(("a", "b"), (0, 1), (2, 1), ("big", "small"), ("n", "n")),
        Stage(("c", "d"), (2,), (1,), ("big",), ("n",)),
    )
    return Plan(**({"stages": stages} | changes))


def test_a_good_plan_has_no_violations():
    assert plan().check(GRAPH, Cluster.uniform(3)) == plan()


def test_shares_take_turns_smoothly():
    assert Stage(("a",), (5, 7), (2, 1)).turns == (0, 1, 0)
    assert [Stage(("a",), (5, 7), (2, 1)).replica(m) for m in range(6)] == [5, 7, 5, 5, 7, 5]
    assert Stage(("a",), (0, 1, 2), (3, 1, 2)).turns.count(0) == 3


def test_disk_round_trip(tmp_path):
    estimate = Estimate(0.5, (StageEstimate(0.5, 10.0), StageEstimate(0.4, 20.0, 0.1, 0.2)), 0.4, 0.01, 1.0, 0.6, 100.0)
    whole = plan(schedule="gpipe", num_microbatches=4, planner="optimal", estimate=estimate, warnings=("careful",))
    assert Plan.load(whole.save(tmp_path / "plan.json")) == whole
    document = json.loads((tmp_path / "plan.json").read_text())
    assert document["gap"] == pytest.approx(0.2)
    for change in (
        {"num_microbatches": 2},
        {"stages": [{**document["stages"][0], "recompute": True}, *document["stages"][1:]]},
    ):
        edited = Plan.from_json(document | change)
        assert edited.estimate is None and edited.warnings != whole.warnings, "it holds for what was planned"
    assert document["stages"][0]["replicas"][0] == {"rank": 0, "device_type": "big", "node": "n", "share": 2}
    assert "careful" in str(whole)


def test_a_table_names_neighbouring_ranks_together():
    ranks, kinds = (0, 1, 2, 5, 6), ("big", "big", "big", "big", "small")
    even = Plan((Stage(("a",), ranks, device_types=kinds), Stage(("b", "c", "d"), (3,))))
    assert [line.split("  ")[-1] for line in str(even).splitlines()[2:]] == ["big 0–2, big 5, small 6", "rank 3"]
    uneven = Plan((Stage(("a",), (0, 1, 2), (2, 2, 1)),))
    assert str(uneven).splitlines()[2].endswith("rank 0–1 (2/5 each), rank 2 (1/5)")


def test_a_plan_tells_of_forwards_that_it_asks_for_beyond_its_schedule():
    """The same stage had 41.6 MB under one planner and 28.2 MB under another, and nothing said why."""
    asked = replace(plan(), stages=(replace(plan().stages[0], warmup=3), plan().stages[1]))
    told = "warm-up forwards before the first backward: 3 of stage 0; memory includes their activations"
    assert str(asked).splitlines()[-1] == told and told in html(asked)
    assert "forwards" not in str(plan()) and "forwards" not in html(plan())


def test_recomputed_segments_are_checked_written_and_shown(tmp_path):
    first, last = plan().stages
    segmented = plan(stages=(replace(first, segments=(("a", "a"), ("b", "b"))), replace(last, recompute=True)))
    assert Plan.load(segmented.check(GRAPH).save(tmp_path / "plan.json")) == segmented
    assert "segments" not in plan().to_json()["stages"][0] and Plan.from_json(plan().to_json()) == plan()
    for shown in (str(segmented), html(segmented)):
        assert mentions(shown, "stage 0 recomputes", "a, b", "stage 1 recomputes")
    wrong = (
        ("plan.segment_outside_stage", (("a", "c"),)),
        ("plan.segment_reversed", (("b", "a"),)),
        ("plan.segments_overlap", (("a", "b"), ("b", "b"))),
        ("plan.segments_overlap", (("b", "b"), ("a", "a"))),
    )
    for code, segments in wrong:
        stage = replace(first, segments=segments)
        with raises(code):
            stage.segment_places(stage.layers)
        (fault,) = plan(stages=(stage, last)).violations(GRAPH)
        assert fault.startswith("stage 0: ")
    (fault,) = plan(stages=(first, replace(last, recompute=True, segments=(("c", "d"),)))).violations(GRAPH)
    assert "stage 1" in fault
    document = segmented.to_json()
    for entry in ("a", ["a", "b"], [["a", "b", "b"]], [["a", 1]]):
        document["stages"][0]["segments"] = entry
        with pytest.raises(InputError):
            Plan.from_json(document)


def test_every_violation_is_listed():
    broken = Plan((Stage(("a", "z"), (0, 0)), Stage((), (9,)), Stage(("c",), ())), schedule="2f2b", num_microbatches=0)
    found = broken.violations(GRAPH, Cluster.uniform(2))
    for expected in (
        "schedule '2f2b' is unknown",
        "num_microbatches is 0",
        "stage 1 has no layers",
        "stage 2 has no ranks",
        "rank 0 serves more than one replica",
        "for a different graph: 1 of its layers (z)",
        "2 layers of the graph are in no stage (b, d)",
        "rank 9 is not in a cluster of 2 devices",
    ):
        assert any(expected in line for line in found), (expected, found)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        (
            {"stages": (Stage(("c", "d"), (0,)), Stage(("a", "b"), (1,)))},
            ("plan.violations", "'b' of stage 1 feeds 'c' of the earlier stage 0"),
        ),
        ({"stages": (Stage(("a", "b", "c", "d"), (0, 1), (1,)),)}, ("plan.violations", "1 shares for 2 ranks")),
        ({"stages": (Stage(("a", "b", "c", "d"), (0, 1), (1, 0)),)}, ("plan.violations", "at least 1")),
        (
            {"stages": (Stage(("a", "b"), (0,)), Stage(("b", "c", "d"), (1,)))},
            ("plan.violations", "'b' is in stage 0 and again in stage 1"),
        ),
        ({"stages": ()}, ("plan.violations", "no stages")),
        ({"weights": "flush"}, ("plan.violations", "do not match schedule '1f1b'")),
    ],
)
def test_violations_are_told(changes, error):
    with raises(*error):
        plan(**changes).check(GRAPH)


@pytest.mark.parametrize(
    ("ranks", "changes", "error"),
    [
        (
            [0, 1, 0, 1],
            {"schedule": "2bw"},
            ("plan.violations", "rank 0 serves more than one replica, stages 0 and 2: only schedule"),
        ),
        (
            [0, 1, 0, 1],
            {"schedule": "gpipe"},
            ("plan.violations", "only schedules '1f1b', '1f1b-flush'", "interleave stages"),
        ),
        ([0, 1, 0, 1], {"schedule": "1f1b", "weights": "2bw"}, ("plan.violations", "and not with weights '2bw'")),
        ([(0, 1), 2, (0, 1), 2], {"schedule": "1f1b", "shares": (2, 1)}, ("plan.violations",)),
        ([0, 1, 1, 0], {}, ("plan.violations",)),
        ([0, 1, 0, 1], {"schedule": "zbv"}, ("plan.violations",)),
        (
            [0, 1, 2, 3],
            {"schedule": "zbv"},
            ("plan.violations", "schedule 'zbv' puts 2 stages on each device, but this plan has 1"),
        ),
        (
            [0, 0, 0, 0],
            {"schedule": "dualpipe-v"},
            ("plan.violations", "schedule 'dualpipe-v' puts 2 stages on each device, but this plan has 4"),
        ),
        (
            [0, 1, 2, 3],
            {"schedule": "interleaved-zero-bubble"},
            ("plan.violations", "puts at least 2 stages on each device, but this plan has 1"),
        ),
        ([0, 1, 2, 0], {}, ("plan.violations", "whole laps over all ranks")),
        ([0, 1, 0, 2], {}, ("plan.violations", "whole laps over all ranks")),
        ([0, 0, 0, 1], {}, ("plan.violations", "whole laps over all ranks")),
        ([0, 1, 0, 1], {"warmup": 3}, ("plan.violations", "stage 0 has a warm-up of its own")),
        ([(0, 1), (2, 3), (0, 1), (2, 3)], {"shares": (2, 1)}, ("plan.violations",)),
        ([(0, 1), 2, (1, 0), 2], {}, ("plan.violations",)),
    ],
)
def test_interleaved_stages_come_in_laps(ranks, changes, error):
    teams = [one if isinstance(one, tuple) else (one,) for one in ranks]
    stages = [Stage((id,), team) for id, team in zip("abcd", teams, strict=True)]
    stages[0] = replace(stages[0], **{key: changes[key] for key in ("warmup", "shares") if key in changes})
    made = Plan(tuple(stages), changes.get("schedule", "1f1b-flush"), changes.get("weights", ""), num_microbatches=4)
    with raises(*error):
        made.check(GRAPH)


def test_a_plan_of_laps_names_each_rank_once():
    made = Plan(tuple(Stage((id,), (k % 2,)) for k, id in enumerate("abcd")), "1f1b-flush", num_microbatches=4)
    assert made.check(GRAPH, Cluster.uniform(2)) is made
    assert (made.stages_per_rank, plan().stages_per_rank) == (2, 1)
    assert (made.ranks, made.pipeline_size, made.stages_of(1), made.stages_of(7)) == ((0, 1), 2, (1, 3), ())
    assert mentions(made.summary(), "4 stages", "2 devices") and plan().pipeline_size == len(plan().stages)


def test_input_layers_belong_to_no_stage():
    graph = LayerGraph.chain([Layer("node1", "Input0"), *map(Layer, "abcd")])
    assert plan().violations(graph) == []


@pytest.mark.parametrize("text", ["{}", "[]", '{"format": "sparsepipe-plan-1"}', "{", "null"])
def test_what_is_no_plan_is_refused(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(InputError, match="plan.json"):
        Plan.load(tmp_path / "plan.json")


@pytest.mark.parametrize("field", ["schedule", "stages", "num_microbatches"])
def test_a_plan_with_a_field_of_the_wrong_kind_is_refused(tmp_path, field):
    document = (
        plan().to_json() | {field: {"a": 1}}
        if field != "schedule"
        else {k: v for k, v in plan().to_json().items() if k != field}
    )
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"plan|num_microbatches.*=.*1\}"):
        Plan.load(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        (
            {"accumulation": 10**9},
            ("plan.out_of_bounds", "stage 0 updates after 1000000000 minibatches, expected at most 131072"),
        ),
        ({"accumulation": 3000, "ranks": 60}, ("plan.out_of_bounds", "stage 0 updates after 180000 minibatches")),
        ({"warmup": 10**9}, ("plan.out_of_bounds", "stage 0 has a warm-up of 1000000000 on 1 rank")),
        ({"warmup": 3000, "ranks": 60}, ("plan.out_of_bounds", "stage 0 has a warm-up of 3000 on 60 ranks")),
        ({"num_microbatches": 10**9}, ("plan.out_of_bounds", "num_microbatches is 1000000000")),
        ({"share": 10**9}, ("plan.out_of_bounds", "stage 0 has shares of 1000000000 together")),
    ],
)
def test_numbers_of_a_plans_file_are_bounded_with_their_products(tmp_path, changes, error):
    """A warm-up of 10**9 in a file of a kilobyte filled the memory of whoever looked at it."""
    share, ranks = changes.get("share", 1), changes.get("ranks", 1)
    stage = {"layers": ["a"], "replicas": [{"rank": k, "share": share} for k in range(ranks)]}
    document = Plan((Stage(("a",), (0,)),)).to_json() | {"stages": [stage | {"warmup": changes.get("warmup")}]}
    document |= {key: changes[key] for key in ("accumulation", "num_microbatches") if key in changes}
    path = write_json(tmp_path / "plan.json", document)
    with raises(*error):
        Plan.load(path)


def test_a_plan_whose_numbers_multiply_is_refused_before_it_is_laid_out():
    stages = tuple(Stage((f"l{k}",), (k,), warmup=60_000) for k in range(2))
    with raises("schedule.too_many_minibatches", "2 stages"):
        compile_until_steady(Plan(stages, accumulation=60_000))


def test_a_file_with_another_routing_is_refused(tmp_path):
    path = write_json(tmp_path / "plan.json", plan().to_json() | {"routing": "random"})
    with raises("plan.routing_unknown", "random"):
        Plan.load(path)


def test_what_follows_from_pipelines_is_not_replaced_in_silence():
    own = Plan((Stage(("a",), (0,)), Stage(("b",), (1,))))
    several = Plan.alike(own, 2, parse_rule("all-reduce"))
    for name, value in (("stages", own.stages), ("schedule", "gpipe"), ("num_microbatches", 4)):
        with raises("plan.follows_from_pipelines", name):
            replace(several, **{name: value})
    other = Plan((Stage(("a", "b"), (0, 1)),))
    assert several.with_local(1, other).stages == (*own.stages, Stage(("a", "b"), (2, 3)))
    assert several.with_local(1, other).local(1) == other and own.with_local(0, other) == other
    assert replace(several, warnings=("w",)).stages == several.stages
    assert replace(several, members=several.members[::-1]).stages[0].ranks == (2,)
