"""The partition explorer without a browser: what each control does to the plan, what is said, what is drawn."""

import json

import pytest

from sparsepipe import Cluster, CostSample, DeviceType, InputError, Layer, LayerCost, LayerGraph, Link, Node, Profile
from sparsepipe.planners import Problem, estimate, partition
from sparsepipe.plots.table import scaled_bytes
from sparsepipe.widgets import PartitionExplorer
from sparsepipe.widgets.scale import Scale
from sparsepipe.widgets.scene import bottleneck, changes
from sparsepipe.widgets.what_if import compressed

NUM_LAYERS = 12
FACTS = {"batch_size": 16, "voxel_size": 0.04}


def profile_of(seconds=(0.01,) * NUM_LAYERS, origin=FACTS):
    layers = tuple(Layer(f"conv{k}", "", 1e6) for k in range(len(seconds)))

    def costs(factor):
        few = [CostSample(1000, s * factor, 2 * s * factor, 1e6, 0, 1e6) for s in seconds]
        return tuple(LayerCost((f, CostSample(2000, 2 * f.forward, 2 * f.backward, 2e6, 0, 2e6))) for f in few)

    return Profile(LayerGraph.chain(layers), {"fast": costs(1), "slow": costs(2)}, (1000.0,), origin)


@pytest.fixture
def profile():
    return profile_of()


@pytest.fixture
def cluster():
    fast, slow = DeviceType("fast"), DeviceType("slow")
    return Cluster((Node("a", (fast,) * 2, Link(1e10)), Node("b", (slow,), Link(1e10))), Link(1e10))


@pytest.fixture
def explorer(profile, cluster):
    return PartitionExplorer(profile, cluster)


def scene(explorer):
    return json.loads(explorer.view.scene)


def tile(explorer, name):
    return next(value for what, value, _ in scene(explorer)["tiles"] if what == name)


def test_it_shows_the_plan_that_the_planner_makes(explorer, profile):
    assert explorer.messages.value == ""
    best = partition(profile, explorer.shown_cluster)
    assert explorer.plan.stages == best.stages
    drawn = scene(explorer)
    assert drawn["period"] == best.estimate.period_seconds == pytest.approx(drawn["bound"])
    assert tile(explorer, "throughput") == f"{16 / best.estimate.period_seconds:,.0f} samples/s"
    assert tile(explorer, "gap to that bound") == "none"
    assert tile(explorer, "over one device") == f"{0.36 / best.estimate.period_seconds:.2f} ×"
    assert drawn["ranks"] == sorted(best.ranks)
    assert [stage for _, _, stage in drawn["layers"]] == sorted(stage for _, _, stage in drawn["layers"])
    assert sum(stage["slowest"] for stage in drawn["stages"]) == 1


def test_the_fullest_device_is_that_of_the_stage_that_needs_most_where_nothing_is_limited(explorer):
    explorer.planner.value = "model-parallel"
    explorer.pin_cuts.value = True
    explorer._cut_moved(0, 1)
    most = max(part.memory_bytes for part in explorer.plan.estimate.stages)
    assert explorer.plan.estimate.stages[0].memory_bytes < most
    assert tile(explorer, "fullest device") == scaled_bytes(most)


def test_every_control_changes_the_plan_on_screen(explorer):
    explorer.counts["slow"].value = 0
    assert {device.type.name for device in explorer.shown_cluster.devices} == {"fast"}
    explorer.schedule.value = "gpipe"
    assert explorer.plan.schedule == "gpipe" and not explorer.microbatches.disabled
    assert explorer.weights.options == ("flush",) and explorer.weights.disabled
    explorer.microbatches.value = 5
    assert explorer.plan.num_microbatches == 5
    before = explorer.plan.estimate.period_seconds
    explorer.batch_size.value = 32
    assert explorer.plan.estimate.period_seconds == pytest.approx(2 * before, rel=0.05)
    explorer.voxel_size.value = 0.08
    assert explorer.problem.voxels == pytest.approx(1000 * 2 / 4)
    explorer.planner.value = "data-parallel"
    assert len(explorer.plan.stages) == 1
    assert "gap" not in tile(explorer, "gap to that bound") and tile(explorer, "gap to that bound") != "none"
    explorer.inside.value = 1e7
    assert explorer.shown_cluster.nodes[0].link.bandwidth == 1e7
    explorer.schedule.value = "1f1b"
    explorer.planner.value = "optimal"
    memory = explorer.plan.estimate.stages[0].memory_bytes
    explorer.weights.value = "2bw"
    assert explorer.plan.weights == "2bw" and explorer.plan.estimate.stages[0].memory_bytes <= memory
    assert explorer.messages.value == ""


def test_one_change_is_drawn_once(explorer):
    before = scene(explorer)["serial"]
    explorer.schedule.value = "gpipe"  # which also changes the weight policies that there are
    assert scene(explorer)["serial"] == before + 1


