"""The partition explorer without a browser: what each control does to the plan, what is said, what is drawn."""

import html
import json
import threading
from dataclasses import replace

import pytest
from coded import mentions, raises
from processes import until

from scripts.bench.planner.cases import cells
from sparsepipe import Cluster, CostSample, DeviceType, InputError, Layer, LayerCost, LayerGraph, Link, Node, Profile
from sparsepipe.planning import Problem, estimate, partition
from sparsepipe.planning.forecast import forecast
from sparsepipe.planning.scale import Scale
from sparsepipe.util.text.numbers import as_measured, scaled_bytes
from sparsepipe.values.trace import SPAN_KINDS
from sparsepipe.views.widgets import PartitionExplorer
from sparsepipe.views.widgets.planning import compressed, unless
from sparsepipe.views.widgets.stage_editor import StagesPerDevice
from sparsepipe.views.widgets.view_model import bottleneck, changes

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
    return json.loads(explorer.view.drawing.scene)


def tile(explorer, name):
    return next(value for what, value, _ in scene(explorer)["tiles"] if what == name)


def test_it_shows_the_plan_that_the_planner_makes(explorer, profile):
    assert explorer.messages.value == ""
    best = partition(profile, explorer.shown_cluster)
    assert explorer.plan.stages == best.stages
    drawn = scene(explorer)
    assert drawn["period"] == best.estimate.period_seconds == pytest.approx(drawn["bound"])
    assert tile(explorer, "throughput") == f"{as_measured(16 / best.estimate.period_seconds)} samples/s"
    assert tile(explorer, "optimality gap").startswith("0%")
    assert tile(explorer, "over one device") == f"{0.36 / best.estimate.period_seconds:.2f} ×"
    assert drawn["ranks"] == sorted(best.ranks)
    assert [stage for _, _, stage in drawn["layers"]] == sorted(stage for _, _, stage in drawn["layers"])
    assert sum(stage["slowest"] for stage in drawn["stages"]) == 1


def test_the_timeline_opens_on_the_steady_state(explorer):
    """Full pipelines do a minibatch a period; of a synchronous schedule one whole step is in sight."""

    def of_first_stage(kind):
        drawn = scene(explorer)
        begin, end = (share * drawn["end"] for share in drawn["sight"])
        assert 0 < begin < end
        own = [span for span in drawn["spans"] if SPAN_KINDS[span[3]] == kind and span[4] == 0]
        return (end - begin) / drawn["period"], sum(
            begin - 1e-3 <= start and stop <= end + 1e-3 for _, start, stop, *_ in own
        )

    periods, done = of_first_stage("backward")
    assert abs(done - periods) <= 1
    explorer.controls.plan.schedule.value = "gpipe"
    explorer.controls.plan.microbatches.value = 5
    assert of_first_stage("forward")[1] == 5


def test_the_fullest_device_is_that_of_the_stage_that_needs_most_where_nothing_is_limited(explorer):
    explorer.controls.plan.planner.value = "model-parallel"
    explorer.controls.stages.pin_cuts.value = True
    explorer.controls.stages.move_cut(0, 1)
    most = max(part.memory_bytes for part in explorer.plan.estimate.stages)
    assert explorer.plan.estimate.stages[0].memory_bytes < most
    assert tile(explorer, "peak memory (worst device)") == scaled_bytes(most)


