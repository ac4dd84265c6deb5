// Draws a figure, by plotly or as the explorer draws a timeline: read together with names.js, svg_marks.js and timeline.js.
// Draws a plotly figure as wide as its place, however wide that was given: the height stays. Its title, its note and
// a badge with what is doubtful stand above it as words of the page, which go on in further lines where a line ends.
// What stands between two @ is filled in by plot_view.py.

// Ink, and colours too dark for a dark page: what stands for them there.
const LIT = @LIT@, LIT_TEXT = @LIT_TEXT@;
const STYLE = `
.sp-heading{padding:2px 0 0 14px;font-family:@FONT@;color:var(--jp-content-font-color1,@INK@);overflow-wrap:break-word}
.sp-heading b{font-size:15px;line-height:1.35}
.sp-heading div{font-size:12px;line-height:1.4}
.sp-doubt{display:inline-block;vertical-align:top;margin-left:8px;max-width:100%;font-size:12px;line-height:20px}
.sp-doubt summary{cursor:pointer}
.sp-heading .sp-note{color:var(--jp-ui-font-color2,#555)}
`;

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

const is_dark = () => document.body.dataset.jpThemeLight === "false";

function words(heading) {  // the heading as elements of the page: what a figure says is text, never markup
  const make = (tag, text, more = {}) => Object.assign(document.createElement(tag), { textContent: text }, more);
  if (!heading) return [];
  const told = heading.notes.map((note) => make("div", note, { className: "sp-note" }));
  for (const line of told) line.innerHTML = whole(line.textContent);  // escaped
  const badge = [];
  if (heading.doubt) {  // closed until it is asked for
    const color = is_dark() ? LIT_TEXT["@DOUBT@"] : "@DOUBT@", details = make("details", "", { className: "sp-doubt", style: `color:${color}` });
    details.append(make("summary", "⚠ doubtful"), make("div", ""));
    details.lastChild.innerHTML = whole(heading.doubt.replace(/^doubtful: /, ""));
    badge.push(details);
  }
  return [make("b", heading.title), ...badge, ...told];
}

