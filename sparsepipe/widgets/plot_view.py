"""A widget for a plotly figure, which is replaced as a whole; plotly.js is loaded once a page.

plotly's FigureWidget sends 5 MB with every instance and a message for every trace it changes, and breaks when two
threads change it. Here all views of a page share one copy of plotly.js: Jupyter serves it as a static file where its
folder can be written to, else the kernel sends it once.
"""

import json
import sys
from collections.abc import Callable
from functools import cache, reduce
from pathlib import Path
from typing import Any

import anywidget
import plotly
import plotly.graph_objects as go
import traitlets

from ..files import write_atomic
from ..plots.dark import GRID, LIGHT_INK, LIT, LIT_TEXT
from ..plots.theme import MODEBAR

_SOURCE = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
_EXTENSION = "sparsepipe-plotly"

_ESM = """
// Ink, and colours too dark for a dark page: what stands for them there.
const LIT = @LIT@;

function load(text_or_url, is_url) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = is_url ? text_or_url : URL.createObjectURL(new Blob([text_or_url], { type: "text/javascript" }));
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("plotly.js did not load from " + script.src));
    // Where the page has an AMD loader, the bundle would register there and not as window.Plotly.
    const define = window.define;
    window.define = undefined;
    script.addEventListener("load", () => { window.define = define; });
    script.addEventListener("error", () => { window.define = define; });
    document.head.appendChild(script);
  });
}

function from_kernel(model) {
  return new Promise((resolve, reject) => {
    const listen = (content) => {
      if (!content.plotly) return;
      model.off("msg:custom", listen);
      load(content.plotly, false).then(resolve, reject);
    };
    model.on("msg:custom", listen);
    model.send({ want: "plotly" });
  });
}

function library(model) {
  const key = "__sparsepipe_plotly_" + model.get("version");
  if (!globalThis[key]) {
    const config = document.getElementById("jupyter-config-data");
    const asset = model.get("asset");
    const base = config && asset ? JSON.parse(config.textContent) : null;
    const folder = base && (base.fullLabextensionsUrl || base.baseUrl + "lab/extensions");
    globalThis[key] = folder
      ? load(new URL(folder + "/" + asset, location.origin).href, true).catch(() => from_kernel(model))
      : from_kernel(model);
  }
  return globalThis[key];
}

const AROUND = 130;  // pixels of title and margins, which stay
function themed(figure, room) {
  const layout = { ...figure.layout, autosize: true };  // as wide as there is room; the height stays
  if (layout.meta && layout.meta.keeps_ratio && room && layout.width > room) {
    const share = Math.max(room - AROUND, 100) / (layout.width - AROUND);
    layout.height = Math.round(AROUND + (layout.height - AROUND) * share);
  }
  delete layout.width;
  if (document.body.dataset.jpThemeLight !== "false") return { data: figure.data, layout };
  const ink = "@LIGHT_INK@", grid = "@GRID@", clear = "rgba(0,0,0,0)";
  const lit = (part) => {  // a marker's own line too: of a cut's mark it is all there is
    if (!part) return part;
    const own = LIT[part.color] ? { ...part, color: LIT[part.color] } : part;
    return part.line ? { ...own, line: lit(part.line) } : own;
  };
  const data = figure.data.map((trace) => {  // a key that is there without a value would break plotly
    const own = { ...trace };
    for (const part of ["line", "marker"]) if (own[part]) own[part] = lit(own[part]);
    return own;
  });
  const dark = { ...layout, paper_bgcolor: clear, plot_bgcolor: clear, font: { ...(layout.font || {}), color: ink } };
  const title = layout.title || {};
  const brighter = @LIT_TEXT@;  // of a note, of a doubt
  const lighter = (text) => text.replace(/#[0-9A-F]{6}/g, (color) => brighter[color] || color);
  if (title.text) dark.title = { ...title, text: lighter(title.text) };
  const behind = (one) => (one.bgcolor ? { bgcolor: "rgba(17,17,17,0.8)" } : {});
  if (layout.annotations)
    dark.annotations = layout.annotations.map((one) => ({ ...one, font: lit(one.font || {}), ...behind(one) }));
  if (layout.shapes) dark.shapes = layout.shapes.map((one) => ({ ...one, line: lit(one.line || {}) }));
  for (const name of Object.keys(layout)) {
    if (/^[xy]axis/.test(name)) dark[name] = { ...layout[name], gridcolor: grid, zerolinecolor: grid };
  }
  return { data, layout: dark };
}

export default {
  async render({ model, el }) {
    const Plotly = await library(model);
    const div = document.createElement("div");
    el.appendChild(div);
    let drawing = false, again = false, width = 0, size = 0;
    const fitted = () => {  // names as large as their boxes, of a figure whose boxes shrink with it
      const axis = div._fullLayout && div._fullLayout.xaxis, layout = JSON.parse(model.get("figure")).layout || {};
      if (!axis || !layout.meta || !layout.meta.keeps_ratio) return;
      const share = axis._length / Math.abs(axis.range[1] - axis.range[0]) / layout.meta.pixels;
      const fits = Math.max(2, Math.min(layout.meta.names, Math.floor(layout.meta.names * share)));
      const named = div.data.map((trace, k) => (trace.text ? k : -1)).filter((k) => k >= 0);
      if (fits !== size && named.length) { size = fits; Plotly.restyle(div, { "textfont.size": fits }, named); }
    };
    const draw = async () => {
      again = true;
      if (drawing) return;
      drawing = true;
      while (again) {           // figures that came while one was drawn: only the last is
        again = false;
        const figure = JSON.parse(model.get("figure"));
        if (!figure.data) continue;  // nothing to show yet
        width = el.clientWidth;
        const { data, layout } = themed(figure, width);
        try {
          await Plotly.react(div, data, layout, model.get("config"));
        } catch (error) {  // the next figure may be well
          div.textContent = `this figure cannot be drawn: ${error.message}`;
          continue;
        }
        if (!div.dataset.drawn) {  // plotly gives `on` with the first drawing
          div.on("plotly_click", clicked);
          div.on("plotly_relayout", fitted);
        }
        size = 0;
        fitted();
        div.dataset.drawn = String(Number(div.dataset.drawn || 0) + 1);
      }
      drawing = false;
    };
    const clicked = (event) => {
      const point = event.points[0];
      model.set("clicked", { trace: point.curveNumber, point: point.pointNumber, data: point.customdata ?? null });
      model.save_changes();
    };
    model.on("change:figure", draw);
    const theme = new MutationObserver(() => draw());  // light or dark: drawn again in the other ink
    const room = new ResizeObserver(() => {  // a figure that keeps its ratio is drawn for the room there is
      if (el.clientWidth && el.clientWidth !== width && model.get("figure").includes('"keeps_ratio":true')) draw();
    });
    room.observe(el);
    theme.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
    await draw();
    return () => { model.off("change:figure", draw); theme.disconnect(); room.disconnect(); Plotly.purge(div); };
  },
};
"""


