// What each rank does over time: spans in the colours of stages, idle time by its cause, the path of a minibatch from stage
// to stage, and a part in sight that zooms and moves. Read together with names.js and svg_marks.js and with what draws it, as
// one module: see page_code.py; explorer.css has its looks.

const LANE = 20;                     // pixels of a rank
const THIN = new Set(["send"]);
const SPANS = "Forward light, backward full; click one for its path";
const SHADES = "Gradient all-reduce is dark and transfers are thin; idle time is shaded by its cause. Numbers are minibatches";
const SEEK = "Drag to move; Ctrl and the wheel over the timeline, or + and −, zoom; ↑ and ↓ follow a minibatch";
const TIMELINE = `<div class="sp-lanes"></div><div class="sp-seek" role="slider" tabindex="0" aria-label="part of the timeline in sight" data-tip="${SEEK}"><i></i></div>`;
const APART = 1;                     // pixels between bars side by side
let LEFT = 92;                       // pixels before the lanes, for their names
const IDLE = { forward: ["#56B4E955", "waits for its input"], backward: ["#E69F0055", "waits for its gradient"], other: ["#8883", "waits for other ranks"] };
const EDGES = ["#8882", "the pipeline fills or drains"];
function idles(scene, palette) {  // [row, start, end, color, words] of each gap between what a rank does
  const rows = scene.ranks.map(() => []), found = [];
  for (const [row, start, end, code] of scene.spans) if (!THIN.has(palette.kinds[code]) && palette.kinds[code] !== "wait") rows[row].push([start, end, palette.kinds[code]]);
  rows.forEach((spans, row) => {
    if (!spans.length) return;
    spans.sort(([a], [b]) => a - b);
    let last = 0;
    spans.forEach(([start, end, kind], k) => {
      if (start - last > 1e-9) found.push([row, last, start, ...(k ? IDLE[kind] || IDLE.other : EDGES)]);
      last = Math.max(last, end);
    });
    if (scene.end - last > 1e-9) found.push([row, last, scene.end, ...EDGES]);
  });
  return found;
}
function lanes(scene, palette, width, [from, to]) {
  const room = width - LEFT - 4, scale = room / (to - from), shapes = new Shapes(palette), gaps = new Map();
  const clipped = (start, end) => [LEFT + (Math.max(start, from) - from) * scale, (Math.min(end, to) - Math.max(start, from)) * scale];
  let out = "", numbers = "";
  scene.ranks.forEach((rank, k) => {
    const name = (scene.names || {})[rank], words = (scene.labels || [])[k] || (name ? `${rank} · ${name}` : `rank ${rank}`);
    out += typeof rank === "string" ? text(0, k * LANE + 14, rank, 'style="font-weight:600"') : text(0, k * LANE + 14, shortened(words, (LEFT - 6) / LETTER), 'class="sp-rank"');
  });
  for (const [row, start, end, color] of scene.idles) {
    if (end <= from || start >= to) continue;
    const [x, w] = clipped(start, end);
    gaps.set(color, (gaps.get(color) || "") + `M${x.toFixed(1)} ${row * LANE + 2}h${w.toFixed(1)}v13h${(-w).toFixed(1)}z`);
  }
  out += [...gaps].map(([color, path]) => `<path d="${path}" fill="${color}"/>`).join("");
  for (const [row, start, end, code, stage, minibatch] of scene.spans) {
    if (end <= from || start >= to) continue;
    const kind = palette.kinds[code], thin = THIN.has(kind), [x, w] = clipped(start, end);
    const color = shade(palette, stage, kind), y = row * LANE + (thin ? 16 : 2);
    shapes.add(color, x, y, w > EDGED ? w - APART : w, thin ? 3 : 13, stage);
    if (!thin && w > 15 && (kind === "forward" || kind === "backward"))
      numbers += `<text x="${(x + w / 2).toFixed(1)}" y="${y + 10}" style="fill:${ink(color)}">${minibatch}</text>`;
  }
  out += shapes.markup();
  out += `<g class="sp-numbers">${numbers}</g>`;
  const low = scene.ranks.length * LANE;
  out += text(LEFT, low + 13, from ? duration(from) : "0", 'class="sp-faint"') + text(width, low + 13, duration(to), 'class="sp-faint" text-anchor="end"');
  return svg(width, low + 18, out, scene.labels ? "timeline" : "simulated timeline");
}
const groupOf = (scene, row) => (scene.groups || [])[row] || 0;  // the trace that a row is of, where several are drawn
const nearest = (spans, [row]) => spans.reduce((best, span) => (Math.abs(span[0] - row) < Math.abs(best[0] - row) ? span : best));
function steps(scene, palette, minibatch, group = 0) {  // of one of the traces: the spans of each stage's forward and backward, in the order of time
  const parts = new Map();
  for (const span of scene.spans) {
    const kind = palette.kinds[span[3]], name = `${kind} ${span[4]}`;
    if (span[5] === minibatch && groupOf(scene, span[0]) === group && (kind === "forward" || kind === "backward")) parts.set(name, [...(parts.get(name) || []), span]);
  }
  return [...parts.values()].sort(([a], [b]) => a[1] - b[1]);
}
function arrows(scene, palette, width, [from, to], minibatch, group) {  // from stage to stage, and back
  const scale = (width - LEFT - 4) / (to - from), X = (at) => LEFT + (Math.min(to, Math.max(from, at)) - from) * scale, Y = (row) => row * LANE + 8.5;
  const all = steps(scene, palette, minibatch, group);
  let lines = "", heads = "", boxes = "";
  all.forEach((spans, k) => {
    for (const [row, start, end] of spans) if (end > from && start < to) boxes += `M${X(start).toFixed(1)} ${row * LANE + 1.5}H${X(end).toFixed(1)}v14H${X(start).toFixed(1)}z`;
    const next = all[k + 1];
    if (!next) return;
    const pairs = spans.length < next.length ? next.map((span) => [nearest(spans, span), span]) : spans.map((span) => [span, nearest(next, span)]);
    for (const [[row, , end], [to_row, start]] of pairs) {
      if (row === to_row || start < from || end > to) continue;
      const x = X(end), far = X(start), middle = (x + far) / 2;
      lines += `M${x.toFixed(1)} ${Y(row)}C${middle.toFixed(1)} ${Y(row)} ${middle.toFixed(1)} ${Y(to_row)} ${far.toFixed(1)} ${Y(to_row)}`;
      heads += `M${far.toFixed(1)} ${Y(to_row)}l-6 -3.5v7z`;
    }
  });
  return `<g class="sp-arrows"><path class="sp-halo" d="${lines}${boxes}"/><path d="${lines}${boxes}"/><path class="sp-heads" d="${heads}"/></g>`;
}
function underLanes(scene, palette, width, x, y, [from, to]) {
  const at = from + (x - LEFT) / (width - LEFT - 4) * (to - from), row = Math.floor(y / LANE), low = y - row * LANE > 15.5;
  if (x < LEFT || at > to) return ["", -1];
  const under = scene.spans.find(([own, start, end, code]) =>
    own === row && start <= at && at <= end && THIN.has(palette.kinds[code]) === low);
  const name = (scene.labels || [])[row] || (typeof scene.ranks[row] === "number" ? `rank ${scene.ranks[row]}${(scene.names || {})[scene.ranks[row]] ? ` (${scene.names[scene.ranks[row]]})` : ""}` : "");
  if (!under) {
    const idle = scene.idles.find(([own, start, end]) => own === row && start <= at && at <= end);
    return idle ? [`${name} ${idle[4]}: idle for ${duration(idle[2] - idle[1])}`, -1] : ["", -1];
  }
  const [, start, end, code, stage, minibatch, peer] = under;
  return [`Stage ${stage} ${palette.kinds[code]}${peer === undefined ? "" : ` for rank ${peer}`}, minibatch ${minibatch}: ${duration(end - start)}, ${duration(start)} to ${duration(end)}${name ? `, ${name}` : ""}`, stage, minibatch];
}