def test_every_control_changes_the_plan_on_screen(explorer):
    explorer.controls.devices.counts["slow"].value = 0
    assert {device.type.name for device in explorer.shown_cluster.devices} == {"fast"}
    explorer.controls.plan.schedule.value = "gpipe"
    assert explorer.plan.schedule == "gpipe" and not explorer.controls.plan.microbatches.disabled
    assert explorer.controls.plan.weights.options == ("flush",) and explorer.controls.plan.weights.disabled
    explorer.controls.plan.microbatches.value = 5
    assert explorer.plan.num_microbatches == 5
    before = explorer.plan.estimate.period_seconds
    explorer.controls.workload.batch_size.value = 32
    assert explorer.plan.estimate.period_seconds == pytest.approx(2 * before, rel=0.05)
    explorer.controls.workload.voxel_size.value = 0.08
    assert explorer.problem.size == pytest.approx(1000 * 2 / 4)
    explorer.controls.plan.planner.value = "data-parallel"
    assert len(explorer.plan.stages) == 1
    assert "gap" not in tile(explorer, "optimality gap") and tile(explorer, "optimality gap") != "0%"
    explorer.controls.devices.inside.value = 1e7
    assert explorer.shown_cluster.nodes[0].link.bandwidth == 1e7
    explorer.controls.plan.schedule.value = "1f1b"
    explorer.controls.plan.planner.value = "optimal"
    memory = explorer.plan.estimate.stages[0].memory_bytes
    explorer.controls.plan.weights.value = "2bw"
    assert explorer.plan.weights == "2bw" and explorer.plan.estimate.stages[0].memory_bytes <= memory
    assert explorer.messages.value == ""


def test_one_change_is_drawn_once(explorer):
    before = scene(explorer)["serial"]
    explorer.controls.plan.schedule.value = "gpipe"  # which also changes the weight policies that there are
    assert scene(explorer)["serial"] == before + 1


def test_compression_divides_what_crosses_and_nothing_else(profile):
    squeezed = compressed(profile, 4.0)
    assert squeezed.cost(3, "fast").output_bytes == profile.cost(3, "fast").output_bytes / 4
    assert squeezed.cost(3, "fast").forward == profile.cost(3, "fast").forward
    assert squeezed.cost(3, "fast").saved_bytes == profile.cost(3, "fast").output_bytes


def test_cuts_are_moved_and_the_devices_stay_chosen(explorer):
    explorer.controls.plan.planner.value = "model-parallel"
    assert len(explorer.plan.stages) == 3
    explorer.controls.stages.pin_cuts.value = True
    assert explorer.controls.plan.planner.disabled
    explorer.view.drawing.moved = {"cut": 0, "at": 3, "number": 1}
    explorer.view.drawing.moved = {"cut": 1, "at": 5, "number": 2}
    assert [len(stage.layers) for stage in explorer.plan.stages] == [3, 2, 7]
    assert explorer.plan.planner == "by hand"
    assert explorer.plan.stages[2].device_types == ("fast",), "most layers, fastest device"
    assert scene(explorer)["cuts"]["at"] == [3, 5]
    explorer.view.drawing.moved = {"cut": 1, "at": 5, "number": 3}
    explorer.controls.stages.pin_cuts.value = False
    assert explorer.plan.planner == "model-parallel" and not explorer.controls.plan.planner.disabled


def test_places_where_a_cut_cannot_be_have_their_reason(explorer):
    explorer.controls.plan.planner.value = "model-parallel"
    explorer.controls.stages.pin_cuts.value = True
    explorer.controls.stages.ends = [4, 8]
    explorer.update()
    cuts = scene(explorer)["cuts"]
    assert cuts["blocked"][0] == [[8, NUM_LAYERS - 1, 0]]
    assert cuts["blocked"][1] == [[1, 4, 1]]
    assert "cut 1 | 2" in cuts["reasons"][0] and "cut 0 | 1" in cuts["reasons"][1]


def test_a_cut_is_blocked_where_a_stage_would_not_fit(explorer):
    explorer.controls.plan.planner.value = "model-parallel"
    explorer.controls.stages.pin_cuts.value = True
    explorer.controls.stages.pin_devices.value = True
    explorer.controls.devices.memory.value = 3e7
    cuts = scene(explorer)["cuts"]
    reasons = [cuts["reasons"][r] for _, _, r in cuts["blocked"][0]]
    assert any(mentions(reason, "stage 0", "30 MB") for reason in reasons), reasons
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
    explorer.controls.stages.pin_devices.value = True
    explorer.controls.stages.editor.groups = [{"fast": 1, "slow": 0}, {"fast": 1, "slow": 1}]
    explorer.changed()
    assert [stage.device_types for stage in explorer.plan.stages] == [("fast",), ("fast", "slow")]
    rows = explorer.controls.stages.editor.rows.children
    assert len(rows) == 2
    rows[1].children[1].value = 0  # one fast device less in stage 1
    assert explorer.plan.stages[1].device_types == ("slow",)
    rows[1].children[2].value = 2
    assert mentions(explorer.messages.value, "2 slow", 1)
    rows[1].children[2].value = 1
    assert explorer.messages.value == ""


