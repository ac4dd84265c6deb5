// Draws a plan: numbers, layers with their cuts, stages in time and memory, what each rank does, the layer graph.
// A scene comes as one JSON text; scenes that come while one is drawn are skipped, the last one never. Read together with
// names.js, svg_marks.js and partition_cuts.js, as one module.

const HEAD = 150, TAIL = 190;        // pixels beside the stage bars: who runs it, its memory
const ROW = 30, LANE = 20, STRIP = 84;
const NAMES = 16, BEFORE = 7;        // pixels of a strip: its layers' names, and above them the line that is plan A
const NAME = 20, LOW_STRIP = 60;     // of one of several pipelines: its name, its strip
const EM = 0.58;                     // of a font's size a letter is wide, on average
const READ = 10;                     // pixels of the smallest letters
const SIZES = 84, TOLD = 17;         // pixels of what is drawn of sizes and orders, and of a line below it
const NARROW = 64, BESIDE = 440;     // more of them in a view in which both have no room side by side
const TOLD_LETTERS = 225;            // at most below it: so much room is left, whatever it says
const OLD = "#8883";                 // stripes behind a picture that is old: what it says is read as before
const GROUND = "var(--jp-layout-color0,#fff)", THIN = new Set(["send"]);

const STYLE = `
.sp-view{font:13px/1.45 var(--jp-ui-font-family,sans-serif);color:var(--jp-ui-font-color1,#222);min-width:0}
.sp-view svg{display:block;width:100%;overflow:visible}
.sp-cells,.sp-stages,.sp-lanes,.sp-graph{contain:layout style}
.sp-view svg text{fill:var(--jp-ui-font-color1,#222);font-size:11.5px}
.sp-view svg .sp-faint{fill:var(--jp-ui-font-color2,#666)}
.sp-view svg .sp-mark{font-weight:700;paint-order:stroke;stroke:var(--jp-layout-color0,#fff);stroke-width:3px}
.sp-tiles{display:flex;flex-wrap:wrap;gap:6px 10px;margin:2px 0 8px}
.sp-tile{position:relative;border-left:3px solid var(--jp-border-color1,#bbb);padding:0 10px 0 8px}
.sp-tile:focus-visible{outline:2px solid var(--jp-brand-color1,#1976D2);outline-offset:1px}
.sp-pop{display:none;position:absolute;z-index:5;top:100%;left:0;width:max-content;max-width:300px;padding:4px 8px;
  background:var(--jp-layout-color1,#fff);border:1px solid var(--jp-border-color1,#bbb);box-shadow:0 2px 8px #0003}
.sp-tile:hover .sp-pop,.sp-tile:focus .sp-pop{display:block}
.sp-tile b{display:block;font-size:16px}
.sp-tile span{color:var(--jp-ui-font-color2,#666);font-size:12px}
.sp-numbers text{text-anchor:middle;font-size:10px!important;pointer-events:none}
.sp-part{margin:10px 0 2px;font-weight:600}
.sp-part i{font-weight:400;color:var(--jp-ui-font-color2,#666);font-style:normal}
.sp-strip{position:relative}
.sp-cut{position:absolute;top:-4px;width:14px;margin-left:-7px;height:${STRIP - 6}px;cursor:ew-resize;touch-action:none;
  background:none;border:0;padding:0}
.sp-cut::before{content:"";position:absolute;left:6px;top:8px;bottom:0;border-left:2px solid currentColor}
.sp-cut::after{content:"◆";position:absolute;left:1px;top:-6px;font-size:14px}
.sp-cut:focus-visible{outline:2px solid var(--jp-brand-color1,#1976D2);outline-offset:1px}
.sp-cut.sp-bad{color:#D55E00}
.sp-name{height:${NAME}px;line-height:${NAME}px;font-weight:600;font-size:12px;white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.sp-reason{min-height:1.5em}
.sp-reason:not(:empty){border-left:4px solid #D55E00;padding-left:6px;font-weight:600}
.sp-code{margin-top:12px;display:flex;flex-wrap:wrap;gap:8px;align-items:flex-start}
.sp-code details{flex:1 1 300px;min-width:0}
.sp-stale{display:none;margin:4px 0 8px;padding:6px 8px;border-left:4px solid #D55E00;font-weight:600}
.sp-old .sp-stale{display:block}
.sp-pending{position:relative}
.sp-pending .sp-stale{position:absolute;right:0;top:0;z-index:4;margin:0;border-left-color:var(--jp-brand-color1,#1976D2);background:var(--jp-layout-color1,#fff)}
.sp-old>:not(.sp-stale):not(.sp-code){filter:grayscale(1);pointer-events:none}
.sp-old{background:repeating-linear-gradient(135deg,transparent 0 14px,${OLD} 14px 17px)}
.sp-old :is(.sp-stale,.sp-tile,.sp-why,.sp-part,.sp-name,.sp-change,.sp-code){background:${GROUND}}  /* no stripe runs through words */
.sp-old svg text:not([style*=fill]){paint-order:stroke;stroke:${GROUND};stroke-width:5px}
.sp-copy{color:var(--jp-ui-font-color1,#222);background:var(--jp-layout-color2,#eee);border:1px solid var(--jp-border-color1,#bbb)}
.sp-copy:disabled{color:var(--jp-ui-font-color2,#666);background:${GROUND}}
.sp-old:not(.sp-pending) .sp-part::before{content:"old · "}
.sp-sizes{display:flex;gap:18px;height:${SIZES}px;overflow:hidden}
.sp-spread{flex:0 1 190px;min-width:110px;display:flex;flex-direction:column}
.sp-spread div{flex:1;display:flex;align-items:flex-end;gap:1px;border-bottom:1px solid var(--jp-border-color1,#bbb)}
.sp-spread i{flex:1}
.sp-spread span{display:flex;justify-content:space-between;gap:8px;font-size:11.5px;height:17px;line-height:17px;white-space:nowrap;color:var(--jp-ui-font-color2,#666)}
.sp-orders{flex:1;min-width:0;max-width:620px;display:grid;grid-template-columns:auto 1fr auto;grid-auto-rows:20px;column-gap:8px;align-items:center;font-size:12px;line-height:20px}
.sp-orders :is(b,span){white-space:nowrap}
.sp-orders b{text-align:right}
.sp-orders i{display:block;height:12px;box-sizing:content-box;border-left:1px solid var(--jp-ui-font-color2,#666)}
.sp-narrow .sp-sizes{flex-direction:column;gap:4px;height:${SIZES + NARROW}px}
.sp-narrow .sp-spread{flex:0 0 ${NARROW - 4}px}
.sp-told{font-size:12px;line-height:${TOLD}px;margin-top:3px;color:var(--jp-ui-font-color2,#666)}
.sp-wait :is(.sp-sizes,.sp-told){opacity:.5}
.sp-change{margin:2px 0 2px 14px;padding:0;list-style:disc}
`;