def test_compression_divides_what_crosses_and_nothing_else(profile):
    squeezed = compressed(profile, 4.0)
    assert squeezed.cost(3, "fast").output_bytes == profile.cost(3, "fast").output_bytes / 4
    assert squeezed.cost(3, "fast").forward == profile.cost(3, "fast").forward
    assert squeezed.cost(3, "fast").saved_bytes == profile.cost(3, "fast").output_bytes


def test_cuts_are_moved_and_the_devices_stay_chosen(explorer):
    explorer.planner.value = "model-parallel"
    assert len(explorer.plan.stages) == 3
    explorer.pin_cuts.value = True
    assert explorer.planner.disabled
    explorer.view.moved = {"cut": 0, "at": 3, "number": 1}
    explorer.view.moved = {"cut": 1, "at": 5, "number": 2}
    assert [len(stage.layers) for stage in explorer.plan.stages] == [3, 2, 7]
    assert explorer.plan.planner == "by hand"
    assert explorer.plan.stages[2].device_types == ("fast",), "most layers, fastest device"
    assert scene(explorer)["cuts"]["at"] == [3, 5]
    explorer.view.moved = {"cut": 1, "at": 5, "number": 3}
    explorer.pin_cuts.value = False
    assert explorer.plan.planner == "model-parallel" and not explorer.planner.disabled


def test_places_where_a_cut_cannot_be_have_their_reason(explorer):
    explorer.planner.value = "model-parallel"
    explorer.pin_cuts.value = True
    explorer.ends = [4, 8]
    explorer.update()
    cuts = scene(explorer)["cuts"]
    assert cuts["blocked"][0] == [[8, NUM_LAYERS - 1, 0]]
    assert cuts["blocked"][1] == [[1, 4, 1]]
    assert "before cut 1 | 2" in cuts["reasons"][0] and "behind cut 0 | 1" in cuts["reasons"][1]


def test_a_cut_is_blocked_where_a_stage_would_not_fit(explorer):
    explorer.planner.value = "model-parallel"
    explorer.pin_cuts.value = True
    explorer.pin_devices.value = True
    explorer.memory.value = 3e7
    cuts = scene(explorer)["cuts"]
    reasons = [cuts["reasons"][r] for _, _, r in cuts["blocked"][0]]
    assert any("stage 0 would need more than the 30 MB of a" in reason for reason in reasons), reasons
    # Exactly the places that an estimate would put above the limit.
    problem, ends = explorer.problem, cuts["at"]
    for place in range(1, ends[1]):
        sizes = [place, ends[1] - place]
        stages = []
        for k, stage in enumerate(explorer.plan.stages):
            start = [0, place, ends[1]][k]
            stop = [place, ends[1], NUM_LAYERS][k]
            stages.append(problem.stage(range(start, stop), stage.ranks, stage.shares))
        parts = estimate(problem.plan(stages, "x"), problem).stages
        fits = all(part.memory_bytes <= 3e7 for part in parts[:2])
        said = any(low <= place <= high for low, high, _ in cuts["blocked"][0])
        assert said != fits, (place, sizes)


def test_devices_are_pinned_and_cuts_found(explorer):
    explorer.pin_devices.value = True
    explorer.editor.groups = [{"fast": 1, "slow": 0}, {"fast": 1, "slow": 1}]
    explorer._changed()
    assert [stage.device_types for stage in explorer.plan.stages] == [("fast",), ("fast", "slow")]
    rows = explorer.editor.rows.children
    assert len(rows) == 2
    rows[1].children[1].value = 0  # one fast device less in stage 1
    assert explorer.plan.stages[1].device_types == ("slow",)
    rows[1].children[2].value = 2
    assert "the stages use 2 slow, the cluster has 1" in explorer.messages.value
    rows[1].children[2].value = 1
    assert explorer.messages.value == ""


def test_stages_are_added_and_taken_away(explorer):
    explorer.planner.value = "data-parallel"
    explorer.pin_devices.value = explorer.pin_cuts.value = True
    explorer.editor.more.click()
    assert "every device has a stage" in explorer.messages.value
    explorer.counts["fast"].value = 4
    explorer.editor.more.click()
    assert [len(stage.layers) for stage in explorer.plan.stages] == [6, 6]
    explorer.editor.less.click()
    assert len(explorer.plan.stages) == 1 and explorer.messages.value == ""


def test_no_device_and_too_little_memory_are_said_in_words(explorer):
    shown = explorer.view.scene
    explorer.memory.value = 1e7
    assert "#D55E00" in explorer.messages.value and "Traceback" not in explorer.messages.value
    assert explorer.view.scene == shown
    explorer.memory.value = 0.0
    assert explorer.messages.value == ""
    for slider in explorer.counts.values():
        slider.value = 0
    assert "no device chosen" in explorer.messages.value


def test_what_is_no_profile_or_cluster_is_refused_in_words(profile, cluster):
    with pytest.raises(InputError, match="'p.json' given, expected a Profile: Profile.load"):
        PartitionExplorer("p.json", cluster)
    with pytest.raises(InputError, match="None given, expected a Cluster: Cluster.load"):
        PartitionExplorer(profile, None)