function tellAt(tip, words, x, y) {  // beside the pointer, within the page
  tip.classList.toggle("sp-on", Boolean(words));
  if (!words) return;
  tip.textContent = words;
  const right = Math.min(x + 12, window.innerWidth - tip.offsetWidth - 8), low = y + 16 + tip.offsetHeight > window.innerHeight ? y - tip.offsetHeight - 8 : y + 16;
  Object.assign(tip.style, { left: `${Math.max(4, right)}px`, top: `${low}px` });
}

class Window {  // the part of a timeline that is in sight: by wheel, keys and a bar below it
  constructor(box, bar, draw) {
    this.box = box; this.bar = bar; this.draw = draw; this.end = 1; this.share = [0, 1];
    this.moved = false;  // whether a hand has chosen another part
    box.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.altKey && !event.shiftKey) return;  // the page scrolls
      event.preventDefault();
      if (event.shiftKey) this.by(Math.sign(event.deltaY || event.deltaX) * 0.1);
      else this.zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.min(1, Math.max(0, (event.clientX - box.getBoundingClientRect().left - LEFT) / (box.clientWidth - LEFT))));
    }, { passive: false });
    box.addEventListener("dblclick", () => this.set(0, 1));
    bar.addEventListener("keydown", (event) => {
      const act = { ArrowLeft: () => this.by(-0.1), ArrowRight: () => this.by(0.1), "+": () => this.zoom(0.8, 0.5), "=": () => this.zoom(0.8, 0.5), "-": () => this.zoom(1.25, 0.5), Home: () => this.set(0, 1) }[event.key];
      if (!act) return;
      event.preventDefault(); event.stopPropagation();
      act();
    });
    const seek = (event) => {
      const part = bar.getBoundingClientRect(), [a, b] = this.share, middle = (event.clientX - part.left) / part.width;
      this.set(middle - (b - a) / 2, middle + (b - a) / 2);
    };
    bar.addEventListener("pointerdown", (event) => { bar.setPointerCapture(event.pointerId); bar.focus(); seek(event); event.preventDefault(); });
    bar.addEventListener("pointermove", (event) => { if (bar.hasPointerCapture(event.pointerId)) seek(event); });
  }
  get seconds() { return this.share.map((part) => part * this.end); }
  by(part) { const [a, b] = this.share, far = part * (b - a); this.set(a + far, b + far); }
  zoom(factor, at) {
    const [a, b] = this.share, middle = a + at * (b - a), wide = Math.min(1, Math.max(0.01, (b - a) * factor));
    this.set(middle - at * wide, middle + (1 - at) * wide);
  }
  set(a, b) {
    this.moved = true;
    const wide = Math.min(1, b - a), start = Math.min(1 - wide, Math.max(0, a));
    this.share = [start, start + wide];
    this.draw();
  }
  show(end) {
    this.end = end || 1;
    const [a, b] = this.share, told = `${duration(a * this.end)} to ${duration(b * this.end)} of ${duration(this.end)}`;
    this.bar.firstChild.style.cssText = `left:${100 * a}%;width:${100 * (b - a)}%`;
    for (const [name, value] of [["valuemin", 0], ["valuemax", 100], ["valuenow", Math.round(50 * (a + b))], ["valuetext", told]]) this.bar.setAttribute(`aria-${name}`, value);
  }
}