def test_stages_are_added_and_taken_away(explorer):
    explorer.controls.plan.planner.value = "data-parallel"
    explorer.controls.stages.pin_devices.value = explorer.controls.stages.pin_cuts.value = True
    explorer.controls.stages.editor.more.click()
    assert "Every device" in explorer.messages.value
    explorer.controls.devices.counts["fast"].value = 4
    explorer.controls.stages.editor.more.click()
    assert [len(stage.layers) for stage in explorer.plan.stages] == [6, 6]
    explorer.controls.stages.editor.less.click()
    assert len(explorer.plan.stages) == 1 and explorer.messages.value == ""
    explorer.controls.stages.editor.less.click()  # as the page sent it before the button was disabled
    assert "at least one" in explorer.messages.value and len(explorer.plan.stages) == 1
    explorer.controls.stages.pin_cuts.value = False
    assert explorer.messages.value == "" and len(explorer.plan.stages) == 1, "a traceback, of no stage"


def test_no_device_and_too_little_memory_are_said_in_words(explorer):
    shown = explorer.view.drawing.scene
    explorer.controls.devices.memory.value = 1e7
    assert "#D55E00" in explorer.messages.value and "Traceback" not in explorer.messages.value
    assert explorer.view.drawing.scene == shown
    explorer.controls.devices.memory.value = 0.0
    assert explorer.messages.value == ""
    for slider in explorer.controls.devices.counts.values():
        slider.value = 0
    assert "No device is" in explorer.messages.value


def test_what_is_no_profile_or_cluster_is_refused_in_words(profile, cluster):
    with raises("explorer.value_kind", "Profile", given="p.json", kind="Profile"):
        PartitionExplorer("p.json", cluster)
    with raises("explorer.value_kind", "None", "Cluster", kind="Cluster"):
        PartitionExplorer(profile, None)


def test_a_profile_that_does_not_fit_the_cluster_is_refused_in_words(profile):
    with raises("profile.no_device_type", "fast, slow", name="gpu"):
        PartitionExplorer(profile, Cluster.uniform(2, device_type="gpu"))


@pytest.mark.parametrize("choice", ["optimal", "scaled", "policy", "pinned"])
def test_the_code_makes_the_plan_again(explorer, profile, choice):
    if choice == "scaled":
        explorer.controls.workload.batch_size.value, explorer.controls.workload.compression.value = 64, 4.0
    if choice == "policy":
        explorer.controls.plan.weights.value = "2bw"
    if choice == "pinned":
        explorer.controls.stages.pin_cuts.value = True
    scope = {"profile": profile}
    exec(scene(explorer)["code"], scope)
    made, shown = scope["plan"], explorer.plan
    assert made.stages == shown.stages and made.weights == shown.weights and made.schedule == shown.schedule
    assert scope["cluster"] == explorer.shown_cluster
    if choice != "pinned":
        assert made.estimate.period_seconds == pytest.approx(shown.estimate.period_seconds)


def test_a_pinned_plan_stays_to_compare_with_in_words_and_picture(explorer):
    explorer.view.pin.click()
    assert scene(explorer)["before"]["changes"] == ["B is as fast as A", "the same layers on the same devices"]
    explorer.controls.plan.planner.value = "data-parallel"
    before = scene(explorer)["before"]
    assert before["name"].startswith("optimal") and len(before["places"]) == NUM_LAYERS
    assert "×" in before["changes"][0]
    explorer.view.unpin.click()
    assert scene(explorer)["before"] is None and explorer.view.unpin.disabled