const PAGE = "#111111";  // a dark page's own colour, of lines that part what stands side by side
const AROUND = 130;  // pixels of a figure's title and margins, which stay when it keeps its ratio
const EM = 0.58;     // of a font's size a character is wide, on average
function in_lines(markup, most) {
  const length = (text) => text.replace(/<[^>]*>/g, "").replace(/&#?\w+;/g, "x").length, lines = [""];
  for (const word of markup.replace(/<br>/g, " ").split(/(?<!×) (?!×)/)) {  // a name and its count stay together
    const last = lines.length - 1;
    if (lines[last] && length(lines[last]) + 1 + length(word) > most) lines.push(word);
    else lines[last] = lines[last] ? `${lines[last]} ${word}` : word;
  }
  return lines.join("<br>");
}
function narrowed(layout, room) {  // words along an axis that is shorter than it was drawn for go on in further lines
  const own = ((layout.template || {}).layout || {}), margin = { l: 80, r: 80, ...own.margin, ...layout.margin };
  const size = (layout.font || {}).size || (own.font || {}).size || 12;
  for (const name of Object.keys(layout).filter((key) => /^xaxis\d*$/.test(key))) {
    const axis = { ...layout[name] }, [low, high] = axis.domain || [0, 1];
    const letters = (room - margin.l - margin.r) * (high - low) / (EM * size);
    if (axis.title && axis.title.text) axis.title = { ...axis.title, text: in_lines(axis.title.text, letters) };
    if (Array.isArray(axis.ticktext) && axis.ticktext.length)
      axis.ticktext = axis.ticktext.map((text) => in_lines(String(text), Math.max(8, 0.95 * letters / axis.ticktext.length)));
    layout[name] = axis;
  }
}

function themed(figure, heading, room) {
  const layout = { ...figure.layout, autosize: false };
  let above = 0;  // pixels that are not needed for a title
  if (heading) {
    above = layout.height - heading.height;
    layout.height = heading.height;
    layout.margin = { ...layout.margin, t: heading.margin };
    delete layout.title;
  }
  if (layout.meta && layout.meta.keeps_ratio && layout.width > room) {
    const share = Math.max(room - AROUND, 100) / (layout.width - AROUND), stays = AROUND - above;
    layout.height = Math.round(stays + (layout.height - stays) * share);
  }
  if (layout.width > room) narrowed(layout, room);
  layout.width = room;
  if (!is_dark()) return { data: figure.data, layout };
  const ink = "@LIGHT_INK@", grid = "@GRID@", clear = "rgba(0,0,0,0)";
  const lit = (part) => {  // a marker's own line too: of a cut's mark it is all there is
    if (!part) return part;
    const light = (color) => LIT[color] || color, color = Array.isArray(part.color) ? part.color.map(light) : light(part.color);
    const own = color === part.color ? part : { ...part, color };
    return part.line ? { ...own, line: part.line.color === "white" ? { ...part.line, color: PAGE } : lit(part.line) } : own;
  };
  const data = figure.data.map((trace) => {  // a key that is there without a value would break plotly
    const own = { ...trace };
    for (const part of ["line", "marker"]) if (own[part]) own[part] = lit(own[part]);
    return own;
  });
  const dark = { ...layout, paper_bgcolor: clear, plot_bgcolor: clear, font: { ...(layout.font || {}), color: ink } };
  const title = layout.title || {};
  const lighter = (text) => text.replace(/#[0-9A-F]{6}/g, (color) => LIT_TEXT[color] || color);  // of a note, of a doubt
  if (title.text) dark.title = { ...title, text: lighter(title.text) };
  const behind = (one) => (one.bgcolor ? { bgcolor: `${PAGE}cc` } : {});
  if (layout.annotations)
    dark.annotations = layout.annotations.map((one) => ({ ...one, font: lit(one.font || {}), ...behind(one) }));
  if (layout.shapes) dark.shapes = layout.shapes.map((one) => ({ ...one, line: lit(one.line || {}) }));
  for (const name of Object.keys(layout)) {
    if (/^[xy]axis/.test(name)) dark[name] = { ...layout[name], gridcolor: grid, zerolinecolor: grid };
  }
  return { data, layout: dark };
}

class Lanes {  // a timeline below a figure's heading, in place of plotly's
  constructor(el) {
    this.pane = Object.assign(document.createElement("div"), { className: "sp-view sp-timeline", innerHTML: `<div class="sp-part"><i class="sp-followed" role="status" data-tip="${SHADES}"></i></div>${TIMELINE}` });
    el.append(this.pane);
    this.tip = document.body.appendChild(Object.assign(document.createElement("div"), { className: "sp-tip" }));
    this.timeline = new Timeline(this.pane, (words) => { this.pane.querySelector(".sp-followed").textContent = words; });
    this.pane.addEventListener("pointermove", (event) => {
      const of = event.target.closest("[data-tip]"), box = this.timeline.lanes.getBoundingClientRect();
      const [words, , minibatch = null] = of || !this.timeline.lanes.contains(event.target) ? [of ? of.dataset.tip : ""] : this.timeline.under(event.clientX - box.left, event.clientY - box.top);
      this.timeline.point(minibatch);
      tellAt(this.tip, words, event.clientX, event.clientY);
    });
    this.pane.addEventListener("pointerleave", () => { this.timeline.point(null); tellAt(this.tip, ""); });
  }
  show(scene, width) {
    this.pane.style.display = scene ? "" : "none";
    if (scene) this.timeline.update(scene, scene.palette, width - 14, true);
  }
}

export default {
  async render({ model, el }) {
    const style = Object.assign(document.createElement("style"), { textContent: STYLE });
    const above = Object.assign(document.createElement("div"), { className: "sp-heading" }), div = document.createElement("div");
    el.append(style, above, div);
    let scene = null, spans = null;
    let drawing = false, again = false, listens = false, fresh = true, width = 0, size = "", number = 1;
    const fitted = async () => {  // names as large as their boxes, of a figure whose boxes shrink with it
      const axis = div._fullLayout && div._fullLayout.xaxis, { data = [], layout = {} } = JSON.parse(model.get("figure"));
      if (!axis || !layout.meta || !layout.meta.keeps_ratio) return;
      const share = axis._length / Math.abs(axis.range[1] - axis.range[0]) / layout.meta.pixels;
      const named = data.map((trace, k) => (trace.text && trace.textfont && trace.textfont.size ? k : -1)).filter((k) => k >= 0);
      const fits = named.map((k) => [data[k].textfont.size].flat().map((own) => Math.max(2, Math.min(own, Math.round(own * share)))));
      if (String(fits) !== size && named.length) { size = String(fits); (await library(model)).restyle(div, { "textfont.size": fits }, named); }
    };
    const draw = async () => {
      again = true;
      if (drawing) return;
      drawing = true;
      while (again) {           // figures that came while one was drawn: only the last is
        again = false;
        const figure = JSON.parse(model.get("figure")), heading = figure.heading;
        width = el.clientWidth || width;  // none while it is hidden, and for a moment while the theme changes
        if (!figure.data || !width) continue;  // nothing to show yet, or nowhere: drawn once there is room
        const told = fresh;
        fresh = false;
        above.replaceChildren(...words(heading));
        if (told) scene = figure.timeline || null;
        div.hidden = Boolean(scene);
        if (scene && !spans) spans = new Lanes(el);
        if (spans) spans.show(scene, width);
        if (scene) { div.dataset.drawn = String(Number(div.dataset.drawn || 0) + (told ? 1 : 0)); continue; }
        const Plotly = await library(model);
        const { data, layout } = themed(figure, heading, width);
        layout.uirevision = number;  // not 0: what was zoomed stays so at another width and in another theme
        try {
          await Plotly.react(div, data, layout, model.get("config"));
        } catch (error) {  // the next figure may be well
          div.textContent = `this figure cannot be drawn: ${error.message}`;
          continue;
        }
        if (!listens) {  // plotly gives `on` with the first drawing
          listens = true;
          div.on("plotly_click", clicked);
          div.on("plotly_relayout", fitted);
        }
        size = "";
        fitted();
        div.dataset.drawn = String(Number(div.dataset.drawn || 0) + (told ? 1 : 0));
      }
      drawing = false;
    };
    const clicked = (event) => {
      const point = event.points[0];
      model.set("clicked", { trace: point.curveNumber, point: point.pointNumber, data: point.customdata ?? null });
      model.save_changes();
    };
    const changed = () => { fresh = true; number += 1; draw(); };
    model.on("change:figure", changed);
    const theme = new MutationObserver(() => { fresh = true; draw(); });  // light or dark: drawn again in the other ink
    const room = new ResizeObserver(() => { if (el.clientWidth && el.clientWidth !== width) draw(); });
    room.observe(el);
    theme.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
    await draw();
    return () => { model.off("change:figure", changed); theme.disconnect(); room.disconnect(); if (spans) spans.tip.remove(); if (listens) window.Plotly.purge(div); };
  },
};
