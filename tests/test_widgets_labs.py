"""My lab, the map of hosts and the candidates of the partition explorer: what is shown is what planners say."""

import json
from functools import partial

import pytest
from coded import raises
from processes import until
from test_widgets_words import profile_of

from sparsepipe import Cluster, DeviceType, Link, Node, compare_hardware, partition
from sparsepipe.planning import PLANNERS
from sparsepipe.planning.by_hand import with_cuts
from sparsepipe.planning.run_estimate import judged
from sparsepipe.study.unlike_devices import unlike_devices
from sparsepipe.views.widgets import PartitionExplorer
from sparsepipe.views.widgets import candidates as candidates_module
from sparsepipe.views.widgets.candidates import Candidates
from sparsepipe.views.widgets.labs import MEASURED, PRESETS, THIS_MACHINE, Lab
from sparsepipe.views.widgets.planning import Planning
from sparsepipe.views.widgets.sizes import Superseded


def cluster_of(fast=2, slow=1):
    kinds = DeviceType("fast", 24e9), DeviceType("slow", 12e9)
    nodes = (Node("a", (kinds[0],) * fast, Link(1e10)), Node("b", (kinds[1],) * slow, Link(1e10)))
    return Cluster(nodes, Link(1e9, 1e-5))


@pytest.fixture
def explorer():
    return PartitionExplorer(profile_of(), cluster_of(), minibatches=6)


def hosts(explorer):
    return [host["counts"] for host in json.loads(explorer.view.drawing.map)["hosts"]]


def held(explorer):
    return [[kind.name for kind in node.device_types] for node in explorer.shown_cluster.nodes]


def no_later():
    return False


def test_the_first_lab_answers_what_two_kinds_of_gpu_gain():
    explorer = PartitionExplorer()
    estimate = explorer.plan.estimate
    assert [*PRESETS, THIS_MACHINE] == list(explorer.labs.menu.options)
    assert estimate.data_parallel_seconds / estimate.period_seconds == pytest.approx(1.57, abs=0.005)
    assert estimate.lower_bound_seconds == pytest.approx(estimate.period_seconds)
    tiles = {name: value for name, value, _ in json.loads(explorer.view.drawing.scene)["tiles"]}
    assert tiles["over data parallelism"] == "1.57 ×" and tiles["optimality gap"].endswith("proven")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_planned(name):
    lab = Lab.preset(name)
    assert partition(lab.profile, lab.cluster).estimate.period_seconds > 0


@pytest.mark.slow
def test_this_machine_is_measured_and_planned(explorer):
    """In a thread of its own: the lab before stays until then."""
    explorer.labs.menu.value = THIS_MACHINE
    assert held(explorer) == [["fast", "fast"], ["slow"]]
    until(lambda: explorer.labs.lab.network == MEASURED, lambda: explorer.messages.value)
    (kind,) = {device.type.name for device in explorer.shown_cluster.devices}
    assert explorer.profile.device_types == (kind,) and explorer.plan.estimate.period_seconds > 0
    assert explorer.labs.menu.value == explorer.labs.menu.options[0] == THIS_MACHINE


def test_devices_are_added_and_removed_host_by_host(explorer):
    click = explorer.view.drawing._answer
    assert hosts(explorer) == [{"fast": 2, "slow": 0}, {"slow": 1, "fast": 0}]
    click(None, {"step": {"host": 1, "type": "fast", "by": 1}}, None)
    assert (
        held(explorer) == [["fast", "fast"], ["slow", "fast"]] and explorer.controls.devices.counts["fast"].value == 3
    )
    click(None, {"step": {"host": 0, "type": "fast", "by": -1}}, None)
    assert held(explorer) == [["fast"], ["slow", "fast"]] and explorer.plan is not None
    for _ in range(3):
        click(None, {"step": {"host": 0, "type": "fast", "by": -1}}, None)
    assert hosts(explorer)[0] == {"fast": 0, "slow": 0} and held(explorer) == [["slow", "fast"]]
    names = {"profile": explorer.profile}
    exec(explorer.as_code(), names)
    assert names["plan"].stages == explorer.plan.stages
    explorer.controls.devices.counts["fast"].value = 2
    assert held(explorer) == [["fast", "fast"], ["slow"]], "a slider places devices by the rule"


