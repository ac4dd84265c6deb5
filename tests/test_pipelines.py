import json
from dataclasses import replace

import pytest
from coded import mentions, raises

from sparsepipe import Cluster, Layer, LayerGraph, Plan, Stage, actions
from sparsepipe.values.plan import Estimate, StageEstimate
from sparsepipe.values.replication import rule
from sparsepipe.values.schedule.program import compile_until_steady
from sparsepipe.views import html

GRAPH = LayerGraph.chain(map(Layer, "abcd"))
RULE = rule("partial-reduce")


def estimated(period, *stages, bound=None):
    expected = tuple(StageEstimate(seconds) for seconds in stages)
    return Estimate(period, expected, bound, single_device_seconds=4.0)


def pipelines(**changes) -> Plan:
    """Cut at different places, on devices that are no neighbours."""
    first = Plan(
        (Stage(("a",), (0,), (), ("big",), ("n",)), Stage(("b", "c", "d"), (3,), (), ("big",), ("m",))),
        estimate=estimated(0.5, 0.5, 0.25),
    )
    second = Plan(
        (Stage(("a", "b"), (4, 1), (2, 1), ("small", "tiny"), ("m", "n")), Stage(("c", "d"), (2,))),
        estimate=estimated(0.25, 0.25, 0.125),
        warnings=("careful",),
    )
    return Plan.together(**({"pipelines": (first, second), "replication": RULE} | changes))


def test_good_pipelines_have_no_violations():
    assert pipelines().check(GRAPH, Cluster.uniform(5)) == pipelines()


def test_without_a_batch_size_its_throughput_is_in_minibatches(tmp_path):
    """Minibatches per second stood there as samples per second."""
    whole = pipelines()
    document = json.loads(whole.save(tmp_path / "plan.json").read_text())
    assert Plan.load(tmp_path / "plan.json") == whole and document["samples"] is None
    assert document["samples_per_second"] is None and document["minibatches_per_second"] == 6
    assert [one["samples_per_second"] for one in document["pipelines"]] == [None, None]
    assert "samples" not in whole.summary() and "minibatches/s" in whole.summary()


def test_disk_round_trip(tmp_path):
    told = {"lower_bound_seconds": 0.15, "plan_seconds": 0.01, "data_parallel_seconds": 0.4}
    whole = pipelines(samples=8.0, warnings=("slow",), **told)
    path = whole.save(tmp_path / "plan.json")
    assert Plan.load(path) == whole
    document = json.loads(path.read_text())
    assert {key: document[key] for key in told} == told
    assert document["samples_per_second"] == 8 * 6
    assert [one["samples_per_second"] for one in document["pipelines"]] == [16, 32]
    assert document["period_seconds"] == pytest.approx(1 / 6)
    assert document["gap"] == pytest.approx((1 / 6 - 0.15) * 6)
    assert [len(one["stages"]) for one in document["pipelines"]] == [2, 2] and len(document["stages"]) == 4
    alone = whole.pipelines[0].save(tmp_path / "alone.json")
    assert Plan.load(alone) == whole.pipelines[0]


def test_a_pipeline_by_itself_has_ranks_from_0():
    whole = pipelines()
    assert [stage.ranks for stage in whole.local(1).stages] == [(2, 0), (1,)]
    assert whole.ranks_of(1) == (1, 2, 4) and whole.first_rank(1) == 2
    assert whole.local(1).stages[0].shares == (2, 1)
    assert [stage.ranks for stage in whole.local(0).stages] == [(0,), (1,)]


def test_a_plan_of_one_is_its_own_pipeline():
    whole = pipelines()
    first = whole.pipelines[0]
    assert first.pipelines == (first,) and first.replication is None and first.one() is first
    assert first.all_warnings == () and first.local(0) is first and first.among_all(0, 3) == 3
    assert (first.prefix(0), whole.prefix(1), whole.among_all(1, 2)) == ("", "pipeline 1: ", 4)
    assert first.with_pipelines([whole.pipelines[1]]) == whole.pipelines[1]
    with raises("plan.several_pipelines", "2 pipelines"):
        whole.one()


