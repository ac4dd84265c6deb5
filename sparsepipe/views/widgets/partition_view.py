"""The drawing in the partition explorer: updated by one message a change, in milliseconds.

Plain SVG, not plotly: a slider's move redraws layers, stages, memory and the timeline at once, and a browser takes
plotly a tenth of a second for each. Cuts are handles to drag with the mouse or to move with the arrow keys.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from ...errors import InputError
from ...values.profile import Profile
from ..plots.layer_graph import layer_name, lines_of
from ..plots.layout import layout
from . import looks
from .looks import page_code, sentence
from .plan_picture import plan_picture, scene_of
from .view_model import PALETTE

PARTS = (
    "names",
    "svg_marks",
    "timeline",
    "partition_cuts",
    "device_map",
    "candidates",
    "partition_view",
)  # of its page
NO_PLAN = "these settings cannot be planned: see the message above the picture"


# Of a line of the layer graph: beside the sliders names have room; of many layers the whole is in sight instead.
_COLUMNS, _COLUMNS_OF_MANY, _FEW = 6, 24, 120


class PartitionView(looks.Control, anywidget.AnyWidget):
    """Draws a scene (view_model.py). `moved` holds the last cut that was moved: {"cut": k, "at": layers before it}."""

    _esm = page_code(*PARTS)
    _css = Path(__file__).with_name("explorer.css")
    scene = traitlets.Unicode("{}").tag(sync=True)  # JSON: traitlets would compare every number of a dict
    graph = traitlets.Unicode("{}").tag(sync=True)  # JSON: where layers stand, which stays
    map = traitlets.Unicode("{}").tag(sync=True)  # JSON: hosts, their devices and links, as the controls say
    candidates = traitlets.Unicode("{}").tag(sync=True)  # JSON: rows and points of candidates.py
    moves = traitlets.Unicode("{}").tag(sync=True)  # JSON: the plan's times at stops of sliders, before they are moved
    sizes = traitlets.Unicode("{}").tag(sync=True)  # JSON: sizes.py says of what; it comes after its scene
    closing = traitlets.Unicode("{}").tag(sync=True)  # JSON: tiles of a scene while a search goes on, and its serial
    palette = traitlets.Dict(PALETTE).tag(sync=True)
    moved = traitlets.Dict({}).tag(sync=True)
    swap = traitlets.Bool(True).tag(sync=True)  # whether stages may get other devices as a cut moves
    stale = traitlets.Unicode("").tag(sync=True)  # what the picture is of, where it is not of what the controls say
    pending = traitlets.Bool(False).tag(sync=True)  # whether the picture of what they say is on its way
    reason = traitlets.Unicode(NO_PLAN).tag(sync=True)  # why nothing can be done with it then

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_class("sp-drawing")
        self._open, self._number = False, 0  # whether a page shows it
        self._acts: dict[str, Callable[..., object]] = {}  # by the name of what the page asks for
        self._waiting: dict[int, Callable[[], Any]] = {}
        self.on_msg(self._answer)

    def show(self, scene: Mapping[str, Any]) -> None:
        """Replace what is drawn."""
        self.scene = drawn_text(scene)

    def show_map(self, drawn: Mapping[str, object]) -> None:
        """Replace the map of hosts, devices and links."""
        self.map = json.dumps(drawn, separators=(",", ":"))

    def show_candidates(self, drawn: Mapping[str, object]) -> None:
        """Replace the rows of candidates, and their points."""
        self.candidates = json.dumps(drawn, separators=(",", ":"))

    def show_moves(self, tables: Mapping[str, object]) -> None:
        """Replace what the page shows of a slider's move until its plan comes."""
        self.moves = json.dumps(tables, separators=(",", ":"))

    def show_closing(self, tiles: Sequence[Sequence[str]], serial: int) -> None:
        """Replace tiles of the scene with this serial, if it is shown."""
        self.closing = json.dumps(
            {"tiles": [[name, value, sentence(what)] for name, value, what in tiles], "serial": serial}
        )

    def show_sizes(self, scene: Mapping[str, object]) -> None:
        """Replace what is drawn of sizes and orders; faded unless its serial is that of the scene that is shown."""
        self.sizes = json.dumps(scene, separators=(",", ":"))

    def mark(self, stale: str, reason: str, *, pending: bool) -> None:
        """Say what an old picture is of, and why nothing can be done with it; without a text that it is new."""
        with self.hold_sync():
            self.reason = sentence(reason) or self.reason
            self.stale, self.pending = sentence(stale), pending

    @property
    def links(self) -> dict[str, Any]:
        """The map that is shown: hosts, their devices, and links."""
        drawn: dict[str, Any] = json.loads(self.map)
        return drawn

    def static_picture(self) -> dict[str, str]:
        """The scene that is shown now, as SVG."""
        scene = scene_of(self.scene)
        return {} if scene is None else {"image/svg+xml": plan_picture(scene, links=self.links, stale=self.stale)}

    def on_cut(self, act: Callable[[int, int], None]) -> None:
        """Call `act(cut, layers before it)` with each cut that is moved."""
        self.observe(lambda change: act(change["new"]["cut"], change["new"]["at"]), names="moved")

    def on_step(self, act: Callable[[int, str, int], None]) -> None:
        """Call `act(host, device type, by)` with each click that adds a device to a host of the map, or removes one."""
        self._acts["step"] = act

    def on_candidate(self, act: Callable[[str, str], None], toggle: Callable[[str], None]) -> None:
        """Call `act(key, "show" | "baseline" | "remove")` with each click on a candidate, `toggle(part)` for a part."""
        self._acts |= {"candidate": act, "toggle": toggle}

    def on_copy(self, code: Callable[[], str]) -> None:
        """Call `code` for the text that the copy button takes; the InputError that it raises is shown there."""
        self._acts["copy"] = code

    def settled(self, act: Callable[[], Any]) -> None:
        """Call `act` once all that the page was about to send has come; at once if no page shows the view.

        A page sends the last move of a slider when it hears that the kernel is done with the one before, and answers
        what it is asked here only after that.
        """
        if not self._open:
            act()
            return
        self._number += 1
        self._waiting[self._number] = act
        self.send({"settled": self._number})

    def _answer(self, _: object, content: object, __: object) -> None:
        if not isinstance(content, dict):
            return
        self._open = self._open or "open" in content
        if content.get("settled") in self._waiting:  # the first page to answer; others show the same
            self._waiting.pop(content["settled"])()
        if isinstance(step := content.get("step"), dict):
            self._acts["step"](step["host"], step["type"], step["by"])
        if isinstance(chosen := content.get("candidate"), dict):
            self.settled(lambda: self._acts["candidate"](chosen["key"], chosen["act"]))
        if content.get("toggle") in ("points", "hardware"):
            self.settled(lambda: self._acts["toggle"](content["toggle"]))
        if "copy" in content:
            self.settled(self._send_code)

    def _send_code(self) -> None:
        try:
            self.send({"code": self._acts["copy"]()})
        except InputError as error:
            self.send({"refused": str(error)})