def _with_colours(esm: str) -> str:
    told = {"LIT": json.dumps(LIT), "LIT_TEXT": json.dumps(LIT_TEXT), "LIGHT_INK": LIGHT_INK, "GRID": GRID}
    return reduce(lambda text, name: text.replace(f"@{name}@", told[name]), told, esm)


class PlotView(anywidget.AnyWidget):
    """Shows a figure; assign with `show`. `clicked` holds the last point clicked: its trace, place and custom data."""

    _esm = _with_colours(_ESM)
    figure = traitlets.Unicode("{}").tag(sync=True)  # JSON
    config = traitlets.Dict(MODEBAR).tag(sync=True)
    version = traitlets.Unicode(plotly.__version__).tag(sync=True)
    asset = traitlets.Unicode("").tag(sync=True)
    clicked = traitlets.Dict({}).tag(sync=True)

    def __init__(self, figure: go.Figure | None = None, *, scroll_zoom: bool = False, **settings: Any) -> None:
        config = {**MODEBAR, "scrollZoom": scroll_zoom, "responsive": True}
        super().__init__(asset=_served(), config=config, **settings)
        self.on_msg(self._answer)
        if figure is not None:
            self.show(figure)

    def show(self, figure: go.Figure) -> None:
        """Replace what is drawn."""
        self.figure = figure.to_json()

    def on_click(self, act: Callable[[dict[str, Any]], None]) -> None:
        """Call `act` with each point that is clicked."""
        self.observe(lambda change: act(change["new"]), names="clicked")

    def _answer(self, _: Any, content: Any, __: Any) -> None:
        if isinstance(content, dict) and content.get("want") == "plotly":
            self.send({"plotly": _SOURCE.read_text(encoding="utf-8")})


@cache
def _served() -> str:
    """Put plotly.js where Jupyter serves it from, once an environment; "" where that cannot be."""
    name = f"plotly-{plotly.__version__}.min.js"
    target = Path(sys.prefix) / "share" / "jupyter" / "labextensions" / _EXTENSION / "static" / name
    try:
        if not target.exists() or target.stat().st_size != _SOURCE.stat().st_size:
            write_atomic(target, _SOURCE.read_bytes())
    except OSError:
        return ""
    return f"{_EXTENSION}/static/{name}"