def test_changes_name_the_schedule(explorer):
    before = explorer.plan
    explorer.controls.plan.schedule.value = "gpipe"
    assert "schedule: 1f1b (stash) → gpipe (flush)" in changes(before, explorer.plan)


# The picture as a page draws it, from what a kernel would send.
DRAWN = """async ([code, told]) => {
  const place = document.body.appendChild(document.createElement("div"));
  const { default: widget } = await import(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
  widget.render({ model: { get: (name) => told[name], on() {}, off() {}, send() {} }, el: place });
}"""


def test_the_slowest_stage_is_named_with_its_cause(explorer):
    explorer.controls.plan.planner.value = "data-parallel"
    assert bottleneck(explorer.plan, explorer.problem)[0] == "compute"
    assert "One stage" in scene(explorer)["why"]
    explorer.controls.devices.between.value = 1e6
    assert bottleneck(explorer.plan, explorer.problem)[0] == "averaging"


def test_why_a_stage_is_slowest_is_what_an_estimate_says(cluster):
    explorer = PartitionExplorer(profile_of((0.01, 0.01, 0.09, 0.01, 0.01)), cluster)
    explorer.controls.plan.planner.value = "model-parallel"
    explorer.controls.stages.pin_cuts.value = explorer.controls.stages.pin_devices.value = True
    explorer.controls.stages.ends = [3, 4]
    explorer.update()
    why = scene(explorer)["why"]
    assert mentions(why, "Stage 0", "(fast)", "330 ms")
    assert mentions(why, "layer conv2", "stage 1", "300 ms") or mentions(why, "30.0 ms")


def test_a_transfer_that_sets_the_pace_is_named(profile, cluster):
    explorer = PartitionExplorer(profile, cluster)
    explorer.controls.plan.planner.value = "model-parallel"
    explorer.controls.devices.inside.value = explorer.controls.devices.between.value = 1e6
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
    assert "Chromium not found" in explorer.messages.value and "Traceback" not in explorer.messages.value
    assert (tmp_path / "explorer_stages.csv").exists() and "explorer_view" in explorer.exporter.make().figures
    (tmp_path / "file").write_text("")
    explorer.exporter.folder = tmp_path / "file"
    explorer.exporter.button.click()
    assert "cannot be written" in explorer.messages.value and not explorer.exporter.button.disabled


def test_a_graph_with_branches_is_drawn_and_a_chain_is_not(explorer, cluster, profile):
    assert explorer.view.drawing.graph == "{}"
    branches = LayerGraph.chain(profile.graph.layers, skips=[(0, 3)])
    other = PartitionExplorer(Profile(branches, profile.costs, profile.sizes, FACTS), cluster)
    graph = json.loads(other.view.drawing.graph)
    assert len(graph["positions"]) == NUM_LAYERS and len(graph["routes"]) == NUM_LAYERS


def test_an_unplannable_problem_still_shows_a_plan_by_hand(explorer):
    explorer.controls.stages.pin_cuts.value = explorer.controls.stages.pin_devices.value = True
    explorer.controls.devices.memory.value = 1e7
    assert explorer.messages.value == ""
    assert any(stage["memory"] > stage["limit"] for stage in scene(explorer)["stages"])
    assert isinstance(explorer.problem, Problem)


# --- Several stages per device ----------------------------------------------------------------------------------------


@pytest.fixture
def interleaved(profile):
    """Two stages on each of two devices, a step of four microbatches: 12 layers of 30 ms in stages of three."""
    cluster = Cluster((Node("a", (DeviceType("fast"),) * 2, Link(1e8)),), Link(1e8))
    explorer = PartitionExplorer(profile, cluster)
    explorer.controls.plan.planner.value, explorer.controls.plan.schedule.value = "model-parallel", "1f1b-flush"
    explorer.controls.plan.stages_per_device.slider.value = 2
    assert explorer.messages.value == ""
    return explorer