def test_what_holds_of_all_follows_from_the_pipelines():
    """However they are changed; only what is proven of others, or was planned, need be given anew."""
    whole = pipelines(lower_bound_seconds=0.15)
    assert whole.stages == tuple(stage for one in whole.pipelines for stage in one.stages)
    assert whole.estimate.period_seconds == pytest.approx(1 / 6) and len(whole.estimate.stages) == 4
    first, second = (replace(one, schedule="gpipe", weights="") for one in whole.pipelines)
    changed = replace(whole, members=(first, whole.pipelines[1]))
    assert changed.schedule == "gpipe+1f1b" and changed.estimate.lower_bound_seconds == 0.15
    other = whole.with_pipelines([first, second])
    assert other == whole.with_schedule("gpipe") and other.schedule == "gpipe" and other.estimate.gap is None
    assert whole.with_pipelines([first, replace(second, estimate=None)]).estimate is None


@pytest.mark.parametrize("use", [lambda plan: actions(plan, 4), compile_until_steady])
def test_several_pipelines_have_no_program_of_one(use):
    with raises("plan.several_pipelines", "2 pipelines"):
        use(pipelines())


def without(plan, layer):
    stages = (replace(s, layers=tuple(id for id in s.layers if id != layer)) for s in plan.stages)
    return replace(plan, stages=tuple(stages))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda a, b: (a,), ("plan.violations", "1 pipeline: a synchronization scheme averages between two or more")),
        (lambda a, b: (a, without(b, "d")), ("plan.violations", "pipeline 1 lacks layers that pipeline 0 has (d")),
        (lambda a, b: (without(a, "c"), b), ("plan.violations", "pipeline 0 lacks layers that pipeline 1 has (c")),
        (lambda a, b: (a, a), ("plan.violations", "rank 0 is in pipelines 0 and 1")),
        (
            lambda a, b: (a, replace(b, schedule="2f2b")),
            ("plan.violations", "pipeline 1: schedule '2f2b' is unknown"),
        ),
    ],
)
def test_what_cannot_run_is_told_in_a_line(change, told):
    with raises(*told) as error:
        pipelines(pipelines=change(*pipelines().pipelines)).check(GRAPH, Cluster.uniform(5))
    assert "\n" not in str(error.value)


def test_a_rule_that_asks_for_more_pipelines_is_told():
    with raises("plan.violations", "quorum"):
        pipelines(replication=rule("quorum", {"quorum": 3})).check(GRAPH)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"pipelines": 3}, ("pipelines.list_malformed", "3")),
        ({"pipelines": [{"format": "none"}]}, ("plan.malformed", "pipeline 0")),
        ({"pipelines": [pipelines().to_json()]}, ("plan.nested_pipelines", "pipeline 0")),
        ({"replication": {"rule": "telepathy"}}, ("replication.unknown", "telepathy")),
        ({"samples": "many"}, ("number.malformed", "samples", "many")),
        ({"lower_bound_seconds": -1}, ("number.malformed", "lower_bound_seconds")),
        ({"data_parallel_seconds": "soon"}, ("number.malformed", "data_parallel_seconds")),
        ({"warnings": "none"}, ("value.not_texts", "warnings")),
        ({"provenance": 3}, ("plan.provenance_malformed", "3")),
    ],
)
def test_a_damaged_file_is_told_in_a_line(tmp_path, change, told):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(pipelines().to_json() | change))
    with raises(*told) as error:
        Plan.load(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_people_see_every_pipeline():
    text, page = str(pipelines(samples=2.0)), html(pipelines(samples=2.0))
    assert mentions(text.splitlines()[0], "2 pipelines", "5 devices", "6.00 minibatches/s", "12.0 samples/s")
    assert mentions(text, "pipeline 1", "2 stages", "3 devices") and "warning: careful" in text
    assert page.count("layers by stage") == 2 and "careful" in page


def test_copies_of_a_plan_stand_on_ranks_of_their_own():
    plan = Plan((Stage(("a", "b"), (0, 1), (2, 1)), Stage(("c", "d"), (2,))), estimate=estimated(0.25, 0.25, 0.125))
    whole = Plan.alike(plan, 3, RULE, samples=8.0)
    assert [whole.ranks_of(k) for k in range(3)] == [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
    assert all(whole.local(k) == plan for k in range(3))
    assert whole.check(GRAPH, Cluster.uniform(9)).minibatches_per_second == 12
    with raises("number.not_whole", "pipelines"):
        Plan.alike(plan, 1, RULE)