def test_a_card_is_as_fast_as_was_said_and_a_file_opens_its_hosts(explorer, tmp_path, monkeypatch):
    labs = explorer.labs
    given, opened = labs.menu.value, []
    monkeypatch.setattr(labs, "_opened", lambda lab, act=labs._opened: opened.append(lab) or act(lab))
    labs.like.value, labs.speed.value, labs.memory.value, labs.host.value = "fast", 0.5, 11e9, "b"
    labs.add.click()
    assert explorer.messages.value == "" and held(explorer)[1] == ["slow", "fast × 0.5, 11 GB"]
    assert opened == [labs.lab], "once"
    card = explorer.shown_cluster.nodes[1].device_types[1]
    assert card.memory_bytes == 11e9
    layers = range(len(explorer.profile.graph.layers))
    slow, fast = (explorer.profile.time(layers, name) for name in (card.name, "fast"))
    assert slow == pytest.approx(tuple(2 * seconds for seconds in fast))
    (tmp_path / "three.toml").write_text(cluster_of(fast=1, slow=2).to_toml())
    labs.file.value = str(tmp_path / "three.toml")
    assert held(explorer) == [["fast"], ["slow", "slow"]] and explorer.messages.value == ""
    assert labs.menu.value == labs.menu.options[0] == str(tmp_path / "three.toml")
    labs.menu.value = given
    assert held(explorer) == [["fast", "fast"], ["slow"]]
    with raises("explorer.host_unknown", "c"):
        Lab(profile_of(), cluster_of()).with_card(like="fast", speed=1.0, memory_bytes=None, host="c")


def test_every_planner_is_a_candidate_and_a_click_shows_it(explorer):
    answer, candidates = explorer.current(), explorer.candidates
    rows = {row["key"]: row for row in candidates.rows(answer, None, no_later)}
    assert [*rows] == list(PLANNERS) and [row["shown"] for row in rows.values()].count(True) == 1
    for name, row in rows.items():
        if not row["refused"]:
            explorer._choose(name, "show")
            assert explorer.controls.plan.planner.value == name
            made = judged(partition(explorer.profile, explorer.shown_cluster, planner=name), explorer.problem)
            assert explorer.plan.estimate.period_seconds == made.estimate.period_seconds
            assert row["parts"] == [len(stage.layers) for stage in explorer.plan.stages]