class Timeline {  // the lanes of a scene and the bar below them; `tell` is called with the words of what is followed
  constructor(root, tell) {
    this.lanes = root.querySelector(".sp-lanes"); this.seek = root.querySelector(".sp-seek"); this.tell = tell;
    this.sight = new Window(this.lanes, this.seek, () => this.draw());
    this.scene = {}; this.width = 0; this.markup = "";
    this.chosen = null; this.pointed = null;  // minibatches whose path is shown: by a click, by the pointer
    this.lanes.addEventListener("click", () => this.choose(this.chosen === this.pointed ? null : this.pointed));
    this.seek.addEventListener("keydown", (event) => {
      const step = { ArrowUp: 1, ArrowDown: -1, Escape: 0 }[event.key], numbers = (this.scene.spans || []).map((span) => span[5]);
      if (step === undefined || !numbers.length) return;
      event.preventDefault(); event.stopPropagation();
      const low = numbers.reduce((least, number) => (number >= 0 && number < least ? number : least), Infinity), [from] = this.sight.seconds;
      const seen = this.scene.spans.reduce((least, [, start, , , , number]) => (start >= from && number >= 0 && number < least ? number : least), Infinity);
      const high = numbers.reduce((most, number) => Math.max(most, number), 0);
      this.choose(step ? Math.min(high, Math.max(low, this.chosen === null ? seen : this.chosen + step)) : null);
    });
  }
  update(scene, palette, width, anew = false) {  // `anew`: whatever part was chosen before, of another scene
    if (scene !== this.scene) scene.idles = scene.spans ? idles(scene, palette) : [];
    if (scene !== this.scene && (anew || !this.sight.moved)) this.sight.share = scene.sight || [0, 1];
    this.scene = scene; this.palette = palette; this.width = width;
    this.draw();
  }
  draw() {
    if (!this.scene.spans || this.width < 50) return;
    LEFT = this.width < 480 ? 76 : this.scene.labels ? 140 : 118;
    this.seek.style.marginLeft = `${LEFT}px`;
    this.sight.show(this.scene.end);
    const markup = lanes(this.scene, this.palette, this.width, this.sight.seconds);
    if (markup !== this.markup) this.lanes.innerHTML = markup;
    this.markup = markup;
    this.follow();
  }
  follow() {  // the path of a minibatch from stage to stage and back, over the lanes
    const number = this.pointed === null ? this.chosen : this.pointed, drawing = this.lanes.firstElementChild, took = [];
    this.lanes.querySelectorAll(".sp-arrows").forEach((old) => old.remove());
    for (const group of number === null || !drawing ? [] : new Set(this.scene.groups || [0])) {
      const spans = steps(this.scene, this.palette, number, group).flat();
      if (!spans.length) continue;
      drawing.insertAdjacentHTML("beforeend", arrows(this.scene, this.palette, this.width, this.sight.seconds, number, group));
      const seconds = Math.max(...spans.map((span) => span[2])) - Math.min(...spans.map((span) => span[1]));
      took.push(duration(seconds) + (this.scene.traces ? ` ${this.scene.traces[group]}` : ""));
    }
    this.tell(took.length ? `Minibatch ${number}: ${took.join(", ")} from its first forward to its last backward` : SPANS);
  }
  point(minibatch) {
    if (minibatch === this.pointed) return;
    this.pointed = minibatch;
    this.follow();
  }
  choose(minibatch) { this.chosen = minibatch; this.follow(); }
  under(x, y) { return underLanes(this.scene, this.palette, this.width, x, y, this.sight.seconds); }
}