def drawn_text(scene: Mapping[str, Any]) -> str:
    """Return a scene as the page reads it. What explains its numbers begins with capitals."""
    texts = {
        "tiles": [[name, value, sentence(what)] for name, value, what in scene["tiles"]],
        "notes": [*map(sentence, scene["notes"])],
        "hint": sentence(scene["hint"]),
    }
    return json.dumps({**scene, **texts}, separators=(",", ":"))


def graph_text(profile: Profile) -> str:
    """Return the drawing of a graph with branches; empty for a chain, which the strip of layers shows."""
    graph = profile.graph
    if graph.is_chain or len(graph.layers) - len(graph.input_layers) == 1:
        return "{}"
    placed = layout(graph, columns=_COLUMNS if len(graph.layers) <= _FEW else _COLUMNS_OF_MANY)
    left, _, _, high = placed.bounds
    document = {
        "ids": [layer.id for layer in graph.layers],
        "names": [layer_name(layer) for layer in graph.layers],
        "lines": [lines_of(layer_name(layer)) for layer in graph.layers],  # of a box
        "positions": placed.positions,
        "routes": placed.routes,
        "half": placed.half,
        "origin": [left, high],
        "extent": placed.extent,
    }
    return json.dumps(document)


class SettledButton(looks.Button):
    """Acts on a click of the page once all changes made there before it have come.

    A page holds back the moves of a slider while the kernel is at work on an earlier one, and a click would overtake
    them. `click()` in a cell acts at once.
    """

    def __init__(self, view: PartitionView, **settings: Any) -> None:
        super().__init__(**settings)
        self._view = view

    def _handle_button_msg(self, widget: Any, content: Any, buffers: Any) -> None:
        if content.get("event") == "click":
            self._view.settled(self.click)