def test_what_the_page_foresees_of_a_move_is_what_the_kernel_says_then(monkeypatch):
    """Times of the present plan where it stays the same; of devices and cuts those of the plan there."""
    monkeypatch.setattr(candidates_module, "_MOST_SECONDS", 60)  # all stops on a busy machine, too
    explorer = PartitionExplorer(profile_of(), cluster_of(), minibatches=6)
    drawing, controls = explorer.view.drawing, explorer.controls
    controls.plan.planner.value = "model-parallel"

    def compare(name, act, given):
        """Return whether the plan there was foreseen, for each stop."""
        first, same = json.loads(drawing.scene), []
        stops = tables[name]["stops"].items()
        for key, foreseen in list(stops)[:: 1 + len(stops) // 8]:
            act(key)
            drawn = json.loads(drawing.scene)
            assert drawn["places"][name] == [first["places"][name][0], key]
            names = drawn["bases"].get(name), drawn["places"][name][0]
            same.append(tables[name]["base"] in names)
            if same[-1]:
                rows = [{**row, "parts": [part[4:] for part in row["parts"]]} for row in drawn["stages"]]
                assert foreseen["stages"] in (rows, drawn["stages"])
                assert [tile for tile in foreseen["tiles"] if tile not in [own[:2] for own in drawn["tiles"]]] == []
        act(given)
        return same

    planning = Planning(explorer.profile, cluster_of(), explorer.planning.scale, minibatches=6)
    candidates = Candidates(planning)  # the explorer's are at work in their own thread
    tables = candidates.moves(explorer.current(), controls.sliders, no_later)
    same = {}
    for name in tables:
        slider = controls.sliders[name][1]
        move = partial(lambda slider, key: setattr(slider, "value", slider.of_key(key)), slider)
        same[name] = compare(name, move, slider.key(slider.value))
    assert sum(map(sum, same.values())) > 12
    assert all(same["fast"]) and all(same["slow"]) and len(same["fast"]) == 4 and "memory" in same
    controls.stages.pin_cuts.value = True
    tables, ends = candidates.moves(explorer.current(), controls.sliders, no_later), explorer.current().ends
    cuts = compare("cut 0", lambda key: controls.stages.move_cut(0, int(key)), ends[0])
    assert len(cuts) >= 2 and all(cuts)


def test_a_slider_that_comes_back_finds_the_same_picture_by_its_place(explorer):
    """The page shows a scene that it was sent before at once if all other settings are the same, by name."""

    def drawn():
        scene = json.loads(explorer.view.drawing.scene)
        return {name: value for name, value in scene.items() if name != "serial"}

    explorer.controls.plan.schedule.value = "gpipe"  # of which microbatches are counted
    first, sliders = drawn(), explorer.controls.sliders
    assert sliders.keys() == first["places"].keys() and first["baseline"] == ""
    for name, (_, slider) in sliders.items():
        others, given = [value for value in slider.values if value != slider.value], slider.value
        if slider.disabled:
            continue
        slider.value = min(others[-3:])
        (base, key), (other_base, other_key) = first["places"][name], drawn()["places"][name]
        assert base == other_base and key != other_key == slider.key(slider.value), name
        changed = [other for other in sliders if drawn()["places"][other][0] == first["places"][other][0]]
        assert changed == [name], "the pictures of other sliders are of other settings now"
        slider.value = given
        assert drawn() == first, name
    explorer.view.pin.click()
    assert drawn()["baseline"] != "" and drawn()["places"] == first["places"], "A is in the picture"


def test_a_cut_that_moves_keeps_the_devices_unless_they_may_swap(explorer):
    explorer.controls.plan.planner.value = "model-parallel"
    drawing, stages = explorer.view.drawing, explorer.controls.stages
    devices = [stage.ranks for stage in explorer.plan.stages]
    drawing.swap = False
    assert not stages.pinned, "nothing is pinned until a cut moves"
    drawn = json.loads(drawing.scene)["serial"]
    drawing.moved = {"cut": 0, "at": 1, "number": 1}
    assert json.loads(drawing.scene)["serial"] == drawn + 1, "drawn once"
    drawing.moved = {"cut": 1, "at": 2, "number": 2}  # the slow device has six of eight layers
    assert stages.cuts == (1, 2) and [stage.ranks for stage in explorer.plan.stages] == devices
    drawing.swap = True
    assert stages.pin_cuts.value and not stages.pin_devices.value
    freely = with_cuts(explorer.problem, stages.cuts)
    assert [stage.ranks for stage in explorer.plan.stages] == [stage.ranks for stage in freely.stages] != devices
    stages.pin_devices.value = True
    assert not drawing.swap


def test_pins_keep_their_settings_and_five_stay(explorer):
    counts = explorer.controls.devices.counts
    explorer._choose("data-parallel", "baseline")
    assert explorer.pinned.planner == "data-parallel" and explorer.plan.planner == "optimal"
    counts["slow"].value = 3
    explorer._choose("pin 0", "show")
    assert explorer.plan.stages == explorer.pinned.stages and counts["slow"].value == 1
    for batch_size in (1, 2, 4, 8, 32):
        explorer.controls.workload.batch_size.value = batch_size
        explorer.view.pin.click()
    assert [pin.settings.batch_size for pin in explorer.candidates.pins] == [1, 2, 4, 8, 32]
    explorer._choose("pin 4", "remove")
    assert explorer.pinned is None and len(explorer.candidates.pins) == 4
    with raises("explorer.candidate_lost"):
        explorer.candidates.settings("pin 4", explorer.current().settings)


def test_points_are_plans_and_the_front_is_what_no_plan_beats(explorer):
    points = explorer.candidates.points(explorer.current(), no_later)
    assert len(points) > 10
    for key, seconds, size, _, front in points:
        beaten_by = [one for one in points if one[1] <= seconds and one[2] <= size and one[1:3] != (seconds, size)]
        assert front == (not beaten_by)
        if front:
            explorer._choose(key, "show")
            period = explorer.plan.estimate.period_seconds
            if period > seconds * (1 - 1e-9):  # else the search that goes on found a better plan meanwhile
                assert period == pytest.approx(seconds)
                assert max(part.memory_bytes for part in explorer.plan.position_estimates) == pytest.approx(size)


def test_changes_of_the_hardware_are_those_of_a_quick_comparison(explorer):
    answer = explorer.current()
    found = compare_hardware(explorer.profile, answer.cluster, schedule=answer.plan.schedule, quick=True).changes
    rows = explorer.candidates.hardware(answer, no_later)
    assert [row["name"] for row in rows] == [own.name for own in found]
    assert [(row["least"], row["most"]) for row in rows] == [(own.least, own.most) for own in found]
    assert max(row["most"] for row in rows) > 0 > min(row["least"] for row in rows)
    with pytest.raises(Superseded):
        explorer.candidates.hardware(answer, lambda: True)


def test_the_suggestion_is_a_cut_that_saves_time():
    explorer = PartitionExplorer(profile_of(num_layers=20), cluster_of(), minibatches=6)
    explorer.controls.plan.planner.value = "model-parallel"
    ends = explorer.current().ends
    explorer.view.drawing.moved = {"cut": 0, "at": ends[0] + 3, "number": 1}
    assert explorer.controls.stages.cuts == (ends[0] + 3, *ends[1:]), "the other cuts stay"
    before, advice = explorer.plan.estimate.period_seconds, json.loads(explorer.view.drawing.scene)["try"]
    explorer.view.drawing.moved = {**advice, "number": 2}
    assert explorer.plan.estimate.period_seconds < before


def test_the_shaded_band_is_what_is_not_extrapolated():
    explorer = PartitionExplorer(*unlike_devices("minkvgg11bn-narrow"))
    workload, scale = explorer.controls.workload, explorer.planning.scale
    names = [kind.name for kind in explorer.shown_cluster.device_types]
    workload.shade(explorer.profile, names)
    for slider in (workload.batch_size, workload.voxel_size):
        first, last = map(slider.of_key, slider.band)
        assert first < last
        for value in slider.values:
            chosen = (value, 0.03) if slider is workload.batch_size else (16, value)
            beyond = scale.scaled(explorer.profile, *chosen).certainty(types=names).extrapolated
            assert beyond == (not first <= value <= last)
