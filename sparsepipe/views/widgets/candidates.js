// Candidates: a row for each planner and pin, and their time against memory. Hover shows their cuts in the strip of layers,
// a click shows them, a double click makes one the baseline. Read together with partition_view.js, as one module.

class Candidates {
  constructor(box, strip, send) {
    this.box = box; this.strip = strip; this.drawn = ""; this.rows = []; this.points = []; this.clicked = 0;
    this.send = send; this.point = "";  // the point that Tab goes to
    box.addEventListener("click", (event) => {
      const row = event.target.closest("[data-key]"), act = event.target.closest("[data-act]");
      const part = event.target.closest("[data-part]");
      if (part) return send({ toggle: part.dataset.part });
      if (!row) return;
      const key = row.dataset.key;
      if (act) return send({ candidate: { key, act: act.dataset.act } });
      if (event.detail > 1) { clearTimeout(this.clicked); return send({ candidate: { key, act: "baseline" } }); }
      if (!event.detail) return send({ candidate: { key, act: "show" } });  // a key was pressed, and is not pressed twice
      clearTimeout(this.clicked);
      this.clicked = setTimeout(() => send({ candidate: { key, act: "show" } }), 220);
    });
    box.addEventListener("keydown", (event) => this.pressed(event));
    for (const name of ["pointerover", "focusin"]) box.addEventListener(name, (event) => this.overlay(event.target.closest("[data-key]")));
    for (const name of ["pointerleave", "focusout"]) box.addEventListener(name, () => this.overlay(null));
  }
  pressed(event) {  // among the points: to the next in time or memory, or what a click and a double click do
    const point = event.target.closest(".sp-point");
    if (!point) return;
    const act = { Enter: "show", " ": "show", a: "baseline" }[event.key];
    const [by, step] = { ArrowRight: [1, 1], ArrowLeft: [1, -1], ArrowUp: [2, 1], ArrowDown: [2, -1] }[event.key] || [];
    if (!act && !by) return;
    event.preventDefault(); event.stopPropagation();
    if (act) return this.send({ candidate: { key: point.dataset.key, act } });
    const order = [...this.points].sort((a, b) => a[by] - b[by] || a[3 - by] - b[3 - by]), at = order.findIndex(([key]) => key === point.dataset.key);
    this.point = order[Math.max(0, Math.min(order.length - 1, at + step))][0];
    for (const one of this.box.querySelectorAll(".sp-point")) {
      one.setAttribute("tabindex", one.dataset.key === this.point ? 0 : -1);
      if (one.dataset.key === this.point) one.focus();
    }
  }
  overlay(target) {  // the cuts of a row, in the strip of layers
    this.strip.querySelectorAll(".sp-other").forEach((old) => old.remove());
    const row = target && this.rows.find(({ key }) => key === target.dataset.key);
    if (!row || !row.ends || !this.layers) return;
    for (const at of row.ends) {
      const mark = this.strip.appendChild(document.createElement("div"));
      mark.className = "sp-other";
      mark.style.left = `${100 * at / this.layers}%`;
    }
  }
  update(told, scene, palette, old) {
    const { rows = [], points, hardware, note = "" } = told;
    this.rows = rows; this.points = points || []; this.layers = scene.layers ? scene.layers.length : 0;
    const markup = `<div class="sp-part">Candidates</div>${note ? `<div class="sp-faint-text">${whole(note)}</div>` : ""}` +
      `<ul>${rows.map((row) => this.row(row, palette, old)).join("")}</ul>` + this.pareto(points, old) + this.hardware(hardware, old);
    if (markup === this.drawn) return;
    const held = this.box.contains(document.activeElement) ? document.activeElement.closest("[data-key]") : null;
    this.box.innerHTML = markup;
    this.drawn = markup;
    const same = held && [...this.box.querySelectorAll("[data-key]")].find((one) => one.dataset.key === held.dataset.key);
    if (same) (same.querySelector("button") || same).focus({ preventScroll: true });
  }
  row({ key, name, time, delta, memory, parts, shown, baseline, refused, about }, palette, old) {
    const pin = key.startsWith("pin"), disabled = old || refused ? "disabled" : "";
    const tip = refused || about || `Click: show this plan. Double click: make it the baseline. The change is compared with the baseline, else with the plan on screen`;
    const strip = (parts || []).map((count, k) => `<i style="flex:${count};background:${shade(palette, k, "backward")}"></i>`).join("");
    const facts = refused ? `<span class="sp-no-plan">no plan</span>` : `<b>${escape(time)}</b> <span>${escape(delta)}</span> <span>${escape(memory)}</span>`;
    const more = refused ? "" : pin ? `<button type="button" data-act="remove" ${old ? "disabled" : ""} aria-label="Remove pin ${escape(name)}" data-tip="Remove this pin">×</button>`
      : `<button type="button" data-act="baseline" ${old ? "disabled" : ""} aria-label="Make ${escape(name)} the baseline" data-tip="Make it the baseline A">A</button>`;
    return `<li class="${shown ? "sp-now " : ""}${baseline ? "sp-base" : ""}" data-key="${escape(key)}"><button type="button" class="sp-row" ${disabled} ${shown ? 'aria-pressed="true"' : 'aria-pressed="false"'} data-tip="${escape(tip)}">` +
      `<span class="sp-row-name">${escape(name)}</span><span class="sp-facts">${facts}</span><span class="sp-mini">${strip}</span></button>${more}</li>`;
  }
  hardware(changes, old) {  // what changes of the hardware are worth: a bar each, pale from the least to the most
    if (!this.rows.length && !changes) return "";
    const button = `<button type="button" class="sp-pareto-button" data-part="hardware" ${old ? "disabled" : ""} data-tip="Throughput of the best plan with one more device, faster links, more memory, or without the slowest device">value of hardware</button>`;
    if (!changes) return button;
    const W = 240, H = 34, ends = changes.flatMap(({ least, most }) => [least, most]).filter((v) => v !== null && v !== undefined);
    const low = Math.min(0, ...ends), far = Math.max(0, ...ends) - low || 1, X = (v) => W * (v - low) / far;
    let out = "";
    changes.forEach(({ name, change, least, most, refused }, k) => {
      const y = k * H, whole = `${name}: ${change || "no plan"}`, known = typeof least === "number" && typeof most === "number";
      const words = refused ? "no plan" : change, tip = refused || whole;
      out += named(0, y + 11, [shortened(name, Math.floor((W - 8) / LETTER) - words.length)], tip) + text(W, y + 11, words, 'class="sp-faint" text-anchor="end"');
      if (!known) return;
      const near = Math.abs(least) < Math.abs(most) ? least : most, away = near === least ? most : least, hue = least < 0 ? "#D55E00" : "#0072B2";
      out += rect(Math.min(X(0), X(away)), y + 16, Math.max(Math.abs(X(away) - X(0)), 1), 7, hue, 'opacity=".35"', tip) + rect(Math.min(X(0), X(near)), y + 16, Math.abs(X(near) - X(0)), 7, hue, "", tip);
    });
    return button + svg(W, changes.length * H, out, `change of throughput: ${changes.map(({ name, change, refused }) => `${name} ${refused ? "no plan" : change}`).join(", ")}`);
  }
  pareto(points, old) {
    if (!this.rows.length && !points) return "";
    const button = `<button type="button" class="sp-pareto-button" data-part="points" ${old ? "disabled" : ""} data-tip="Plans of all schedules, with recomputation and without, with one and two stages per device">time × memory</button>`;
    if (!points) return button;
    const W = 240, H = 150, L = 50, B = 22, times = points.map((p) => p[1]), bytes = points.map((p) => p[2]);
    const scale = (values) => { const low = Math.min(...values), high = Math.max(...values), far = high - low || high || 1; return (v) => (v - low) / far; };
    const sx = scale(times), sy = scale(bytes), X = (v) => L + 8 + sx(v) * (W - L - 18), Y = (v) => H - B - 8 - sy(v) * (H - B - 18);
    const front = points.filter((p) => p[4]).sort((a, b) => a[1] - b[1]);
    if (!points.some(([key]) => key === this.point)) this.point = (front[0] || [""])[0];
    let out = line(L, 4, L, H - B) + line(L, H - B, W, H - B);
    out += `<path d="M${front.map((p) => `${X(p[1]).toFixed(1)} ${Y(p[2]).toFixed(1)}`).join("L")}" fill="none" stroke="#8888" stroke-dasharray="3 2"/>`;
    for (const [key, seconds, memory, words, best] of points)
      out += `<circle data-key="${escape(key)}" cx="${X(seconds).toFixed(1)}" cy="${Y(memory).toFixed(1)}" r="${best ? 5 : 3.5}" fill="${best ? "#0072B2" : "#8889"}" class="sp-point" role="button" tabindex="${key === this.point ? 0 : -1}" ` +
        `aria-label="${escape(`${words}: ${duration(seconds)}, ${size(memory)}${best ? ", on the front" : ""}`)}" ` +
        `data-tip="${escape(`${words}: ${duration(seconds)}, ${size(memory)} on the worst device`)}"/>`;
    if (points.length) {
      out += text(L + 4, H - 8, duration(Math.min(...times)), 'class="sp-faint"') + text(W, H - 8, duration(Math.max(...times)), 'class="sp-faint" text-anchor="end"');
      out += [[H - B - 4, Math.min(...bytes)], [12, Math.max(...bytes)]].map(([y, value]) => text(L - 4, y, size(value), 'class="sp-faint" text-anchor="end"')).join("");
    }
    return button + svg(W, H, out, `time and memory of ${points.length} plans; the line joins those that no other beats in both; arrow keys go from one to the next`, "group");
  }
}
