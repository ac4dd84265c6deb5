import json
from dataclasses import replace

import pytest
from coded import mentions, raises

from sparsepipe import Cluster, CostSample, Layer, LayerCost, LayerGraph, Plan, Profile, partition
from sparsepipe.planning.forecast import forecast
from sparsepipe.values.profile import StepOverhead
from sparsepipe.views import html


def profile(name="cpu", ids="ab", scale=1.0) -> Profile:
    graph = LayerGraph.chain(Layer(id, f"layer {id}", 8) for id in ids)
    cost = LayerCost((CostSample(100, 1.5 * scale, 2.0 * scale, 400), CostSample(200, 3.0 * scale, 4.0 * scale, 800)))
    rates = {} if name == "cpu" else {name: 1e-9 * scale}
    return Profile(graph, {name: (cost,) * len(ids)}, (100.0, 160.0), {"engine": "native"}, rates)


def test_costs_follow_a_law_through_what_was_measured():
    cost = profile().costs["cpu"][0]
    assert cost.at(150).forward == pytest.approx(2.25)
    assert (cost.at(300).forward, cost.at(10).forward) == pytest.approx((4.5, 0.15))  # beyond: in proportion
    assert replace(cost.at(200), forward_spread=0.0, backward_spread=0.0) == cost.samples[1]


def test_a_single_sample_at_size_0_holds_everywhere():
    cost = LayerCost((CostSample(0, 1.0, 2.0, 4),))
    assert replace(cost.at(1e9), size=0) == cost.samples[0]


def test_voxels_are_the_mean_or_a_quantile():
    assert profile().size() == 130
    assert profile().size(0.5) == 130
    assert profile().size(1.0) == 160


def test_profiles_of_the_same_graph_join():
    joined = profile("slow", scale=2.0) | profile("fast")
    assert joined.device_types == ("slow", "fast")
    assert [part["device_types"] for part in joined.origin["joined"]] == [["slow"], ["fast"]]
    third = (joined | profile("third")).origin["joined"]
    assert [part["device_types"] for part in third] == [["slow"], ["fast"], ["third"]]
    assert joined.time([0, 1], "slow", 100) == (6.0, 8.0)
    assert joined.time([0, 1], "fast", 100) == (3.0, 4.0)
    assert joined.update_rates == {"slow": 2e-9, "fast": 1e-9}


def test_a_profile_under_another_name_is_the_same():
    assert profile("slow").renamed("fast") == profile("fast")
    assert profile("cpu").renamed("gpu").update_rates == {}


def test_a_file_without_rates_of_updates_has_none(tmp_path):
    path = profile("slow").save(tmp_path / "p.json")
    document = json.loads(path.read_text())
    del document["update_rates"]
    path.write_text(json.dumps(document))
    assert Profile.load(path).update_rates == {}


def test_what_a_step_takes_besides_is_kept_by_device_type(tmp_path):
    told = replace(profile("slow"), step_overheads={"slow": StepOverhead(0.5, 0.25)})
    reader = replace(told, sample_readers=(told.graph.layers[-1].id,))
    assert Profile.load(reader.save(tmp_path / "reader.json")) == reader
    assert (reader.renamed("new") | profile("fast")).sample_readers == reader.sample_readers
    with raises("profile.reader_unknown", "nowhere"):
        replace(told, sample_readers=("nowhere",))
    joined = told | profile("fast")
    assert Profile.load(joined.save(tmp_path / "p.json")) == joined
    assert joined.step_overheads == {"slow": StepOverhead(0.5, 0.25)}
    assert told.renamed("new").step_overheads == {"new": StepOverhead(0.5, 0.25)}
    assert "reading_seconds" not in told.to_json()["step_overheads"]["slow"]
    assert "step_overheads" not in profile("slow").to_json()  # files and digests of before stay as they are
    assert StepOverhead(0.5, 0.25, 0.125).slower(0.5) == StepOverhead(1.0, 0.5, 0.25)


def test_what_sockets_carry_is_kept_where_it_was_measured_and_files_of_before_stay_as_they_are(tmp_path):
    plain = profile("slow")
    costs = tuple(
        LayerCost(tuple(replace(s, coded_output_bytes=s.output_bytes / 2) for s in cost.samples))
        for cost in plain.costs["slow"]
    )
    measured = replace(plain, costs={"slow": costs})
    assert Profile.load(measured.save(tmp_path / "measured.json")) == measured
    assert "coded_gradient_bytes" in measured.to_json()["columns"]
    assert not any("coded" in name for name in plain.to_json()["columns"])
    sample = costs[0].samples[0].squeezed(4.0)
    assert (sample.output_bytes, sample.coded_output_bytes) == (plain.costs["slow"][0].samples[0].output_bytes / 4, 0)


def test_disk_round_trip(tmp_path):
    joined = profile("slow", scale=2.0) | profile("fast")
    assert Profile.load(joined.save(tmp_path / "p.json")) == joined


