"""Where the time of a slider's move goes, from key to frame: the kernel's parts, the messages', the page's.

The kernel and the browser are on one machine: their wall clocks are one, and times of both are joined by the scene's
serial number. Wrappers of a few functions take the times, in the kernel and in the page, and nothing of the package is
changed for it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# In the kernel, before the explorer is made: seconds in each function, told for each scene in a line of parts.jsonl.
KERNEL = """
import functools as _functools, json as _json, time as _time
import sparsepipe.views.widgets.explorer_view as _explorer_view, sparsepipe.views.widgets.partition as _explorer
import sparsepipe.views.widgets.planning as _planning
from sparsepipe.views.widgets.partition_view import PartitionView as _View
_spent = {}

def _timed(owner, name, part):
    act = getattr(owner, name)
    @_functools.wraps(act)
    def measured(*arguments, **options):
        begin = _time.perf_counter()
        try:
            return act(*arguments, **options)
        finally:
            _spent[part] = _spent.get(part, 0.0) + _time.perf_counter() - begin
    setattr(owner, name, measured)

def _whole(act):
    @_functools.wraps(act)
    def changed(self, *arguments):
        if self.state._changing:  # what follows from a change that is at work
            return act(self, *arguments)
        _spent.clear()
        began, serial = _time.time(), self.view.serial
        act(self, *arguments)
        if self.view.serial > serial:
            row = {"serial": self.view.serial, "began": began, "ended": _time.time(), "sent": _spent.pop("sent", 0.0)}
            with open("parts.jsonl", "a") as file:
                file.write(_json.dumps({**row, "parts": _spent}) + "\\n")
    return changed

def _shown(act):
    def show(self, scene):
        act(self, scene)
        _spent["sent"] = _time.time()
    return show

_timed(_planning.Planning, "answer", "answer")
_timed(_planning, "_partition", "planner")
_timed(_planning, "simulate", "simulate")
_timed(_explorer_view, "picture", "picture")
_View.show = _shown(_View.show)
_timed(_View, "show", "text")
_explorer.PartitionExplorer.changed = _whole(_explorer.PartitionExplorer.changed)
"""
# In the page, before JupyterLab is loaded: when messages came and went and their bytes, and how long each turn of what
# draws took, in a frame or between two.
PAGE = """(() => {
  const seen = window.spSeen = { received: [], sent: [], turns: [] };
  const size = (data) => data.byteLength ?? data.size ?? data.length;
  const Native = window.WebSocket;
  window.WebSocket = class extends Native {
    constructor(...given) {
      super(...given);
      this.addEventListener("message", (event) => seen.received.push([performance.now(), size(event.data)]));
    }
    send(data) { seen.sent.push([performance.now(), size(data)]); super.send(data); }
  };
  const timed = (act, inside) => function (given) {
    const begin = performance.now();
    seen.inside = inside;
    try { act.call(this, given); } finally { queueMicrotask(() => { seen.inside = false; }); }
    seen.turns.push([begin, performance.now()]);
  };
  const native = window.requestAnimationFrame.bind(window);
  window.requestAnimationFrame = (act) => native(timed(act, true));
  const taken = Object.getOwnPropertyDescriptor(MessagePort.prototype, "onmessage");
  const set = function (act) { taken.set.call(this, act && timed(act, false)); };
  Object.defineProperty(MessagePort.prototype, "onmessage", { ...taken, set });
})()"""
WATCH = """() => {
  const view = document.querySelector('.sp-view');
  window.spTimes = { keys: [], drawn: [], moves: [] };
  document.addEventListener('keydown', () => window.spTimes.keys.push(performance.now()), true);
  document.addEventListener('pointermove', () => window.spTimes.moves.push(performance.now()), true);
  new MutationObserver(() => {
    const built = performance.now(), serial = Number(view.dataset.serial);
    const shown = () => setTimeout(() => window.spTimes.drawn.push([performance.now(), serial, built]), 0);
    const next = () => requestAnimationFrame(shown);  // the frame after the one that paints it
    if (window.spSeen.inside) next(); else requestAnimationFrame(next);
  }).observe(view, { attributes: true, attributeFilter: ['data-drawn'] });
}"""
FORGET = """() => {
  spTimes.keys.length = spTimes.drawn.length = 0;
  spSeen.received.length = spSeen.sent.length = spSeen.turns.length = 0;
}"""
# Of the first picture after `before`: wall-clock milliseconds, and messages between the key and it. `first`: of the
# present plan's times there, which the page shows until then.
TOLD = """(before) => {
  const [shown, serial, built] = spTimes.drawn.find(([, serial]) => serial > before), key = spTimes.keys[0];
  const turn = spSeen.turns.find(([begin, end]) => begin <= built && built <= end + 1) || [built, built];
  const first = spTimes.drawn[0][0] - key;
  const between = (list) => list.filter(([at]) => key <= at && at <= built);
  const came = between(spSeen.received), largest = came.reduce((a, b) => (b[1] > a[1] ? b : a), [built, 0]);
  const bytes = (list) => list.reduce((sum, [, size]) => sum + size, 0);
  const wall = (at) => Date.now() - performance.now() + at;
  return { serial, first, took: shown - key, key: wall(key), came: wall(largest[0]), begun: wall(turn[0]),
           built: wall(built), shown: wall(shown), messages: came.length, bytes: bytes(came),
           sent_messages: between(spSeen.sent).length, sent_bytes: bytes(between(spSeen.sent)) };
}"""
NAMES = {
    "to the kernel": "key, page, server, until the kernel's observer is called",
    "planner": "searching the plan",
    "estimates": "problem, costs, estimates and the bound",
    "simulate": "the timeline",
    "picture": "the scene's values",
    "text": "the scene as JSON, and sending it",
    "besides": "controls and messages that follow",
    "to the page": "server, websocket",
    "to the drawing": "JupyterLab reads the message, until it begins",
    "draw": "SVG as text, and into the document",
    "frame": "layout, paint, until the next frame's end",
}


def kernel_rows(folder: Path) -> dict[int, Mapping[str, Any]]:
    """Return what the kernel told of each scene, by serial."""
    path = folder / "parts.jsonl"
    rows = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return {row["serial"]: row for row in rows}


def parts_of(move: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, float]:
    """Return the milliseconds of one move by part; they add up to the move's time."""
    spent = {name: 1e3 * seconds for name, seconds in row["parts"].items()}
    planner, simulate = spent.get("planner", 0.0), spent.get("simulate", 0.0)
    began, sent = 1e3 * row["began"], 1e3 * row["sent"]
    picture, text, answer = spent.get("picture", 0.0), spent.get("text", 0.0), spent.get("answer", 0.0)
    return {
        "to the kernel": began - move["key"],
        "planner": planner,
        "estimates": answer - planner - simulate,
        "simulate": simulate,
        "picture": picture,
        "text": text,
        "besides": sent - began - answer - picture - text,
        "to the page": move["came"] - sent,
        "to the drawing": move["begun"] - move["came"],
        "draw": move["built"] - move["begun"],
        "frame": move["shown"] - move["built"],
    }


def averages(moves: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each part in milliseconds: means add up, as medians do not.

    On a busy machine a picture that was late may come after the next key: it says nothing of that.
    """
    moves = [move for move in moves if move["to the kernel"] >= 0]
    return {name: round(sum(move[name] for move in moves) / len(moves), 2) for name in NAMES} if moves else {}