def test_a_device_has_the_work_and_memory_of_all_its_stages(interleaved):
    drawn, plan = scene(interleaved), interleaved.plan
    assert [stage.ranks for stage in plan.stages] == [(0,), (1,), (0,), (1,)]
    rows = drawn["stages"]
    assert [[part[:5] for part in row["parts"]] for row in rows] == [
        [[k, f"conv{3 * k}", f"conv{3 * k + 2}", 3, pytest.approx(0.09)] for k in stages] for stages in ([0, 2], [1, 3])
    ]
    assert [row["compute"] for row in rows] == pytest.approx([0.18, 0.18])
    # Three boundaries of 1 MB, 10 ms each: across two of them rank 0 sends and rank 1 receives.
    assert [row["transfer"] for row in rows] == pytest.approx([0.02, 0.02])
    parts = plan.estimate.stages
    assert [row["memory"] for row in rows] == [
        parts[0].memory_bytes + parts[2].memory_bytes,
        parts[1].memory_bytes + parts[3].memory_bytes,
    ]
    most = max(row["memory"] for row in rows)
    peaks = forecast(plan, interleaved.problem.profile, interleaved.shown_cluster, [1000] * 8).peak_bytes
    assert most == pytest.approx(max(peaks.values())), "the most that a device holds of both its stages at once"
    assert tile(interleaved, "peak memory (worst device)") == scaled_bytes(most)
    assert sum(row["slowest"] for row in rows) == 1
    assert mentions(drawn["why"], "180 ms")


def test_the_period_and_timeline_of_interleaved_stages_are_those_of_a_simulated_step(interleaved):
    drawn = scene(interleaved)
    # Section 2.2 of Narayanan et al.: four times 180 ms of work, a lap of 90 ms to fill and drain, a transfer each way.
    assert drawn["period"] == pytest.approx((4 * 0.18 + 0.09 + 0.02) / 4)
    assert tile(interleaved, "time per minibatch") == "208 ms"
    assert mentions(drawn["why"], "13%", 4)
    assert drawn["ranks"] == [0, 1]
    stages_of_rows = {(row, stage) for row, _, _, _, stage, _ in drawn["spans"]}
    assert stages_of_rows == {(0, 0), (1, 1), (0, 2), (1, 3)}
    work = [sum(end - start for row, start, end, code, _, m in drawn["spans"] if row == k and code < 2) for k in (0, 1)]
    count = max(interleaved.planning.minibatches, 2 * interleaved.plan.num_microbatches)
    assert work == pytest.approx([0.18 * count] * 2)


def test_no_bound_is_claimed_for_interleaved_stages(interleaved):
    drawn = scene(interleaved)
    assert drawn["bound"] is None and interleaved.plan.estimate.gap is None
    assert tile(interleaved, "lower bound") == "unknown"
    assert "optimality gap" not in [what for what, _, _ in drawn["tiles"]]


def test_without_flushes_the_pace_is_that_of_the_busiest_device(explorer):
    """A layer takes 30 ms on a fast device and 60 ms on a slow one."""
    explorer.controls.plan.planner.value = "model-parallel"
    straight = explorer.plan.estimate.period_seconds
    explorer.controls.plan.stages_per_device.slider.value = 2
    plan = explorer.plan
    assert plan.stages_per_rank == 2 and plan.pipeline_size == 3 and explorer.messages.value == ""
    busy = [position.busy_seconds for position in plan.position_estimates]
    factors = {"fast": 0.03, "slow": 0.06}
    assert busy == pytest.approx(
        [
            sum(len(plan.stages[k].layers) for k in stages) * factors[plan.stages[stages[0]].device_types[0]]
            for stages in ((0, 3), (1, 4), (2, 5))
        ]
    )
    assert scene(explorer)["period"] == pytest.approx(max(busy), rel=0.02) and max(busy) <= straight
    assert bottleneck(plan, explorer.problem)[2] == max(busy)
    explorer.controls.plan.weights.value = "vertical-sync"
    counted = estimate(explorer.plan, explorer.problem)
    assert [row["memory"] for row in scene(explorer)["stages"]] == [
        position.memory_bytes for position in explorer.plan.position_estimates
    ]
    assert explorer.plan.estimate.stages == counted.stages and explorer.messages.value == ""


