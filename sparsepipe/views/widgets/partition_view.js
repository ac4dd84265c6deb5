// Draws a plan: numbers, layers with their cuts, stages in time and memory, what each rank does, the layer graph.
// A scene comes as one JSON text; scenes that come while one is drawn are skipped, the last one never. Read together with
// names.js, svg_marks.js, timeline.js, partition_cuts.js, device_map.js and candidates.js, as one module; explorer.css has its looks.

const WORDS = [150, 190];            // pixels beside the stage bars at most: who runs it, its memory
const ROW = 30, STRIP = 84;
const NAMES = 16, BEFORE = 7;        // pixels of a strip: its layers' names, and above them the line that is plan A
const NAME = 20, LOW_STRIP = 60;     // of one of several pipelines: its name, its strip
const EM = 0.58;                     // of a font's size a letter is wide, on average
const READ = 10;                     // pixels of the smallest letters
const TOLD = 17, BESIDE = 440;       // pixels of a line below sizes and orders; where both have no room side by side
const TOLD_LETTERS = 225;            // at most below it: so much room is left, whatever it says
const MOST_ROWS = 8;                 // of stages and devices, for which room is left whatever the plan has
const KEPT = 64;                     // scenes that a slider or cut that comes back shows at once
const PATIENCE = 1000;               // milliseconds until a kernel's picture of an earlier move is shown after all

const ended = (words) => words + (/[.!?]$/.test(words) ? "" : ".");

function tiles(scene) {  // what a number means is told on hover and to the keyboard
  return scene.tiles.map(([name, value, tip]) =>
    `<div class="sp-tile" role="group" tabindex="0" data-tip="${escape(tied(tip))}" aria-label="${escape(`${name}: ${value}`)}" aria-description="${escape(tip)}">` +
    `<span>${escape(name)}</span><b>${escape(value)}</b></div>`).join("");
}

