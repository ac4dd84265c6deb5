"""Settings that cannot be planned leave nothing to act on: no figure, no code, no plan of the settings before."""

import json
import threading

import pytest
from coded import mentions, raises
from processes import ENOUGH

from sparsepipe import Cluster, CostSample, DeviceType, Layer, LayerCost, LayerGraph, Link, Node, Profile
from sparsepipe.views.widgets import PartitionExplorer
from sparsepipe.views.widgets import planning as planning_module


def profile_of(num_layers=12):
    layers = tuple(Layer(f"conv{k}", "", 1e6) for k in range(num_layers))
    few = [CostSample(1000, 0.01 + 0.001 * k, 0.02, 1e6, 0, 1e6) for k in range(num_layers)]
    costs = tuple(LayerCost((f, CostSample(2000, 2 * f.forward, 2 * f.backward, 2e6, 0, 2e6))) for f in few)
    return Profile(LayerGraph.chain(layers), {"cpu": costs}, (1000.0,), {"batch_size": 16, "voxel_size": 0.04})


@pytest.fixture
def explorer(tmp_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "none"))  # the table and the origin are written all the same
    cluster = Cluster((Node("a", (DeviceType("cpu"),) * 4, Link(12e9)),), Link(12e9))
    return PartitionExplorer(profile_of(), cluster, figures=tmp_path / "figures")


def no_memory(explorer):
    explorer.controls.devices.memory.value = 1.5e7


def weights_that_do_not_interleave(explorer):
    explorer.controls.plan.planner.value = "model-parallel"
    explorer.controls.plan.stages_per_device.slider.value = 2
    explorer.controls.plan.weights.value = "2bw"


def cut_by_hand(explorer):
    explorer.controls.plan.planner.value = "model-parallel"
    explorer.controls.stages.pin_cuts.value = True
    explorer.view.drawing.moved = {"cut": 0, "at": 0, "number": 1}


def devices_taken_away(explorer):
    explorer.controls.plan.planner.value = "model-parallel"
    explorer.controls.stages.pin_devices.value = True
    explorer.controls.devices.counts["cpu"].value = 2


REFUSED = [no_memory, weights_that_do_not_interleave, cut_by_hand, devices_taken_away]


@pytest.mark.parametrize("refuse", REFUSED)
def test_nothing_acts_on_the_plan_of_other_settings(explorer, refuse):
    """Memory was set to 15 MB: a click on export wiped the message away and wrote figures of the plan before."""
    first = explorer.plan
    refuse(explorer)
    said, picture = explorer.messages.value, explorer.view.drawing.scene
    assert "#D55E00" in said and "Traceback" not in said
    assert explorer.plan is None and explorer.shown.plan is not None
    assert mentions(explorer.view.drawing.stale, explorer.shown.told())
    for button in (explorer.exporter.button, explorer.view.pin):
        assert button.disabled and "cannot be planned" in button.tooltip
        button.click()  # a disabled button does not hold up a cell
        assert explorer.messages.value.startswith(said), "the message stays"
    with raises("export.blocked", "cannot be planned"):
        explorer.exporter.export()
    with raises("explorer.no_plan", "cannot be planned"):
        explorer.as_code()
    assert not explorer.exporter.folder.exists() and explorer.pinned is None
    explorer.view.unpin.click()  # succeeds, and says nothing of the settings
    assert explorer.messages.value == said and explorer.view.drawing.stale
    for pin in (explorer.controls.stages.pin_cuts, explorer.controls.stages.pin_devices):
        assert pin.disabled != pin.value, "what is pinned can be let go, what is not has nothing to keep"
    assert picture and first is not None
    explorer.controls.stages.pin_cuts.value = explorer.controls.stages.pin_devices.value = False
    (
        explorer.controls.devices.memory.value,
        explorer.controls.devices.counts["cpu"].value,
        explorer.controls.plan.weights.value,
    ) = 0.0, 4, explorer.controls.plan.weights.options[0]
    assert explorer.messages.value == explorer.view.drawing.stale == explorer.state.refused == ""
    assert explorer.plan is explorer.shown.plan
    assert not explorer.view.pin.disabled and not explorer.exporter.button.disabled
    explorer.exporter.button.click()
    assert (explorer.exporter.folder / "explorer_stages.csv").exists(), "all is well again once a plan fits"


def test_a_picture_is_marked_as_old_when_nothing_acts_on_it_any_more(explorer):
    """The page had greyed it, and the buttons beside could still be clicked: each was told by another message."""
    buttons = (
        explorer.exporter.button,
        explorer.saver.save_button,
        explorer.view.pin,
        explorer.controls.stages.pin_cuts,
    )
    told = []
    explorer.view.drawing.observe(lambda change: told.append({one.disabled for one in buttons}), names="stale")
    no_memory(explorer)
    explorer.controls.devices.memory.value = 0.0
    assert told == [{True}, {False}]