def test_the_boundaries_of_interleaved_stages_that_set_the_pace_are_named(interleaved):
    interleaved.controls.devices.inside.value = 1e6
    assert bottleneck(interleaved.plan, interleaved.problem) == ("transfer", 1, pytest.approx(2.0))
    assert mentions(scene(interleaved)["why"], "stages 1", 3, "(fast)", "2,000 ms")
    assert mentions(scene(interleaved)["why"], "180 ms")


def test_one_stage_a_device_again_is_what_was_before(explorer):
    explorer.controls.plan.planner.value = "model-parallel"
    before, drawn = explorer.plan, scene(explorer)
    slider = explorer.controls.plan.stages_per_device.slider
    slider.value = 2
    assert len(explorer.plan.stages) == 2 * len(before.stages)
    slider.value = 1
    assert explorer.plan == before
    assert scene(explorer) | {"serial": 0} == drawn | {"serial": 0}


@pytest.mark.parametrize(
    ("num_layers", "num_devices", "most"),
    [(12, 4, 3), (60, 4, 4), (60, 1, 4), (60, 8, 2), (60, 16, 2), (3, 4, 2)],
)
def test_the_slider_goes_as_far_as_layers_and_devices_let_it(num_layers, num_devices, most):
    assert StagesPerDevice(num_layers=num_layers, num_devices=num_devices).slider.max == most


def test_devices_that_stay_unused_are_told(cluster):
    explorer = PartitionExplorer(profile_of((0.01,) * 2), cluster)
    explorer.controls.plan.planner.value = "model-parallel"
    assert len(explorer.plan.ranks) == 2
    (told,) = scene(explorer)["notes"]
    assert mentions(told, 1, "3 devices")


def test_more_stages_a_device_than_layers_allow_are_refused(cluster):
    explorer = PartitionExplorer(profile_of((0.01,) * 4), cluster)
    explorer.controls.plan.planner.value = "model-parallel"
    explorer.controls.plan.stages_per_device.slider.value = 2
    assert explorer.plan is None and mentions(explorer.messages.value, "2 stages", "3 devices")


def test_what_cannot_interleave_disables_the_slider_and_says_why(explorer, profile):
    choice = explorer.controls.plan.stages_per_device
    assert choice.slider.disabled and mentions(html.unescape(choice.note.value), "'optimal'")
    assert "model-parallel several" in choice.note.value
    explorer.controls.plan.planner.value = "model-parallel"
    assert not choice.slider.disabled and choice.note.value == ""
    choice.slider.value = 2
    for schedule in ("gpipe", "2bw", "zero-bubble", "sequential"):
        explorer.controls.plan.schedule.value = schedule
        with pytest.raises(InputError) as refused:
            settings = {"schedule": schedule, "stages_per_device": 2}
            partition(profile, explorer.shown_cluster, planner="model-parallel", **settings)
        assert choice.slider.disabled and str(refused.value) in html.unescape(choice.note.value)
        assert (
            explorer.plan.stages_per_rank == 1 and explorer.plan.schedule == schedule and explorer.messages.value == ""
        )
    explorer.controls.plan.schedule.value = "1f1b"
    assert explorer.plan.stages_per_rank == 2, "the slider has kept its value"
    explorer.controls.plan.planner.value = "optimal"
    assert explorer.plan == partition_again(explorer, profile)


