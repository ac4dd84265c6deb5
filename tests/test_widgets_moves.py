"""The partition explorer under whatever moves: it shows what its controls say, or says that it does not."""

import json
import re
from functools import cache

import ipywidgets
from hypothesis import given, settings
from hypothesis import strategies as st
from test_widgets_words import profile_of

from sparsepipe import Cluster, DeviceType, InputError, Link, Node
from sparsepipe.views.widgets import PartitionExplorer
from sparsepipe.views.widgets.stop_slider import StopSlider

TYPES = ("fast", "slow", "old", "tiny")
TYPED = ("", "every=2", "quorum=9", "slow:rank=0,factor=2", "kill:rank=0,at=3", "x")
profiles = cache(profile_of)


@st.composite
def explorers(draw):
    """One to four device types, on one node or a node each; one device and one layer among them."""
    types = TYPES[: draw(st.integers(1, 4))]
    counts = [draw(st.integers(1, 3)) for _ in types]
    memory = st.sampled_from([float("inf"), 12e9])
    kinds = [(DeviceType(name, draw(memory)),) * n for name, n in zip(types, counts, strict=True)]
    own = [Node(f"n{k}", few, Link(1e10)) for k, few in enumerate(kinds)]
    together = draw(st.booleans())
    nodes = (Node("a", sum(kinds, ()), Link(1e10)),) if together else tuple(own)
    profile = profiles(types, num_layers=draw(st.sampled_from([1, 2, 8])))
    return PartitionExplorer(profile, Cluster(nodes, Link(1e9, 1e-5)), minibatches=6)


def move(data, explorer):
    """One move that a page could make: a control that is shown, to one of its ends or between; or a button."""
    several, editor = explorer.controls.pipelines, explorer.controls.stages.editor
    resize = [editor.more, editor.less] if editor.widget.layout.display == "" else []
    buttons = [explorer.view.pin, explorer.view.unpin, *resize]
    boxes = [box for row in editor.rows.children for box in row.children[1:]]
    hidden = [] if several.picked else several.controls[1:]
    every = [*explorer.controls.every, *buttons, *boxes]
    shown = [one for one in every if one not in hidden and one.layout.display != "none"]
    control = data.draw(st.sampled_from([one for one in shown if not getattr(one, "disabled", False)]), "control")
    if isinstance(control, ipywidgets.Button):
        control.click()
        return
    if control in explorer.controls.devices.counts.values():
        values = [0, 1, 3]
    elif control is several.slider:
        values = [1, 2]
    elif isinstance(control, StopSlider):
        every = list(control._values.values())
        values = [every[0], every[len(every) // 2], every[-1]]
    elif isinstance(control, ipywidgets.Dropdown):
        values = list(control._options_values)
    elif isinstance(control, ipywidgets.Text):
        values = TYPED
    elif isinstance(control, ipywidgets.BoundedIntText):
        values = [0, 1, 99]
    else:
        values = [False, True]
    control.value = data.draw(st.sampled_from(values), control.description)


def made_by(code, profile):
    """The plan that the copied code makes."""
    names = {"profile": profile}
    exec(code, names)
    return names["plan"]


@settings(max_examples=10, deadline=None)
@given(explorers(), st.data())
def test_whatever_is_moved_the_picture_is_of_it_or_says_that_it_is_old(explorer, data):
    for _ in range(8):
        move(data, explorer)
        try:
            shown = explorer.current()
        except InputError:
            assert explorer.plan is None and explorer.view.drawing.stale and explorer.messages.value
            assert (
                explorer.exporter.button.disabled and explorer.saver.save_button.disabled and explorer.view.pin.disabled
            )
        else:
            assert (
                shown.settings == explorer.controls.settings()
                and shown.plan is explorer.plan
                and not explorer.view.drawing.stale
            )
            assert not explorer.exporter.button.disabled and not explorer.saver.save_button.disabled
        told = re.sub("<[^>]*>", "", explorer.messages.value)
        scene = json.loads(explorer.view.drawing.scene)
        words = [told, explorer.view.drawing.stale, scene.get("why", ""), *scene.get("notes", [])]
        words += [word for tile in scene.get("tiles", []) for word in tile]
        assert "Traceback" not in told
        assert not [text for text in words if re.search(r"\d{8}|\binf\b|\bnan\b|None|\de\+", text)]
    if explorer.plan is None:
        return
    plan, again = explorer.plan, made_by(explorer.as_code(), explorer.profile)
    if plan.members:
        assert [one.stages for one in again.pipelines] == [one.stages for one in plan.pipelines]
    else:
        assert (again.stages, again.schedule, again.weights) == (plan.stages, plan.schedule, plan.weights)