def test_nothing_can_be_pinned_while_there_is_no_plan(explorer):
    no_memory(explorer)
    explorer.controls.stages.pin_cuts.value = True
    assert (
        not explorer.controls.stages.pin_cuts.value
        and explorer.plan is None
        and explorer.controls.settings().cuts is None
    )


def test_settings_that_never_fitted_show_no_picture_and_leave_nothing(tmp_path):
    cluster = Cluster.uniform(2, device_type="cpu", memory_bytes=1e6)
    explorer = PartitionExplorer(profile_of(), cluster, figures=tmp_path)
    assert (
        explorer.plan is None
        and explorer.view.drawing.stale.startswith("No plan")
        and explorer.view.drawing.scene == "{}"
    )
    explorer.exporter.button.click()
    explorer.view.pin.click()
    assert (
        not list(tmp_path.iterdir()) and explorer.pinned is None and explorer.state.refused and explorer.messages.value
    )
    with raises("explorer.no_plan"):
        _ = explorer.problem
    explorer.controls.devices.memory.value = 1e11
    assert explorer.plan is not None and explorer.messages.value == ""


def test_a_fault_of_the_planner_leaves_nothing_to_export_either(explorer, monkeypatch):
    monkeypatch.setattr(planning_module, "simulate", lambda *_: 1 / 0)
    explorer.controls.devices.counts["cpu"].value = 3
    assert "ZeroDivisionError" in explorer.messages.value and explorer.plan is None and explorer.view.drawing.stale
    explorer.exporter.button.click()
    assert not explorer.exporter.folder.exists()


def test_a_failed_export_does_not_hide_that_settings_are_refused(explorer):
    no_memory(explorer)
    explorer.controls.devices.memory.value = 0.0
    (explorer.exporter.folder.parent / "file").write_text("")
    explorer.exporter.folder = explorer.exporter.folder.parent / "file"
    explorer.exporter.button.click()
    assert "cannot be written" in explorer.messages.value and not explorer.exporter.button.disabled


def test_a_click_waits_for_a_change_that_is_still_planned(explorer, monkeypatch):
    """The page's clicks and a cell's assignments come in two threads: neither may act between value and plan."""
    begun, go_on = threading.Event(), threading.Event()
    own = planning_module.simulate

    def slow(*arguments):
        begun.set()
        assert go_on.wait(ENOUGH)
        return own(*arguments)

    monkeypatch.setattr(planning_module, "simulate", slow)
    cell = threading.Thread(target=lambda: setattr(explorer.controls.devices.counts["cpu"], "value", 2))
    cell.start()
    assert begun.wait(ENOUGH)
    click = threading.Thread(target=explorer.view.pin.click)
    click.start()
    change = threading.Thread(target=lambda: setattr(explorer.controls.plan.schedule, "value", "gpipe"))
    change.start()
    assert explorer.pinned is None
    go_on.set()
    for thread in (cell, click, change):
        thread.join(ENOUGH)
    assert len(explorer.pinned.ranks) <= 2, "the plan of the devices that the slider shows"
    assert explorer.plan.schedule == "gpipe", "a change while another is planned is not lost"
    assert explorer.shown.settings == explorer.controls.settings()


class Page:
    """What a browser does: it answers what it is asked, after it has sent what it held back."""

    def __init__(self, view, monkeypatch):
        self.view, self.held, self.heard = view, [], []
        monkeypatch.setattr(type(view), "send", lambda _, content: self.heard.append(content))
        self.says({"open": True})

    def says(self, content):
        self.view._answer(self.view, content, [])

    def catches_up(self):
        for act in self.held:
            act()
        for content in [one for one in self.heard if "settled" in one]:
            self.heard.remove(content)
            self.says(content)


def test_a_click_of_the_page_acts_on_what_its_sliders_show(explorer, monkeypatch):
    """A page holds back the last move of a slider while the kernel plans an earlier one; a click overtakes it."""
    page = Page(explorer.view.drawing, monkeypatch)
    page.held.append(lambda: no_memory(explorer))
    explorer.exporter.button._handle_button_msg(None, {"event": "click"}, [])
    page.says({"copy": True})
    assert not explorer.exporter.folder.exists(), "the page may still have something to send"
    page.catches_up()
    assert not explorer.exporter.folder.exists() and explorer.state.refused
    assert [list(content) for content in page.heard] == [["refused"]]
    explorer.controls.devices.memory.value = 0.0
    page.held = [lambda: setattr(explorer.controls.devices.counts["cpu"], "value", 2)]
    explorer.exporter.button._handle_button_msg(None, {"event": "click"}, [])
    page.says({"copy": True})
    page.catches_up()
    kept = json.loads((explorer.exporter.folder / "explorer_stages.json").read_text())
    assert '"cpu": 2' in json.dumps(kept) and page.heard[-1] == {"code": explorer.as_code()}
    page.says({"settled": 99})
    page.says("nonsense")