def test_a_schedule_says_how_many_stages_a_device_has(explorer, profile):
    choice = explorer.controls.plan.stages_per_device
    explorer.controls.plan.schedule.value = "zbv"
    assert explorer.controls.plan.planner.value == "model-parallel", "it stands in until another is chosen"
    assert mentions(html.unescape(choice.note.value), "'model-parallel'", "'optimal'")
    assert choice.slider.disabled and mentions(html.unescape(choice.note.value), "2 stages")
    assert explorer.plan.schedule == "zbv" and explorer.messages.value == ""
    assert [own[0] + own[1] for own in explorer.plan.positions] == [len(explorer.plan.stages) - 1] * 3
    assert explorer.plan == partition_again(explorer, profile)
    explorer.controls.plan.schedule.value = "interleaved-zero-bubble"
    assert not choice.slider.disabled and choice.number == 2 and "2 are planned" in choice.note.value
    choice.slider.value = 2
    assert explorer.plan.stages_per_rank == 2 and "choose a schedule" in choice.note.value
    explorer.controls.plan.schedule.value = "1f1b"
    assert explorer.controls.plan.planner.value == "optimal", "the planner that was chosen comes back"
    explorer.controls.plan.schedule.value = "zbv"
    explorer.controls.plan.planner.value = "optimal"
    assert explorer.messages.value == "" and explorer.plan.planner == "optimal" and choice.note.value == ""
    assert explorer.plan.stages_per_rank == 2 and explorer.plan.estimate.gap is not None


def partition_again(explorer, profile):
    scope = {"profile": profile}
    exec(scene(explorer)["code"], scope)
    made, shown = scope["plan"].estimate, explorer.plan.estimate
    seconds = {"plan_seconds": shown.plan_seconds, "lower_bound_seconds": shown.lower_bound_seconds}
    return replace(scope["plan"], estimate=replace(made, **seconds))


def test_pins_and_several_stages_a_device_exclude_each_other(explorer):
    explorer.controls.plan.planner.value = "model-parallel"
    choice = explorer.controls.plan.stages_per_device
    explorer.controls.stages.pin_cuts.value = True
    assert choice.slider.disabled and "Pinned plans" in choice.note.value
    explorer.controls.stages.pin_cuts.value = False
    choice.slider.value = 2
    assert explorer.controls.stages.pin_cuts.disabled and explorer.controls.stages.pin_devices.disabled
    assert "set it to" in choice.note.value and not choice.slider.disabled
    choice.slider.value = 1
    assert not explorer.controls.stages.pin_cuts.disabled and choice.note.value == ""


def test_weights_that_do_not_interleave_are_refused_in_one_line_and_the_picture_stays(explorer):
    explorer.controls.plan.planner.value = "model-parallel"
    explorer.controls.plan.stages_per_device.slider.value = 2
    shown, plan = explorer.view.drawing.scene, explorer.plan
    explorer.controls.plan.weights.value = "2bw"
    assert mentions(html.unescape(explorer.messages.value), "'2bw'")
    assert "Traceback" not in explorer.messages.value and explorer.view.drawing.scene == shown
    explorer.controls.plan.weights.value = "stash"
    assert explorer.messages.value == "" and explorer.plan == plan


def test_more_stages_than_layers_are_refused_in_words(cluster):
    explorer = PartitionExplorer(profile_of((0.01,)), cluster)
    explorer.controls.plan.planner.value = "model-parallel"
    explorer.controls.plan.stages_per_device.slider.value = 2
    assert mentions(explorer.messages.value, "2 stages", 1)


def test_a_device_whose_stages_do_not_fit_together_is_marked(interleaved):
    """Each stage alone would fit: the limit is that of the device."""
    parts = interleaved.plan.estimate.stages
    interleaved.controls.devices.memory.value = 3e7
    assert max(part.memory_bytes for part in parts) < 3e7
    assert any(row["memory"] > row["limit"] == 3e7 for row in scene(interleaved)["stages"])
    assert tile(interleaved, "peak memory (worst device)").endswith("of 30 MB")