def test_a_graph_txt_keeps_the_mean_minibatch_of_one_device_type(tmp_path):
    path = profile("slow").save(tmp_path / "graph.txt")
    found = Profile.load(path, device_type="slow")
    assert found.graph == profile().graph and found.time([0, 1], "slow") == profile().time([0, 1], "cpu")
    with raises("profile.several_device_types", "both.txt", "a, b"):
        (profile("a") | profile("b")).save(tmp_path / "both.txt")


def measured(name: str, ratio: float) -> Profile:
    one = profile(name)
    return replace(one, origin={"source": "measured", "layers_over_whole": ratio}, update_rates={name: 1e-9})


def test_a_measured_profile_says_where_its_layers_do_not_add_up_to_a_step():
    assert measured("a", 1.099).warnings == measured("a", 0.901).warnings == profile("slow").warnings == ()
    (text,) = (measured("a", 1.104) | measured("b", 0.87)).warnings[:1]
    assert mentions(text, "1.104 x", "0.90", "1.10")
    assert mentions(measured("b", 0.87).warnings[0], "0.870 x")


def test_a_measured_profile_says_where_it_knows_no_optimizer():
    old = [replace(measured(name, 1.0), update_rates={}) for name in "ab"]
    told = "no optimizer steps in it, none are counted; profile again"
    assert [warning.endswith(told) for warning in (old[0] | old[1]).warnings] == [True]
    assert (old[0] | measured("c", 1.0)).warnings == (f"profile of a: {told}",)
    assert replace(profile("a"), update_rates={}).warnings == ()  # not measured: a published one never knows
    assert old[0].warnings[0] in html(old[0])


def test_a_measured_profile_says_what_else_the_machine_did_meanwhile(tmp_path):
    """That of a busy machine promised 3,359 samples/s where 864 came, and nothing beside it told of the machine."""

    def under(name: str, **load: float) -> Profile:
        one = measured(name, 1.0)
        return replace(one, origin={**one.origin, "background_load": load})

    quiet, busy = under("a", run_queue_wait_share=0.02), under("b", run_queue_wait_share=0.3, other_cpu_share=0.5)
    told = (
        "profile of b: while it was measured, its threads waited for a processor 30% of the time and other processes "
        "used 50% of the processors; profile again with nothing else at work"
    )
    assert quiet.warnings == () and (quiet | busy).warnings == (told,)
    assert Profile.load(busy.save(tmp_path / "p.json")).warnings == (told,)
    for spoilt in ([], "much", {"steal_share": "much"}):  # as any other part of an origin that is none
        one = replace(quiet, origin={**quiet.origin, "background_load": spoilt})
        assert Profile.load(one.save(tmp_path / "p.json")).warnings == ()