// Three digits and all that stand before the point, as util/text/numbers.py writes what was measured or predicted.
const measured = (v) => (Math.abs(v) >= 999.5 ? Math.round(v).toLocaleString("en") : v ? v.toPrecision(3) : "0");
const duration = (s) => (Math.abs(s) >= 10 ? `${measured(s)} s` : `${measured(s * 1e3)} ms`);
const size = (b) => {
  for (const [unit, n] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (b >= n) return `${measured(b / n)} ${unit}`;
  return `${b.toFixed(0)} B`;
};
const ended = (words) => words + (/[.!?]$/.test(words) ? "" : ".");

function tiles(scene, id) {  // what a number means is told on hover and to the keyboard
  return scene.tiles.map(([name, value, tip], k) =>
    `<div class="sp-tile" role="group" tabindex="0" aria-label="${escape(`${name}: ${value}`)}" aria-describedby="${id}-${k}">` +
    `<span>${escape(name)}</span><b>${escape(value)}</b><span class="sp-pop" role="tooltip" id="${id}-${k}">${whole(tip)}</span></div>`).join("");
}

function strip(scene, palette, width, high = STRIP, whose = "") {
  const layers = scene.layers, cell = width / layers.length, shapes = new Shapes(palette);
  const top = Math.max(...layers.map((l) => l[1]), 1e-12), floor = high - (scene.before ? NAMES + BEFORE : NAMES);
  layers.forEach(([, seconds, stage], k) => {
    const h = Math.max(2, seconds / top * (floor - 14));
    shapes.add(shade(palette, stage, "backward"), k * cell, floor - h, cell - (cell > 4 ? 1 : 0.3), h);
  });
  if (scene.before) scene.before.places.forEach((stage, k) => shapes.add(shade(palette, stage, "backward"), k * cell, floor + 2, cell + 0.3, BEFORE - 2));
  let out = shapes.markup();
  const every = Math.max(1, Math.ceil(82 / cell));
  for (let k = 0; k < layers.length; k += every) {
    const name = layers[k][0], room = Math.min(every * cell, width - k * cell);
    if (room < every * cell && name.length * LETTER > room) break;  // the strip ends within the name
    out += named(k * cell, high - 1, [shortened(name, room / LETTER)], name, 'class="sp-faint"');
  }
  return svg(width, high, out, `layers${whose} coloured by stage, as high as their time`);
}
function strips(scene, palette, width) {  // one for each of several pipelines
  return scene.pipelines.map(({ name, layers }, k) =>
    `<div class="sp-name" title="${escape(name)}">${escape(name)}</div>` + strip({ layers }, palette, width, LOW_STRIP, ` of pipeline ${k}`)).join("");
}
function underStrip(scene, width, x, y) {  // what a place of it shows
  const own = scene.pipelines, layers = own ? own[Math.min(own.length - 1, Math.floor(y / (NAME + LOW_STRIP)))].layers : scene.layers;
  const k = Math.min(layers.length - 1, Math.max(0, Math.floor(x / width * layers.length))), [id, seconds, stage] = layers[k];
  return scene.before && y > STRIP - NAMES - BEFORE ? `${id}, A: stage ${scene.before.places[k]}` : `${id}: ${duration(seconds)}, stage ${stage}`;
}

function several(row) {  // the memory of each stage, where a device has several
  return row.parts.length > 1 ? ": " + row.parts.map(([stage, , , , , bytes]) => `stage ${stage} ${size(bytes)}`).join(", ") : "";
}

function stages(scene, palette, width) {
  const rows = scene.stages, before = scene.before;
  const most = Math.max(...rows.flatMap((s) => [s.compute + s.averaging, s.transfer]), scene.bound || 0,
                        ...(before ? before.stages.map((s) => s[0]) : []), 1e-12) * 1.02;
  const room = width - HEAD - TAIL - 20, x = (seconds) => HEAD + seconds / most * room;
  const space = TAIL - 86, full = Math.max(...rows.map((s) => Math.max(s.memory, s.limit || 0)), 1);
  let out = "", low = 16;
  const covered = [];  // rows whose words stand where the bound is
  rows.forEach((s, k) => {
    if (s.head) for (const part of inLines(s.head, width)) { out += text(0, low + 13, part, 'style="font-weight:600"'); low += NAME; }
    const y = low;
    low += ROW;
    const layers = ([, first, last, count]) => (count > 1 ? `${first} … ${last} (${count} layers)` : first);
    const name = `${s.parts.map(([stage]) => stage).join(", ")} · ${s.devices}`;
    const [first, ...rest] = inLines(name, HEAD - 8), most = (HEAD - 8) / LETTER;
    const lines = rest.length ? [first, rest.join(" ")] : [first];
    out += named(0, y + (rest.length ? 20 : 13), lines.map((part) => shortened(part, most)), name + ": " + s.parts.map(layers).join(", "),
                 s.slowest ? 'font-weight="700"' : "");
    const apart = s.parts.length > 1 ? APART : 0;
    const averaged = shade(palette, s.parts[0][0], "average");
    let start = 0;
    for (const part of s.parts) {
      const [stage, , , , compute] = part, color = shade(palette, stage, "backward");
      out += rect(x(start), y + 2, x(compute) - HEAD - apart, 15, color, `class="sp-bar" ${edged(palette, color)}`, `Stage ${stage}, ${layers(part)}: compute ${duration(compute)}`);
      start += compute;
    }
    if (s.averaging) out += rect(x(s.compute), y + 2, x(s.averaging) - HEAD, 15, averaged, edged(palette, averaged), `Averaging ${duration(s.averaging)}`);
    if (s.transfer) out += rect(HEAD, y + 18, x(s.transfer) - HEAD, 4, palette.other, "", `Transfers ${duration(s.transfer)}, beside the computation`);
    const end = Math.max(x(s.compute + s.averaging), x(s.transfer));
    const inside = end > HEAD + room - 66;
    const whole = s.words[0] + (s.slowest ? " ◀ slowest" : ""), long = inside && inLines(whole, end - HEAD - 10).length > 1;
    const words = long ? s.words[0] + (s.slowest ? " ◀" : "") : whole, begin = inside ? HEAD + 6 : end + 5;
    const crossed = (at) => at > begin - 3 && at < begin + ruler.measureText(words).width + 6;  // no line goes through words
    if (scene.bound && crossed(x(scene.bound))) covered.push(y);
    if (before && before.stages[k]) {
      const at = x(before.stages[k][0]), bound = x(scene.bound || 0) - at, left = bound > 0 || bound < -14;
      out += line(at, crossed(at) ? y + 18 : y, at, y + 29, 'stroke-width="2" stroke-dasharray="2 2" class="sp-before"') +
        text(left ? at - 3 : at + 3, y + 29, "A", `text-anchor="${left ? "end" : "start"}" class="sp-mark"`);
    }
    out += text(begin, y + 13, words, 'class="sp-busy" ' +
                (s.slowest ? 'font-weight="700" ' : "") + (inside ? `style="fill:${ink(shade(palette, s.parts[0][0], "backward"))}"` : ""));
    const left = width - TAIL, over = s.limit !== null && s.memory > s.limit;
    out += rect(left, y + 4, s.memory / full * space, 11, over ? "#D55E00" : palette.other, "", `Memory ${size(s.memory)}${several(s)}`);
    if (s.limit !== null) out += line(left + s.limit / full * space, y + 1, left + s.limit / full * space, y + 18, 'stroke-width="2"');
    out += text(width, y + 13, s.words[1] + (over ? " ✕" : ""), 'text-anchor="end"' + (over ? ' font-weight="700"' : ""));
  });
  const bottom = low + 2;
  if (scene.bound) {
    const at = x(scene.bound), parts = [10, ...covered.flatMap((y) => [y + 2, y + 17]), bottom];
    for (let k = 0; k < parts.length; k += 2) out += line(at, parts[k], at, parts[k + 1], 'stroke-dasharray="5 4" class="sp-bound"');
    out += text(at, 9, "bound", `class="sp-faint" text-anchor="${at > width - TAIL - 60 ? "end" : "middle"}"`);
  }
  out += text(width - TAIL, 9, rows.some((s) => s.limit !== null) ? "memory, │ its limit" : "memory", 'class="sp-faint"');
  return svg(width, bottom + 2, out, "time and memory of each stage");
}

const LEFT = 56, APART = 1;  // pixels before the timeline, for whose lane it is, and between spans side by side
function lanes(scene, palette, width) {
  const room = width - LEFT - 4, scale = room / (scene.end || 1), shapes = new Shapes(palette);
  let out = "", numbers = "";
  scene.ranks.forEach((rank, k) => {
    out += typeof rank === "string" ? text(0, k * LANE + 14, rank, 'style="font-weight:600"') : text(0, k * LANE + 14, `rank ${rank}`, 'class="sp-rank"');
  });
  for (const [row, start, end, code, stage, minibatch] of scene.spans) {
    const kind = palette.kinds[code], thin = THIN.has(kind), w = (end - start) * scale;
    const color = shade(palette, stage, kind), x = LEFT + start * scale, y = row * LANE + (thin ? 16 : 2);
    shapes.add(color, x, y, w > EDGED ? w - APART : w, thin ? 3 : 13);
    if (!thin && w > 15 && (kind === "forward" || kind === "backward"))
      numbers += `<text x="${(x + w / 2).toFixed(1)}" y="${y + 10}" style="fill:${ink(color)}">${minibatch}</text>`;
  }
  out += shapes.markup();
  out += `<g class="sp-numbers">${numbers}</g>`;
  const low = scene.ranks.length * LANE;
  out += text(LEFT, low + 13, "0", 'class="sp-faint"') + text(width, low + 13, duration(scene.end), 'class="sp-faint" text-anchor="end"');
  return svg(width, low + 18, out, "simulated timeline");
}
function underLanes(scene, palette, width, x, y) {
  const at = (x - LEFT) / (width - LEFT - 4) * scene.end, row = Math.floor(y / LANE), low = y - row * LANE > 15.5;
  const found = scene.spans.find(([own, start, end, code]) =>
    own === row && start <= at && at <= end && THIN.has(palette.kinds[code]) === low);
  if (!found) return "";
  const [, start, end, code, stage, minibatch, peer] = found;
  return `Stage ${stage} ${palette.kinds[code]}${peer === undefined ? "" : ` for rank ${peer}`}, minibatch ${minibatch}: ${duration(start)} to ${duration(end)}`;
}

function network(graph, palette, width) {  // built once; the stages' colours come and go: see `coloured`
  if (!graph.positions) return "";
  const [w, h] = graph.half, scale = Math.min(1.1, width / graph.extent[0]);
  const X = (x) => ((x - graph.origin[0]) * scale).toFixed(1), Y = (y) => ((graph.origin[1] - y) * scale).toFixed(1);
  const routes = graph.routes.map((route) => `M${route.map(([x, y]) => `${X(x)} ${Y(y)}`).join("L")}`).join("");
  let out = `<path d="${routes}" fill="none" stroke="${palette.other}"/>`;
  graph.positions.forEach(([x, y], k) => {
    out += `<rect data-k="${k}" x="${X(x - w)}" y="${Y(y + h)}" width="${(2 * w * scale).toFixed(1)}" height="${(2 * h * scale).toFixed(1)}" rx="2" fill="none" stroke="${palette.other}"/>`;
    const room = 2 * w * scale - 4, single = 2 * h * scale < 2 * READ + 5, lines = single ? [graph.names[k]] : graph.lines[k];
    const font = Math.max(READ, Math.min(11, room / (EM * Math.max(...lines.map((part) => part.length)))));
    const step = font + 2, high = Number(Y(y)) + 4 - (lines.length - 1) * step / 2;
    const told = lines.map((part, row) => `<tspan x="${X(x)}" y="${(high + row * step).toFixed(1)}">${escape(shortened(part, room / (EM * font)))}</tspan>`);
    if (w * scale > 20 && 2 * h * scale > READ) out += `<text data-of="${k}" text-anchor="middle" style="font-size:${font.toFixed(1)}px;pointer-events:none">${told.join("")}</text>`;
  });
  return svg(width, (graph.extent[1] * scale).toFixed(0), out, "layer graph coloured by stage");
}
function coloured(box, graph, scene, palette, before) {  // give boxes their stage's colour, those alone that changed it
  const own = new Map(scene.layers.map(([id, , stage]) => [id, stage]));
  const stages = graph.ids.map((id) => own.get(id)), same = before.length === stages.length;
  if (same && stages.every((stage, k) => stage === before[k])) return before;
  const words = new Map([...box.querySelectorAll("text")].map((one) => [Number(one.dataset.of), one]));
  box.querySelectorAll("rect").forEach((rect, k) => {
    if (same && stages[k] === before[k]) return;
    const fill = stages[k] === undefined ? "none" : shade(palette, stages[k], "forward");
    rect.setAttribute("fill", fill);
    if (words.has(k)) words.get(k).style.fill = stages[k] === undefined ? "currentColor" : ink(fill);
  });
  return stages;
}
function underNetwork(graph, scene, k) {
  const id = graph.ids[k], name = graph.names[k], found = scene.layers.find(([own]) => own === id);
  return (name === id ? id : `${name} (${id})`) + (found ? `, stage ${found[2]}` : "");
}

function sizes(drawn, palette) {  // of samples; beside them the time that each order of their minibatches loses, and any does at least
  if (!drawn.counts || !drawn.counts.length) return "";
  const top = Math.max(...drawn.counts, 1), most = Math.max(0.2, ...drawn.orders.map(([, over]) => over - 1)), part = (share) => `${(100 * share).toFixed(2)}%`;
  const bars = drawn.counts.map((count) => `<i style="height:${part(count / top)};background:${palette.other}"></i>`).join("");
  const rows = drawn.orders.map(([name, over, words, color, tip]) => {
    const title = `title="${escape(tip)}"`, own = color || "var(--jp-ui-font-color1,#222)";
    return `<span ${title}>${escape(name)}</span><div ${title}><i style="width:${part(Math.max(0, over - 1) / most)};background:${own}"></i></div><b ${title}>${whole(words)}</b>`;
  });
  return `<div class="sp-spread" role="img" aria-label="sizes of samples, ${escape(drawn.axis.join(" to "))}, on a logarithmic axis"><div>${bars}</div><span><span>${escape(drawn.axis[0])}</span><span>${escape(drawn.axis[1])}</span></span></div>` +
    `<div class="sp-orders">${rows.join("")}</div>`;
}

function changes(scene) {
  if (!scene.before) return "";
  const all = scene.before.changes, shown = all.slice(0, 8);
  const rest = all.length > 8 ? `<li>… and ${all.length - 8} more ${all.length > 9 ? "moves" : "move"}</li>` : "";
  return `<div class="sp-part">From A to B <i>A: ${whole(scene.before.name)}</i></div><ul class="sp-change">` +
    shown.map((l) => `<li>${whole(l)}</li>`).join("") + rest + "</ul>";
}

function render({ model, el }) {
  el.innerHTML = `<style>${STYLE}</style><div class="sp-view" data-drawn="0"><div class="sp-stale" role="status"></div><div class="sp-tiles"></div><div class="sp-why"></div>
    <div class="sp-part">Layers <i class="sp-hint"></i></div><div class="sp-strip"><div class="sp-cells"></div></div><div class="sp-reason" aria-live="polite"></div>
    <div class="sp-part">Sizes <i>Of samples, and time that each order of minibatches loses</i></div><div class="sp-sizes"></div><div class="sp-told"></div>
    <div class="sp-changes"></div>
    <div class="sp-part">Stages <i>Time per minibatch: computing in the stage's colour, side by side where a device has several, averaging darker, transfers thin below<span class="sp-stages-are"></span></i></div><div class="sp-stages"></div>
    <div class="sp-part">Timeline <i>Simulated: forward light, backward full, averaging dark, transfers thin; numbers are minibatches</i></div><div class="sp-lanes"></div>
    <div class="sp-graph-part"><div class="sp-part">Layer graph <i class="sp-of">Coloured by stage</i></div><div class="sp-graph"></div></div>
    <div class="sp-code"><button type="button" class="sp-copy">copy as code</button><details><summary>The code</summary>
    <pre style="overflow:auto;margin:4px 0;word-break:normal;overflow-wrap:break-word" tabindex="0" aria-label="the cell that makes this plan"></pre></details></div></div>`;
  const id = `sp-${Math.random().toString(36).slice(2)}`;
  const root = el.querySelector(".sp-view"), find = (name) => root.querySelector(`.sp-${name}`);
  let number = 0;
  ruler.font = `600 11.5px ${getComputedStyle(document.body).getPropertyValue("--jp-ui-font-family") || "sans-serif"}`;
  const cuts = new Cuts(find("strip"), find("reason"), (cut, at) => {
    model.set("moved", { cut, at, number: ++number });  // back to where it was is a move as well
    model.save_changes();
  });
  let graph = {}, waiting = false, width = 0, scene = {}, orders = {}, palette = {}, seen = "", placed = "", stagesSeen = [];
  const drawn = new Map();
  const put = (name, markup) => {  // what stays is not built again: of a large graph that took most of a redraw
    if (drawn.get(name) === markup) return;
    find(name).innerHTML = markup;
    drawn.set(name, markup);
  };
  const hovered = (name, told) => find(name).addEventListener("pointermove", (event) => {
    const box = find(name).getBoundingClientRect();
    find(name).title = scene.tiles ? told(event.clientX - box.left, event.clientY - box.top, event) : "";
  });
  hovered("cells", (x, y) => underStrip(scene, width, x, y));
  hovered("lanes", (x, y) => underLanes(scene, palette, width, x, y));
  hovered("graph", (x, y, event) => (event.target.dataset.k ? underNetwork(graph, scene, Number(event.target.dataset.k)) : ""));
  const beside = (event) => {  // an explanation that would end beyond the picture begins before its number
    const tile = event.target.closest && event.target.closest(".sp-tile");
    if (!tile) return;
    const pop = tile.querySelector(".sp-pop");
    pop.style.left = "0";
    pop.style.left = `${Math.min(0, root.getBoundingClientRect().right - pop.getBoundingClientRect().right)}px`;
  };
  find("tiles").addEventListener("pointerover", beside);
  find("tiles").addEventListener("focusin", beside);
  const fade = () => root.classList.toggle("sp-wait", orders.serial !== scene.serial);  // until those of this picture come
  const drawSizes = () => {
    orders = JSON.parse(model.get("sizes"));
    put("sizes", sizes(orders, model.get("palette")));
    put("told", whole(orders.told || ""));
    root.dataset.sizes = orders.serial;
    fade();
  };
  const draw = () => {
    waiting = false;
    const told = model.get("scene"), old = model.get("stale") ? model.get("reason") : "";
    if (told !== seen) { scene = JSON.parse(told); seen = told; }
    palette = model.get("palette");
    root.classList.toggle("sp-old", Boolean(old));
    root.classList.toggle("sp-pending", Boolean(model.get("pending")));  // nothing else moves on the page meanwhile
    put("stale", whole(model.get("stale")));
    find("copy").disabled = Boolean(old);
    find("copy").title = old || "Copy the cell that makes this plan";
    width = Math.floor(root.clientWidth);
    if (!scene.tiles || width < 50) return;
    put("tiles", tiles(scene, id));
    put("why", whole([scene.why, ...scene.notes.map(ended)].join(" ")));
    put("hint", whole(scene.before ? `${scene.hint}; the thin line below is A` : scene.hint));
    put("cells", scene.pipelines ? strips(scene, palette, width) : strip(scene, palette, width));
    fade();
    root.classList.toggle("sp-narrow", width < BESIDE);
    find("told").style.minHeight = `${TOLD * Math.ceil(TOLD_LETTERS * 6.3 / width)}px`;
    put("changes", changes(scene));
    put("stages-are", whole(scene.stages_are ? `; ${scene.stages_are}` : ""));
    put("stages", stages(scene, palette, width));
    put("lanes", lanes(scene, palette, width));
    find("of").textContent = scene.pipelines ? "Coloured by the stages of pipeline 0" : "Coloured by stage";
    find("graph-part").style.display = graph.positions ? "" : "none";
    if (placed !== `${width}`) {
      put("graph", network(graph, palette, width));
      placed = `${width}`; stagesSeen = [];
    }
    if (graph.positions) stagesSeen = coloured(find("graph"), graph, scene, palette, stagesSeen);
    find("code").querySelector("pre").textContent = old ? `# ${old}` : scene.code;
    cuts.update(scene, width, old);
    root.dataset.serial = scene.serial;
    root.dataset.drawn = String(Number(root.dataset.drawn) + 1);
  };
  find("copy").addEventListener("click", (event) => {
    event.preventDefault();
    find("code").querySelector("details").open = true;
    model.send({ copy: true });  // the kernel answers with the code of what all controls say by now
  });
  const copied = async (content) => {
    if (content.refused !== undefined) find("copy").textContent = "nothing to copy";
    else if (content.code === undefined) return;
    else {
      const code = find("code").querySelector("pre");
      code.textContent = content.code;
      try {
        await navigator.clipboard.writeText(content.code);
        find("copy").textContent = "copied";
      } catch {  // no clipboard without https or localhost: mark it, so that Ctrl-C takes it
        getSelection().selectAllChildren(code);
        find("copy").textContent = "marked: press Ctrl-C";
      }
    }
    setTimeout(() => { find("copy").textContent = "copy as code"; }, 2000);
  };
  // Drawn as soon as the messages at hand are read, and not when the next frame begins: that then shows it.
  const turn = new MessageChannel();
  turn.port1.onmessage = () => { if (waiting) draw(); };
  const soon = () => { if (!waiting) { waiting = true; turn.port2.postMessage(0); } };
  const regraph = () => { graph = JSON.parse(model.get("graph")); placed = ""; soon(); };
  model.on("change:scene", soon);
  model.on("change:stale", soon);
  model.on("change:reason", soon);
  model.on("change:pending", soon);
  model.on("change:graph", regraph);
  model.on("change:sizes", drawSizes);
  model.on("msg:custom", copied);
  const observer = new ResizeObserver(() => { if (Math.floor(root.clientWidth) !== width) soon(); });
  observer.observe(root);
  regraph();
  drawSizes();
  return () => {
    for (const [name, act] of [["change:scene", soon], ["change:stale", soon], ["change:reason", soon], ["change:pending", soon], ["change:graph", regraph], ["change:sizes", drawSizes], ["msg:custom", copied]])
      model.off(name, act);
    observer.disconnect();
    turn.port1.close();
  };
}

function initialize({ model }) {  // once a page, however often it is shown there
  model.on("msg:custom", (content) => {  // what the page held back was sent before: see PartitionView.settled
    if (content.settled !== undefined) model.send({ settled: content.settled });
  });
  model.send({ open: true });
}

export default { initialize, render };