function closed(scene, closing) {  // the scene with the gap that a search has proven by now
  const now = closing.serial === scene.serial ? new Map(closing.tiles.map((tile) => [tile[0], tile])) : new Map();
  return { tiles: scene.tiles.map((tile) => now.get(tile[0]) || tile) };
}
function strip(scene, palette, width, high = STRIP, whose = "") {
  const layers = scene.layers, cell = width / layers.length, shapes = new Shapes(palette);
  const top = Math.max(...layers.map((l) => l[1]), 1e-12), floor = high - (scene.before ? NAMES + BEFORE : NAMES);
  layers.forEach(([, seconds, stage], k) => {
    const h = Math.max(2, seconds / top * (floor - 14));
    shapes.add(shade(palette, stage, "backward"), k * cell, floor - h, cell - (cell > 4 ? 1 : 0.3), h, stage);
  });
  if (scene.before) scene.before.places.forEach((stage, k) => shapes.add(shade(palette, stage, "backward"), k * cell, floor + 2, cell + 0.3, BEFORE - 2));
  let out = shapes.markup();
  for (const at of (scene.cuts && scene.cuts.ghost) || []) out += line(at * cell, 0, at * cell, floor, 'stroke-dasharray="2 3" stroke-width="1.5" class="sp-ghost"');
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
function ofStage(scene, stage) {  // its devices, time and memory, in every tooltip; several pipelines have stages of one number
  const row = scene.pipelines ? null : scene.stages.find(({ parts }) => parts.some(([own]) => own === stage));
  return row ? ` on ${row.devices}: ${duration(row.compute + row.averaging)}, ${size(row.memory)}` : "";
}
function underStrip(scene, width, x, y) {  // what a place of it shows
  const own = scene.pipelines, layers = own ? own[Math.min(own.length - 1, Math.floor(y / (NAME + LOW_STRIP)))].layers : scene.layers;
  const k = Math.min(layers.length - 1, Math.max(0, Math.floor(x / width * layers.length))), [id, seconds, stage] = layers[k];
  if (scene.before && y > STRIP - NAMES - BEFORE) return [`${id}, A: stage ${scene.before.places[k]}`, scene.before.places[k]];
  return [`${id}: ${duration(seconds)}, stage ${stage}${ofStage(scene, stage)}`, stage];
}

function several(row) {  // the memory of each stage, where a device has several
  return row.parts.length > 1 ? ": " + row.parts.map(([stage, , , , , bytes]) => `stage ${stage} ${size(bytes)}`).join(", ") : "";
}

function stages(scene, palette, width, came = []) {  // `came`: rows higher up, by place, that a stage's devices come from
  const rows = scene.stages, before = scene.before;
  const [HEAD, TAIL] = WORDS.map((most, k) => Math.min(most, Math.round(width * (k ? 0.36 : 0.28))));
  const most = Math.max(...rows.flatMap((s) => [s.compute + s.averaging, s.transfer]), scene.bound || 0,
                        ...(before ? before.stages.map((s) => s[0]) : []), 1e-12) * 1.02;
  const room = width - HEAD - TAIL - 20, x = (seconds) => HEAD + seconds / most * room;
  const space = Math.max(16, TAIL - 86), full = Math.max(...rows.map((s) => Math.max(s.memory, s.limit || 0)), 1);
  let out = "", low = 16;
  const covered = [];  // rows whose words stand where the bound is
  rows.forEach((s, k) => {
    if (s.head) for (const part of inLines(s.head, width)) { out += text(0, low + 13, part, 'style="font-weight:600"'); low += NAME; }
    const y = low;
    low += ROW;
    const layers = ([, first, last, count, , , again]) => (count > 1 ? `${first} … ${last} (${count} layers)` : first) + (again ? `, recomputed: ${again}` : "");
    const name = `${s.parts.map(([stage]) => stage).join(", ")} · ${s.devices}`;
    const [first, ...rest] = inLines(name, HEAD - 8), most = (HEAD - 8) / LETTER;
    const lines = rest.length ? [first, rest.join(" ")] : [first];
    out += named(0, y + (rest.length ? 20 : 13), lines.map((part) => shortened(part, most)), name + ": " + s.parts.map(layers).join(", "),
                 (s.slowest ? 'font-weight="700"' : "") + (came[k] === undefined ? "" : ` class="sp-came" style="--from:${-came[k] * ROW}px"`));
    const apart = s.parts.length > 1 ? APART : 0;
    const averaged = shade(palette, s.parts[0][0], "average");
    let start = 0;
    for (const part of s.parts) {
      const [stage, , , , compute] = part, color = shade(palette, stage, "backward");
      out += rect(x(start), y + 2, x(compute) - HEAD - apart, 15, color, `class="sp-bar" data-s="${stage}" ${edged(palette, color)}`, `Stage ${stage}, ${layers(part)}: compute ${duration(compute)}, ${size(part[5])} on ${s.devices}`);
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
    if (stages[k] === undefined) rect.removeAttribute("data-s"); else rect.dataset.s = stages[k];
    if (words.has(k)) words.get(k).style.fill = stages[k] === undefined ? "currentColor" : ink(fill);
  });
  return stages;
}
function underNetwork(graph, scene, k) {
  const id = graph.ids[k], name = graph.names[k], found = scene.layers.find(([own]) => own === id);
  return [(name === id ? id : `${name} (${id})`) + (found ? `: ${duration(found[1])}, stage ${found[2]}${ofStage(scene, found[2])}` : ""), found ? found[2] : -1];
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

function notes(scene) {  // in one line until they are asked for
  if (!scene.notes.length) return "";
  return `<details><summary>${scene.notes.length} ${scene.notes.length > 1 ? "notes" : "note"} on these numbers</summary>${whole(scene.notes.map(ended).join(" "))}</details>`;
}
function changes(scene) {
  if (!scene.before) return "";
  const all = scene.before.changes, shown = all.slice(0, 8);
  const rest = all.length > 8 ? `<li>… and ${all.length - 8} more ${all.length > 9 ? "moves" : "move"}</li>` : "";
  return `<details><summary>From A to B: ${whole(all[0])}</summary>A: ${whole(scene.before.name)}<ul class="sp-change">` +
    shown.map((l) => `<li>${whole(l)}</li>`).join("") + rest + "</ul></details>";
}

const NOTICE = 6000, COMING = 800;   // milliseconds for which a swap of devices is said, and in which it is shown
function swaps(before, after) {  // rows whose devices are others since a cut was moved: [row, from, to, rows from where they come]
  if (!before || !before.cuts.movable || !(after.cuts || {}).kept || before.stages.length !== after.stages.length) return [];
  const names = before.stages.map((row) => row.devices);
  return after.stages.flatMap(({ devices }, k) => {
    if (devices === names[k]) return [];
    const from = names.findIndex((name, j) => name === devices && after.stages[j].devices !== name);
    return [[k, names[k], devices, from < 0 ? 0 : k - from]];
  });
}

function render({ model, el }) {
  el.innerHTML = `<div class="sp-view" data-drawn="0"><div class="sp-tiles"></div><div class="sp-map"></div><div class="sp-candidates"></div><div class="sp-picture"><div class="sp-stale" role="status"></div>
    <div class="sp-part sp-layers"><span>Layers <i class="sp-hint"></i></span><label class="sp-swap" data-tip="Ticked: as a cut moves, each stage gets the devices that suit it best. Cleared: each stage keeps its devices"><input type="checkbox"> devices may swap</label></div><div class="sp-strip"><div class="sp-cells"></div></div><div class="sp-reason" aria-live="polite"></div>
    <div class="sp-part">Stages <i data-tip="Bars in the stage's colour, side by side if a device has several stages; gradient all-reduce is darker, transfers are thin below">Time per minibatch: compute, all-reduce (darker), transfers (thin)<span class="sp-stages-are"></span></i></div><div class="sp-swapped" role="status"></div><div class="sp-stages"></div>
    <div class="sp-part">Timeline <i class="sp-followed" role="status" data-tip="${SHADES}"></i></div>${TIMELINE}
    <div class="sp-why"></div><div class="sp-changes"></div>
    <div class="sp-sizes-part"><div class="sp-part">Sizes <i>Of samples, and time that each order of minibatches loses</i></div><div class="sp-sizes"></div><div class="sp-told"></div></div>
    <div class="sp-graph-part"><div class="sp-part">Layer graph <i class="sp-of">Coloured by stage</i></div><div class="sp-graph"></div></div>
    <div class="sp-code"><button type="button" class="sp-copy">copy as code</button><details><summary>The code</summary>
    <pre style="overflow:auto;margin:4px 0;word-break:normal;overflow-wrap:break-word" tabindex="0" aria-label="the cell that makes this plan"></pre></details></div></div></div><style></style>`;
  el.classList.add("sp-drawing");
  const root = el.querySelector(".sp-view"), find = (name) => root.querySelector(`.sp-${name}`), picture = find("picture"), linked = el.lastChild;
  const mark = `sp-${Math.random().toString(36).slice(2)}`;
  root.classList.add(mark);
  let number = 0;
  ruler.font = `600 11.5px ${getComputedStyle(document.body).getPropertyValue("--jp-ui-font-family") || "sans-serif"}`;
  const moveCut = (cut, at) => {
    model.set("moved", { cut, at, number: ++number });  // back to where it was is a move as well
    model.save_changes();
  };
  const cuts = new Cuts(find("strip"), find("reason"), (cut, at) => { moveCut(cut, at); foresee(`cut ${cut}`, String(at)); });
  const map = new DeviceMap(find("map"), (content) => model.send(content));
  const drawMap = () => map.update(JSON.parse(model.get("map")), scene.chips, model.get("palette"), performance.now() - swapped.at < COMING);
  const candidates = new Candidates(find("candidates"), find("strip"), (content) => model.send(content));
  const drawCandidates = () => candidates.update(JSON.parse(model.get("candidates")), scene, model.get("palette"), Boolean(model.get("stale")));
  let graph = {}, waiting = false, width = 0, wide = 0, scene = {}, orders = {}, palette = {}, seen = "", placed = "", stagesSeen = [], tables = {};
  const kept = [];    // [{ text, places, baseline }] of the last scenes
  let painted = null, swapped = { at: -Infinity, came: [] };  // the last scene in full, the last swap of devices
  let ahead = null;   // { name, key } of the move that is shown before the kernel's answer to it
  const drawn = new Map();
  const put = (name, markup) => {  // what stays is not built again: of a large graph that took most of a redraw
    if (drawn.get(name) === markup) return;
    find(name).innerHTML = markup;
    drawn.set(name, markup);
  };
  const timeline = new Timeline(picture, (words) => put("followed", whole(words)));
  const tip = document.body.appendChild(Object.assign(document.createElement("div"), { className: "sp-tip" }));
  const tell = (words, stage, x, y) => {  // one tooltip, and the same stage in all pictures
    linked.textContent = stage >= 0 ? `.${mark} [data-s]:not([data-s="${stage}"]){opacity:.35}` : "";
    tellAt(tip, words, x, y);
  };
  const under = {
    cells: (x, y) => underStrip(scene, width, x, y),
    lanes: (x, y) => timeline.under(x, y),
    graph: (x, y, target) => (target.dataset.k ? underNetwork(graph, scene, Number(target.dataset.k)) : ["", -1]),
  };
  const pointed = (event) => {
    const own = event.target.closest("[data-tip]"), name = Object.keys(under).find((part) => find(part).contains(event.target));
    if (name !== "lanes" || own) timeline.point(null);
    if (own) {
      const stage = own.dataset.s === undefined ? -1 : Number(own.dataset.s);
      return tell(own.dataset.tip + (own.matches(".sp-chip") && stage >= 0 ? ofStage(scene, stage) : ""), stage, event.clientX, event.clientY);
    }
    if (!name || !scene.tiles) return tell("", -1);
    const box = find(name).getBoundingClientRect();
    const [words, stage, minibatch = null] = under[name](event.clientX - box.left, event.clientY - box.top, event.target);
    if (name === "lanes") timeline.point(minibatch);
    return tell(words, stage, event.clientX, event.clientY);
  };
  root.addEventListener("pointermove", pointed);
  root.addEventListener("pointerleave", () => { tell("", -1); timeline.point(null); });
  const swap = find("swap").firstElementChild;
  const drawSwap = () => { swap.checked = model.get("swap"); };
  swap.addEventListener("change", () => { model.set("swap", swap.checked); model.save_changes(); });
  root.addEventListener("focusin", (event) => {
    const own = event.target.closest("[data-tip]"), box = own && own.getBoundingClientRect();
    if (own && own.matches(":focus-visible")) tell(own.dataset.tip, -1, box.left, box.bottom - 8);
  });
  root.addEventListener("focusout", () => tell("", -1));
  find("why").addEventListener("click", (event) => {
    if (event.target.closest(".sp-try") && scene.try) moveCut(scene.try.cut, scene.try.at);
  });
  const fade = () => root.classList.toggle("sp-wait", orders.serial !== scene.serial);  // until those of this picture come
  const drawSizes = () => {
    orders = JSON.parse(model.get("sizes"));
    put("sizes", sizes(orders, model.get("palette")));
    put("told", whole(orders.told || ""));
    root.dataset.sizes = orders.serial;
    fade();
  };
  const drawGap = () => {
    if (painted === scene && !root.classList.contains("sp-foreseen")) put("tiles", tiles(closed(scene, JSON.parse(model.get("closing")))));
  };
  const show = (next, text) => { scene = next; seen = text; };
  const draw = () => {
    waiting = false;
    const told = model.get("scene"), old = model.get("stale") ? model.get("reason") : "";
    palette = model.get("palette");
    if (told !== seen) {
      const next = JSON.parse(told), at = ahead && next.places && next.places[ahead.name];
      if (next.places && told !== (kept.at(-1) || {}).text) kept.push({ text: told, places: next.places, baseline: next.baseline });
      if (kept.length > KEPT) kept.shift();
      if (at && at[1] !== ahead.key && !old) return;  // of an earlier move than the page shows
      show(next, told);
      ahead = null;
    }
    root.classList.toggle("sp-old", Boolean(old));
    root.classList.toggle("sp-pending", Boolean(model.get("pending")));  // nothing else moves on the page meanwhile
    put("stale", whole(model.get("stale")));
    find("copy").disabled = Boolean(old);
    find("copy").title = old || "Copy the cell that makes this plan";
    paint(old);
  };
  const paint = (old) => {
    width = wide;
    if (!scene.tiles || width < 50) return;
    root.classList.remove("sp-foreseen");
    const moved = painted === scene ? [] : swaps(painted, scene);
    painted = scene;
    if (moved.length) {
      const notice = swapped = { at: performance.now(), came: [] };
      for (const [k, , , from] of moved) notice.came[k] = from;
      put("swapped", whole(`Devices swapped: ${moved.map(([k, from, to]) => `${scene.stages[k].parts.map(([stage]) => `stage ${stage}`).join(", ")}: ${from} → ${to}`).join("; ")}`));
      setTimeout(() => { if (swapped === notice) put("swapped", ""); }, NOTICE);
    }
    find("swap").style.visibility = scene.cuts.movable ? "" : "hidden";
    swap.disabled = Boolean(old);
    put("tiles", tiles(closed(scene, JSON.parse(model.get("closing")))));
    find("tiles").classList.toggle("sp-many", Boolean(scene.pipelines));
    drawMap();
    drawCandidates();
    const suggested = scene.try ? '<button type="button" class="sp-try" data-tip="Move this layer, and see what it saves">try</button>' : "";
    put("why", suggested + whole(scene.why) + notes(scene));
    put("hint", whole(scene.before ? `${scene.hint}; the thin line below is A` : scene.hint));
    put("cells", scene.pipelines ? strips(scene, palette, width) : strip(scene, palette, width));
    fade();
    root.classList.toggle("sp-narrow", width < BESIDE);
    const rows = Math.min(MOST_ROWS, scene.devices || 0);  // what follows stays where it is, however many the plan uses
    find("stages").style.minHeight = `${20 + ROW * rows}px`;
    find("lanes").style.minHeight = `${18 + LANE * rows}px`;
    find("told").style.minHeight = `${TOLD * Math.ceil(TOLD_LETTERS * 6.3 / width)}px`;
    put("changes", changes(scene));
    put("stages-are", whole(scene.stages_are ? `; ${scene.stages_are}` : ""));
    put("stages", stages(scene, palette, width, performance.now() - swapped.at < COMING ? swapped.came : []));
    timeline.update(scene, palette, width);
    find("of").textContent = scene.pipelines ? "Coloured by the stages of pipeline 0" : "Coloured by stage";
    find("sizes-part").style.display = scene.sized ? "" : "none";
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
  const foresee = (name, key) => {  // of what moves: the picture as it was there, else the present plan's times there
    const present = scene.places && scene.places[name];
    ahead = null;
    if (!present || model.get("stale") || waiting) return;
    const before = kept.findLast(({ places, baseline }) => baseline === scene.baseline && places[name] && places[name][0] === present[0] && places[name][1] === key);
    if (before) {
      show(JSON.parse(before.text), before.text);
      paint("");
    } else if (!foreseen(name, key)) return;
    const mine = ahead = { name, key };
    setTimeout(() => { if (ahead === mine) { ahead = null; soon(); } }, PATIENCE);
  };
  const foreseen = (name, key) => {
    if (model.get("moves") !== tables.text) tables = { text: model.get("moves"), of: JSON.parse(model.get("moves")) };
    const table = tables.of[name], stop = table && table.stops[key];
    if (!stop || ![scene.bases[name], scene.places[name][0]].includes(table.base)) return false;
    const tips = new Map(scene.tiles.map(([tile, , tip]) => [tile, tip]));
    const shown = stop.tiles.map(([tile, value]) => [tile, value, tips.get(tile) || ""]);
    const gap = scene.tiles.findIndex(([tile]) => tile === "optimality gap");
    if (gap >= 0) shown.splice(gap, 0, ["optimality gap", "…", tips.get("optimality gap")]);
    const rows = stop.stages.map((row, k) => ({ ...row, parts: row.parts.map((part, j) => (part.length > 3 ? part : [...scene.stages[k].parts[j].slice(0, 4), ...part])) }));
    root.classList.add("sp-foreseen");
    put("tiles", tiles({ tiles: shown }));
    put("stages", stages({ ...scene, stages: rows, bound: null }, palette, width));
    root.dataset.drawn = String(Number(root.dataset.drawn) + 1);
    return true;
  };
  const slid = ({ target, detail }) => {
    if (target.closest && target.closest(".sp-grid") === root.closest(".sp-grid")) foresee(detail.name, detail.key);
  };
  document.addEventListener("sp-moved", slid);
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
  model.on("change:map", drawMap);
  model.on("change:candidates", drawCandidates);
  model.on("change:swap", drawSwap);
  model.on("change:sizes", drawSizes);
  model.on("change:closing", drawGap);
  model.on("msg:custom", copied);
  const observer = new ResizeObserver(([{ contentRect }]) => {  // to ask for it while drawing lays out the whole page
    wide = Math.floor(contentRect.width);
    if (wide !== width) soon();
  });
  observer.observe(picture);
  regraph();
  drawSizes();
  drawSwap();
  return () => {
    for (const [name, act] of [["change:scene", soon], ["change:stale", soon], ["change:reason", soon], ["change:pending", soon], ["change:graph", regraph], ["change:map", drawMap], ["change:candidates", drawCandidates], ["change:swap", drawSwap], ["change:sizes", drawSizes], ["change:closing", drawGap], ["msg:custom", copied]])
      model.off(name, act);
    observer.disconnect();
    turn.port1.close();
    tip.remove();
    document.removeEventListener("sp-moved", slid);
  };
}

function initialize({ model }) {  // once a page, however often it is shown there
  model.on("msg:custom", (content) => {  // what the page held back was sent before: see PartitionView.settled
    if (content.settled !== undefined) model.send({ settled: content.settled });
  });
  model.send({ open: true });
}

export default { initialize, render };
