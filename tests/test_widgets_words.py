"""The words of all widgets: hints are sentences, names stay in one line, every control has a name of its own."""

from collections import Counter

import ipywidgets
import pytest

from scripts.prose import opens_badly
from sparsepipe import (
    Cluster,
    CostSample,
    DeviceType,
    Layer,
    LayerCost,
    LayerGraph,
    Link,
    Node,
    Profile,
    partition,
)
from sparsepipe.planning import PlanSettings
from sparsepipe.runtime.config import RunConfig
from sparsepipe.util.io.settings import rows
from sparsepipe.views.widgets import LaunchBoard, LayerGraphExplorer, PartitionExplorer, RunsTable, WaitingExplorer
from sparsepipe.views.widgets.stop_slider import StopSlider


def profile_of(types=("fast", "slow"), num_layers=8):
    def costs(factor):
        few = [CostSample(1000, 0.01 * factor, 0.02 * factor, 1e5, 0, 1e6) for _ in range(num_layers)]
        return tuple(LayerCost((s, CostSample(2000, 2 * s.forward, 2 * s.backward, 2e5, 0, 2e6))) for s in few)

    graph = LayerGraph.chain(tuple(Layer(f"conv{k}", "", 1e5) for k in range(num_layers)))
    facts = {"batch_size": 16, "voxel_size": 0.04, "model": "net"}
    return Profile(graph, {name: costs(k + 1) for k, name in enumerate(types)}, (1000.0,), facts)


@pytest.fixture(scope="module")
def all_widgets(tmp_path_factory):
    """All of them, with what shows itself only where it is asked for."""
    folder, profile = tmp_path_factory.mktemp("words"), profile_of()
    nodes = (Node("a", (DeviceType("fast"),) * 2, Link(1e10)), Node("b", (DeviceType("slow"),) * 2, Link(1e10)))
    cluster = Cluster(nodes, Link(1e9))
    config = RunConfig("net", "data", batch_size=16, voxel_size=0.04)
    plans = {"pipeline": partition(profile, cluster), "other": partition(profile, cluster, planner="data-parallel")}
    board = LaunchBoard(plans, config, runs=folder / "runs", profile=profile, cluster=cluster)
    one, several = (PartitionExplorer(profile, cluster, plans=folder, board=board) for _ in range(2))
    one.controls.stages.pin_devices.value = one.controls.stages.pin_cuts.value = True
    several.controls.pipelines.slider.value = 2
    several.current()
    waiting = WaitingExplorer(profile, Link(1e9), pipelines=2, minibatches=6)
    return [board, one, several, waiting, LayerGraphExplorer(profile), RunsTable(folder / "runs")]


def parts_of(widget):
    yield widget
    for child in getattr(widget, "children", ()):
        yield from parts_of(child)


CONTROLS = (
    *(ipywidgets.Button, ipywidgets.ToggleButton, ipywidgets.Dropdown, ipywidgets.Text, ipywidgets.SelectMultiple),
    *(ipywidgets.Checkbox, ipywidgets.FloatText, ipywidgets.BoundedIntText, ipywidgets.IntProgress, StopSlider),
)


def called(control):
    """A control by its name; a field of many of its name, as tips.js calls it."""
    of = [name.removeprefix("sp-of-") for name in control._dom_classes if name.startswith("sp-of-")]
    return ", ".join([control.description or control.tooltip, *of])


def test_every_control_has_a_name_of_its_own_and_says_what_it_is_for(all_widgets):
    """The fields of all stages were called after the device type alone, and explained as its slider is."""
    for shown in all_widgets:
        controls = [part for part in parts_of(shown.widget) if isinstance(part, CONTROLS)]
        names = Counter(map(called, controls))
        assert len(controls) > 2 and all(names) and not [name for name, count in names.items() if count > 1]
        told = [control.tooltip or control._dom_classes for control in controls]  # by its class tips.js explains it
        assert all(told)
        texts = [text for control in controls if isinstance(control, StopSlider) for _, text in control.stops]
        assert all(texts), "every value has words"


def test_no_tooltip_opens_as_a_fragment(all_widgets):
    """ "of the links within every node", "what holds ranks up"; helps of settings are counted in test_prose.py."""
    helps = tuple(row.help.lower() for table in (RunConfig, PlanSettings) for row in rows(table).values())
    parts = [part for shown in all_widgets for part in parts_of(shown.widget)]
    tips = {tip for part in parts if isinstance(tip := getattr(part, "tooltip", None), str) and tip}
    assert [tip for tip in tips if opens_badly(tip) and not tip.lower().startswith(helps)] == []
