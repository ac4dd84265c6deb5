"""The words of all widgets: hints are sentences, names stay in one line, every control has a name of its own."""

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import ipywidgets
import pytest

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
    widgets,
)
from sparsepipe.display.markup import Html
from sparsepipe.display.names import unbroken
from sparsepipe.planners import PLANNERS
from sparsepipe.plots.theme import tied
from sparsepipe.runtime.config import RunConfig
from sparsepipe.widgets import LaunchBoard, LayerGraphExplorer, PartitionExplorer, RunsTable, WaitingExplorer
from sparsepipe.widgets.html_view import HtmlView
from sparsepipe.widgets.messages import Messages
from sparsepipe.widgets.partition_view import PartitionView
from sparsepipe.widgets.sentences import sentence
from sparsepipe.widgets.stop_slider import StopSlider


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
    one.pin_devices.value = one.pin_cuts.value = True
    several.several.slider.value = 2
    several.current()
    waiting = WaitingExplorer(profile, Link(1e9), pipelines=2, minibatches=6)
    return [board, one, several, waiting, LayerGraphExplorer(profile), RunsTable(folder / "runs")]


def parts_of(widget):
    yield widget
    for child in getattr(widget, "children", ()):
        yield from parts_of(child)


def test_hints_begin_with_capitals(all_widgets):
    """They were parts of sentences: "who chooses the stages"."""
    hints = [part.tooltip for shown in all_widgets for part in parts_of(shown.widget) if getattr(part, "tooltip", "")]
    for explorer in all_widgets[1:3]:
        scene = json.loads(explorer.view.scene)
        hints += [scene["hint"], *(what for *_, what in scene["tiles"])]
        hints += re.findall("<dd[^>]*>([^<]*)</dd>", explorer.widget.children[1].children[-1].value)
    assert len(hints) > 100
    assert not [text for text in hints if re.match("[a-z]+[ ,;:.]", text) and text.split()[0] not in PLANNERS]


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


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("no device chosen: move a slider up", "No device chosen: move a slider up"),
        ("zbv: needs two stages per device", "zbv: needs two stages per device"),
        ("optimal plans one stage per device", "optimal plans one stage per device"),
        ("work/plan.json: is not there", "work/plan.json: is not there"),
        ("first-001 is running", "first-001 is running"),
        ("learning_rate = 0.0, expected more", "learning_rate = 0.0, expected more"),
        ("", ""),
    ],
)
def test_a_sentence_begins_with_a_capital_and_a_name_as_it_is(given, told):
    assert sentence(given) == told
    messages = Messages()
    messages.hold(given)
    messages.fail(given)
    assert messages.value.count("<pre") == bool(given) and told in messages.value


def test_names_with_hyphens_are_sent_to_a_page_in_one_piece():
    """`1f1b-flush` was broken behind its hyphen, in whatever line it stood."""
    view = HtmlView("of minkvgg11bn-narrow, under 1f1b-flush: a <b> - c")
    sent = view.get_state()["value"]
    whole = "<span style='display:inline-block;max-width:calc(100% - 10px);overflow-wrap:anywhere'>{}</span>"
    assert sent == (f"of {whole.format('minkvgg11bn-narrow,')} under {whole.format('1f1b-flush:')} a &lt;b&gt; - c"), (
        "names alone, and text stays text"
    )
    assert view.value == "of minkvgg11bn-narrow, under 1f1b-flush: a &lt;b&gt; - c", "what was given is not changed"
    view.value = Html("<b title='1f1b-flush'>{}</b><svg><text>a-b</text></svg>").format("x")
    assert view.get_state()["value"] == view.value, "neither in tags nor in drawings"
    view.value = Html("<b title='1f1b-flush'>{}</b>").format("a-b")
    assert view.get_state()["value"] == f"<b title='1f1b-flush'>{whole.format('a-b')}</b>"


def test_numbers_and_their_units_and_facts_and_their_dots_are_sent_to_a_page_in_one_line():
    """ "links 4" ended a line, and "GB/s" began the next; so did the dot between two facts."""
    view = HtmlView(Html("<b title='4 GB'>links {}</b>").format("4 GB/s, 20 µs · <2 × fast"))
    assert (
        view.get_state()["value"] == "<b title='4 GB'>links 4\u00a0GB/s, 20\u00a0µs\u00a0· &lt;2\u00a0×\u00a0fast</b>"
    )
    assert "\u00a0" not in view.value, "what was given is not changed"


def test_numbers_stay_with_rates_and_brackets():
    """ "1,397" ended a line and "samples/s" began the next, and "1.20" stood before "(minkowski-2t)"."""
    told = tied("1,397 samples/s (4 pipelines) 64%, 1.20 (minkowski-2t), gap 0%, in 2 steps")
    assert told.split(" ") == [
        "1,397\u00a0samples/s", "(4\u00a0pipelines)", "64%,", "1.20\u00a0(minkowski-2t),", "gap\u00a00%,",
        "in", "2", "steps"
    ]  # fmt: skip
    whole = Html("<i>{}</i>")
    assert unbroken("1.20\u00a0(minkowski-2t), a-b\u00a0× 2", whole) == (
        "<i>1.20\u00a0(minkowski-2t),</i> <i>a-b\u00a0×</i> 2"
    ), "a line may end beside a box, so the number is in it"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_pages_put_names_as_the_kernel_does():
    """What pages draw themselves follows the same rule, and escapes as well."""
    text = "of minkvgg11bn-narrow, under 1f1b-flush: a <b> - c; 2 × fast, links 4 GB/s, 20 µs · 1f1b 3 stages"
    text += ", 1,397 samples/s (4 pipelines), 1.20 (minkowski-2t) 3, gap <0.1%"
    code = (Path(widgets.__file__).parent / "names.js").read_text() + f"\nconsole.log(whole({json.dumps(text)}))"
    found = subprocess.run(["node", "-e", code], capture_output=True, text=True, check=True).stdout
    sent = HtmlView(text).get_state()["value"]
    assert found.strip().replace('"', "'").replace("&#60;", "&lt;").replace("&#62;", "&gt;") == sent


STRIP = """
const layers = [...Array(63).keys()].map((k) => [k < 56 ? `c${k}` : "bn8_1_short", 1, 0]);
const palette = { stages: [["#111111", "#222222", "#333333"]], edges: {} };
for (const width of [1475, 1600, 2000]) console.log(strip({ layers }, palette, width).replace(/<title>[^<]*/g, ""));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_no_name_below_a_strip_is_cut_by_its_end():
    """ "bn8_1_sho…" stood below the last layers on a wide page, where others have their whole names."""
    page = "const document = { createElement: () => ({ getContext: () => ({}) }) };\n"
    page += str(PartitionView._esm) + STRIP
    found = subprocess.run(["node", "--input-type=module", "-e", page], capture_output=True, text=True, check=True)
    for line in found.stdout.splitlines():
        assert ">c0<" in line and "…" not in line