@pytest.mark.parametrize("change", ["none", "flush", "vertical-sync", "scaled", "three"])
def test_the_code_makes_an_interleaved_plan_again(explorer, profile, change):
    explorer.controls.plan.planner.value = "model-parallel"
    explorer.controls.plan.stages_per_device.slider.value = 3 if change == "three" else 2
    if change == "flush":
        explorer.controls.plan.schedule.value, explorer.controls.plan.microbatches.value = "1f1b-flush", 6
    if change == "vertical-sync":
        explorer.controls.plan.weights.value = "vertical-sync"
    if change == "scaled":
        explorer.controls.workload.batch_size.value, explorer.controls.workload.compression.value = 64, 4.0
    code = scene(explorer)["code"]
    assert f"stages_per_device={3 if change == 'three' else 2})" in code
    again = partition_again(explorer, profile)
    if change == "vertical-sync":  # its estimate is that of the planner, which knows no weights
        again, shown = replace(again, estimate=None), replace(explorer.plan, estimate=None)
    else:
        shown = explorer.plan
    assert again == shown and again.stages_per_rank == (3 if change == "three" else 2)
    explorer.controls.plan.stages_per_device.slider.value = 1
    assert "stages_per_device" not in scene(explorer)["code"]


def test_a_pinned_plan_is_compared_device_by_device(explorer):
    explorer.controls.plan.planner.value = "model-parallel"
    explorer.view.pin.click()
    straight = explorer.plan
    explorer.controls.plan.stages_per_device.slider.value = 2
    before = scene(explorer)["before"]
    assert before["changes"][1:3] == ["stages: 3 → 6", "stages per device: 1 → 2"]
    assert mentions(before["changes"], "rank 0", "stage 0", "stages 0", 3)
    assert len(before["stages"]) == 3
    explorer.view.pin.click()
    explorer.controls.plan.stages_per_device.slider.value = 1
    before = scene(explorer)["before"]
    assert len(before["stages"]) == 3 and before["stages"] != [
        [position.busy_seconds, position.memory_bytes] for position in straight.position_estimates
    ]
    assert before["stages"][0][0] == pytest.approx(0.03 * sum(place in (0, 3) for place in before["places"]))


# The picture as a page draws it, from what a kernel would send.
DRAWN = """async ([code, told]) => {
  const place = document.body.appendChild(document.createElement("div"));
  const { default: widget } = await import(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
  widget.render({ model: { get: (name) => told[name], on() {}, off() {}, set() {}, send() {} }, el: place });
}"""


def rested(explorer):
    until(lambda: explorer.gap_later._thread is None, "the end of the search")


def test_the_gap_closes_while_the_controls_rest(monkeypatch):
    network, closing = cells(1, branches=4, deep=8), list[dict]()
    four = Cluster.uniform(4, device_type="a", link=Link(1e8))
    explorer = PartitionExplorer(network, four)
    explorer.view.drawing.observe(lambda change: closing.append(json.loads(change["new"])), names="closing")
    quick, serial = explorer.plan.estimate, scene(explorer)["serial"]
    assert quick.gap > 1e-3, "a case with an open gap"
    rested(explorer)
    found, whole = explorer.plan.estimate, partition(network, four).estimate
    assert (found.period_seconds, found.lower_bound_seconds) == pytest.approx(
        (min(whole.period_seconds, quick.period_seconds), whole.lower_bound_seconds), rel=1e-3
    )
    assert closing and all(row["serial"] == serial for row in closing)
    assert {name for row in closing for name, *_ in row["tiles"]} == {"optimality gap", "lower bound"}
    assert found.gap < quick.gap and scene(explorer)["bound"] == found.lower_bound_seconds
    monkeypatch.setattr(explorer.planning, "searched", lambda *_: pytest.fail("searched again"))
    explorer.update()
    rested(explorer)
    assert explorer.plan.estimate == found and explorer.messages.value == ""


def test_a_search_ends_as_soon_as_a_control_moves():
    over, begun = threading.Event(), threading.Event()

    def search():
        begun.set()
        while True:  # and reports nothing
            len(())

    ended = []
    thread = threading.Thread(target=lambda: ended.append(unless(over.is_set, search)))
    thread.start()
    assert begun.wait(60) and thread.is_alive()
    over.set()
    thread.join(60)
    assert ended == [None] and unless(lambda: False, lambda: "a plan") == "a plan"