def test_a_measured_profile_says_over_which_sizes_it_does_not_hold():
    """One of sizes 18% apart said that twice the batch takes 8.6 times as long."""
    known = measured("a", 1.0)

    def of(*samples: tuple[float, float]) -> tuple[str, ...]:
        cost = LayerCost(tuple(CostSample(size, seconds, seconds, 8) for size, seconds in samples))
        return replace(known, costs={"a": (cost, cost)}).warnings

    assert of((100, 1.0), (200, 2.0)) == of((0, 1.0)) == ()
    (one_size,) = of((7401, 1.2))
    assert mentions(one_size, "7,401 voxels")
    narrow = of((6525, 1.0), (7401, 1.2))
    assert narrow == (
        "profile of a: measured only at 6,525 to 7,401 voxels; other sizes are extrapolated in proportion, "
        "profile again",
    )
    (wild,) = of((100, 1.0), (200, 20.0), (400, 4.0))
    assert mentions(wild, "10.0 x")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: profile("a") | profile("b", ids="abc"), ("profile.graphs_differ", "1 layer is", "c")),
        (lambda: profile("a") | profile("a"), ("profile.device_type_twice", "a")),
        (lambda: profile("a").cost(0, "b"), ("profile.no_device_type", "b")),
        (lambda: CostSample(1, float("nan"), 1, 1), ("number.malformed", "forward", "nan")),
        (lambda: CostSample(1, -1, 1, 1), ("number.malformed", "forward", "-1")),
        (lambda: LayerCost(()), ("cost.sizes_malformed",)),
        (
            lambda: replace(profile(), update_rates={"gpu": 1e-9}),
            ("profile.device_type_unknown", "update_rates", "gpu", "cpu"),
        ),
        (lambda: replace(profile(), update_rates={"cpu": -1.0}), ("number.malformed", "update_rates of 'cpu'", "-1")),
        (lambda: replace(profile(), voxels_by_stride=((9, 4), (9,))), ("profile.strides_malformed",)),
        (lambda: replace(profile(), voxels_by_stride=((9, 0),)), ("profile.strides_malformed",)),
        (lambda: replace(profile(), voxels_by_stride=((9, float("inf")),)), ("profile.strides_malformed",)),
        (lambda: (profile("a") | profile("b")).renamed("c"), ("profile.several_device_types", "2")),
    ],
)
def test_bad_profiles_are_refused(make, error):
    with raises(*error):
        make()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda d: d.update(format="other"), ("profile.malformed", "sparsepipe-profile-1")),
        (lambda d: d["costs"]["cpu"][0][0].__setitem__(1, -1), ("number.malformed", "cpu, layer 0: forward", "-1")),
        (lambda d: d["costs"]["cpu"][0][0].pop(), ("profile.foreign",)),
        (lambda d: d["edges"].append(["b", "a"]), ("graph.cycle",)),
        (lambda d: d["edges"].append(["b", "z"]), ("graph.layer_unknown", "z")),
        (lambda d: d["update_rates"].update(cpu="slow"), ("number.malformed", "update_rates")),
        (lambda d: d["update_rates"].update(gpu=1e-9), ("profile.device_type_unknown", "update_rates", "gpu")),
        (
            lambda d: d.update(step_overheads={"gpu": {}}),
            ("profile.device_type_unknown", "step_overheads", "gpu", "cpu"),
        ),
        (
            lambda d: d.update(step_overheads={"cpu": {"loss_seconds": -1}}),
            ("number.malformed", "step_overheads of 'cpu': loss_seconds", "-1"),
        ),
        (lambda d: d.update(step_overheads={"cpu": 3}), ("profile.foreign",)),
        (lambda d: d["layers"].clear(), ("graph.layer_unknown", "a")),
        (lambda d: d["origin"].update(joined=5), ("profile.foreign",)),
        (lambda d: d["origin"].update(source="measured", layers_over_whole="1"), ("profile.foreign",)),
        (lambda d: d.pop("voxel_counts"), ("profile.foreign",)),
        (lambda d: d.update(voxels_by_stride=[[9, 4, 2]]), ("profile.strides_malformed", "3", "1")),
        (lambda d: d.update(voxels_by_stride=[["9"]]), ("number.malformed", "voxels_by_stride")),
        (lambda d: d.update(voxels_by_stride=[9]), ("profile.foreign",)),
    ],
)
def test_bad_profile_files_are_named(tmp_path, change, error):
    path = profile().save(tmp_path / "p.json")
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with raises(*error) as caught:
        Profile.load(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("unit", ["tokens", "samples"])
def test_a_profile_may_count_in_another_unit_than_voxels(unit, tmp_path):
    one = replace(profile(), size_unit=unit)
    path = one.save(tmp_path / "p.json")
    assert Profile.load(path) == one and json.loads(path.read_text())["sizes"] == list(one.sizes)
    assert f" {unit} per minibatch" in html(one)
    with raises("profile.size_units_differ", " and over ".join(sorted(["voxels", unit]))):
        _ = one | profile().renamed("another")
    with raises("profile.size_unit_unknown", "litres", "voxels, tokens, pixels, samples"):
        replace(one, size_unit="litres")


def test_files_over_voxels_are_written_as_before():
    document = profile().to_json()
    assert document["columns"][0] == "voxels" and document["voxel_counts"] and "size_unit" not in document


def test_predictions_beyond_the_measured_sizes_say_so():
    cost = LayerCost(tuple(CostSample(size, size * 1e-3, size * 1e-3, 8.0) for size in (250, 500, 1000, 2000)))
    sized = replace(profile("a"), costs={"a": (cost, cost)}, sizes=(1000.0,))
    inside, beyond = sized.certainty(), sized.certainty([1000, 8000])
    assert not inside.extrapolated and inside.share < 0.03
    assert (beyond.factor, beyond.share) == (4.0, pytest.approx(0.2, abs=0.02))
    assert str(beyond) == "extrapolated 4 ×: ± 20%"
    assert sized.certainty(125).factor == 2.0 and sized.measured_sizes("a") == (250, 2000)
    assert not profile_without_sizes().certainty(1e12).extrapolated


def profile_without_sizes() -> Profile:
    graph = LayerGraph.chain([Layer("a", "", 8)])
    return Profile(graph, {"cpu": (LayerCost((CostSample(0, 1.0, 2.0, 4),)),)})


def test_a_plan_and_a_forecast_carry_how_far_they_are_extrapolated(tmp_path):
    cost = LayerCost(tuple(CostSample(size, size * 1e-3, size * 1e-3, 8.0) for size in (250, 500, 1000, 2000)))
    cluster = Cluster.uniform(1, device_type="a")
    for size, factor in ((1000.0, 1.0), (8000.0, 4.0)):
        sized = replace(profile("a"), costs={"a": (cost, cost)}, sizes=(size,))
        plan = partition(sized, cluster)
        assert plan.estimate.certainty.factor == factor == plan.to_json()["extrapolation"]
        assert Plan.load(plan.save(tmp_path / "plan.json")) == plan
        assert ("extrapolated 4 ×: ± 20%" in str(plan)) == (factor > 1)
        assert plan.extrapolation == ("extrapolated 4 ×: ± 20%" if factor > 1 else "")
        told = forecast(plan, sized, cluster, [size] * 8).to_json()
        assert (told["extrapolation"], told["uncertainty"]) == (factor, plan.to_json()["uncertainty"])
    constant = partition(profile_without_sizes(), Cluster.uniform(1, device_type="cpu"))
    assert constant.estimate.certainty is None and "uncertainty" not in constant.to_json()
