// The map of a cluster: hosts as boxes with their devices in the colour of their stage, buttons for more and fewer, links.
// Read together with names.js, svg_marks.js and partition_view.js, as one module.

class DeviceMap {
  constructor(box, send) {  // without `send` the map is only looked at
    this.box = box; this.drawn = ""; this.fixed = !send;
    box.addEventListener("click", (event) => {
      const step = event.target.closest(".sp-step");
      if (step && !step.disabled) send({ step: { host: Number(step.dataset.host), type: step.dataset.type, by: Number(step.dataset.by) } });
    });
  }
  update(map, chips, palette, flash) {  // `chips`: stages of each device by host and type, of the plan in the picture
    const markup = (map.hosts || []).map((host, k) => this.host(host, k, (chips || {})[host.name] || {}, palette)).join(this.wire(map));
    if (markup === this.drawn) return;
    const held = document.activeElement && this.box.contains(document.activeElement) ? document.activeElement.dataset : null;
    const stages = () => [...this.box.querySelectorAll(".sp-chip")], before = stages().map(({ dataset }) => dataset.s);
    this.box.innerHTML = markup;
    this.drawn = markup;
    if (flash) stages().forEach((chip, k) => chip.classList.toggle("sp-flash", chip.dataset.s !== before[k]));
    if (!held) return;
    const same = [...this.box.querySelectorAll(".sp-step")].find(({ dataset }) => ["host", "type", "by"].every((name) => dataset[name] === held[name]));
    if (same) same.focus({ preventScroll: true });  // the button that was pressed keeps the focus
  }
  host({ name, link, counts }, k, stages, palette) {
    const rows = Object.entries(counts).map(([type, count]) => {
      const held = (stages[type] || []).length === count ? stages[type] : [];
      const chip = (_, d) => {
        const of = held[d] || [], color = of.length ? shade(palette, of[0], "backward") : "";
        const style = color ? `style="background:${color};color:${ink(color)};border-color:${edge(palette, color)}" data-s="${of[0]}"` : "";
        const told = of.length ? `${type} on ${name}: stage ${of.join(", ")}` : `${type} on ${name}: not in the plan`;
        return `<span class="sp-chip" ${style} data-tip="${escape(told)}">${of.join(",") || "·"}</span>`;
      };
      const step = (by, sign, words) => this.fixed ? "" :
        `<button type="button" class="sp-step" data-host="${k}" data-type="${escape(type)}" data-by="${by}" ${count + by < 0 ? "disabled" : ""} ` +
        `aria-label="${words} ${escape(type)} on ${escape(name)}">${sign}</button>`;
      return `<div class="sp-kind"><span data-tip="${escape(`${count} × ${type}`)}">${escape(type)}</span><div>${Array.from({ length: count }, chip).join("")}</div>` +
        step(-1, "−", "One fewer") + step(1, "+", "One more") + "</div>";
    });
    return `<div class="sp-host"><div class="sp-host-head"><b>${escape(name)}</b><span data-tip="Link within ${escape(name)}">${whole(link)}</span></div>${rows.join("")}</div>`;
  }
  wire({ network }) {
    return `<div class="sp-wire" data-tip="Link between hosts">${whole(network || "")}</div>`;
  }
}