def test_a_profile_that_does_not_fit_the_cluster_is_refused_in_words(profile):
    with pytest.raises(InputError, match=r"devices of type 'gpu', the profile knows fast, slow"):
        PartitionExplorer(profile, Cluster.uniform(2, device_type="gpu"))


@pytest.mark.parametrize("choice", ["optimal", "scaled", "policy", "pinned"])
def test_the_code_makes_the_plan_again(explorer, profile, choice):
    if choice == "scaled":
        explorer.batch_size.value, explorer.compression.value = 64, 4.0
    if choice == "policy":
        explorer.weights.value = "2bw"
    if choice == "pinned":
        explorer.pin_cuts.value = True
    scope = {"profile": profile}
    exec(scene(explorer)["code"], scope)
    made, shown = scope["plan"], explorer.plan
    assert made.stages == shown.stages and made.weights == shown.weights and made.schedule == shown.schedule
    assert scope["cluster"] == explorer.shown_cluster
    if choice != "pinned":
        assert made.estimate.period_seconds == pytest.approx(shown.estimate.period_seconds)


def test_a_pinned_plan_stays_to_compare_with_in_words_and_picture(explorer):
    explorer.pin.click()
    assert scene(explorer)["before"]["changes"] == ["B is as fast as A", "the same layers on the same devices"]
    explorer.planner.value = "data-parallel"
    before = scene(explorer)["before"]
    assert before["name"].startswith("optimal") and len(before["places"]) == NUM_LAYERS
    assert before["changes"][0].endswith("× as fast as A")
    explorer.unpin.click()
    assert scene(explorer)["before"] is None and explorer.unpin.disabled


def test_changes_name_the_schedule(explorer):
    before = explorer.plan
    explorer.schedule.value = "gpipe"
    assert "1f1b (stash) became gpipe (flush)" in changes(before, explorer.plan)


def test_the_slowest_stage_is_named_with_its_cause(explorer):
    explorer.planner.value = "data-parallel"
    assert bottleneck(explorer.plan)[0] == "compute"
    assert "One stage holds the whole network" in scene(explorer)["why"]
    explorer.between.value = 1e6
    assert bottleneck(explorer.plan)[0] == "averaging"


def test_why_a_stage_is_slowest_is_what_an_estimate_says(cluster):
    explorer = PartitionExplorer(profile_of((0.01, 0.01, 0.09, 0.01, 0.01)), cluster)
    explorer.planner.value = "model-parallel"
    explorer.pin_cuts.value = explorer.pin_devices.value = True
    explorer.ends = [3, 4]
    explorer.update()
    why = scene(explorer)["why"]
    assert "Stage 0 (fast) sets the pace: its layers take 330 ms a minibatch" in why
    assert "With its last layer conv2, stage 1 would take 300 ms" in why or "would save 30 ms" in why


def test_a_transfer_that_sets_the_pace_is_named(profile, cluster):
    explorer = PartitionExplorer(profile, cluster)
    explorer.planner.value = "model-parallel"
    explorer.inside.value = explorer.between.value = 1e6
    assert "transfers take" in scene(explorer)["why"]


def test_voxels_follow_the_counts_where_there_are_some(profile):
    assert Scale.of(profile).factor(16, 0.02) == pytest.approx(4)
    counted = Scale.of(profile, {0.02: 300.0, 0.04: 100.0})
    assert counted.factor(16, 0.02) == pytest.approx(3)
    assert counted.factor(32, 0.04) == pytest.approx(2)
    assert counted.factor(16, 0.01) == pytest.approx(9)  # the last line prolonged
    assert Scale.of(profile_of(origin={})) is None


def test_export_writes_what_is_on_screen(explorer, tmp_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "none"))
    explorer.exporter.folder = tmp_path
    explorer.exporter.button.click()
    assert "no Chromium" in explorer.messages.value and "Traceback" not in explorer.messages.value
    assert (tmp_path / "explorer_stages.csv").exists()
    (tmp_path / "file").write_text("")
    explorer.exporter.folder = tmp_path / "file"
    explorer.exporter.button.click()
    assert "cannot be written to" in explorer.messages.value and not explorer.exporter.button.disabled


def test_a_graph_with_branches_is_drawn_and_a_chain_is_not(explorer, cluster, profile):
    assert explorer.view.graph == "{}"
    branches = LayerGraph.chain(profile.graph.layers, skips=[(0, 3)])
    other = PartitionExplorer(Profile(branches, profile.costs, profile.voxel_counts, FACTS), cluster)
    graph = json.loads(other.view.graph)
    assert len(graph["positions"]) == NUM_LAYERS and len(graph["routes"]) == NUM_LAYERS


def test_an_unplannable_problem_still_shows_a_plan_by_hand(explorer):
    explorer.pin_cuts.value = explorer.pin_devices.value = True
    explorer.memory.value = 1e7
    assert explorer.messages.value == ""
    assert any(stage["memory"] > stage["limit"] for stage in scene(explorer)["stages"])
    assert isinstance(explorer.problem, Problem)
