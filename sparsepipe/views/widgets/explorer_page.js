// The partition explorer as a page of its own: controls that choose among plans computed beforehand, and a model for
// `render` that has them in place of a kernel. Read after all that draws the explorer, as one module.

class Computed {  // what `render` knows as its model
  constructor(values, act) { this.values = values; this.act = act; this.listeners = []; }
  get(name) { return this.values[name]; }
  set(name, value) { this.values[name] = value; }
  on(event, act) { this.listeners.push([event, act]); }
  off(event, act) { this.listeners = this.listeners.filter(([name, other]) => name !== event || other !== act); }
  emit(event, content) { for (const [name, act] of [...this.listeners]) if (name === event) act(content); }
  save_changes() {}
  send(content) { this.act(content); }
}

async function unpacked() {
  const packed = Uint8Array.from(atob(document.getElementById("sp-plans").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

async function open_page() {
  const { graph, palette, controls, scenes, maps, cells, reasons } = await unpacked();
  const at = controls.map(({ given }) => given), seen = controls.map(() => null);
  const model = new Computed({ graph, palette, candidates: "{}", moves: "{}", sizes: "{}", closing: "{}", moved: {}, pending: false, reason: "", stale: "", scene: "{}", map: "{}" },
    (content) => { if (content.copy) model.emit("msg:custom", { code: JSON.parse(model.get("scene")).code }); });
  const choose = () => {
    let cell = 0;
    controls.forEach(({ stops }, k) => { cell = cell * stops.length + at[k]; });
    const [scene, map, reason] = cells[cell];
    model.set("map", maps[map]);
    if (scene >= 0) model.set("scene", scenes[scene]);  // else the last plan stays, marked as old
    model.set("stale", scene >= 0 ? "" : "The last plan that fits");
    model.set("reason", scene >= 0 ? "" : reasons[reason]);
    document.getElementById("sp-refusal").textContent = scene >= 0 ? "" : reasons[reason];
    for (const name of ["scene", "map", "stale", "reason"]) model.emit(`change:${name}`);
    controls.forEach(({ stops }, k) => { if (seen[k]) seen[k].textContent = stops[at[k]]; });
  };
  const box = document.getElementById("sp-controls");
  controls.forEach(({ name, tip, stops, list }, k) => {
    const label = document.createElement("label"), words = document.createElement("span");
    words.textContent = name;
    label.title = tip;
    const input = document.createElement(list ? "select" : "input");
    if (list) for (const stop of stops) input.append(Object.assign(document.createElement("option"), { textContent: stop, value: stops.indexOf(stop) }));
    else Object.assign(input, { type: "range", min: 0, max: stops.length - 1, step: 1 });
    input.value = at[k];
    input.disabled = stops.length < 2;
    input.setAttribute("aria-label", name);  // without the value beside it
    seen[k] = list ? null : document.createElement("output");
    label.append(words, input, ...(list ? [] : [seen[k]]));
    box.append(label);
    input.addEventListener("input", () => {
      at[k] = Number(input.value);
      if (!list) input.setAttribute("aria-valuetext", stops[at[k]]);
      choose();
    });
  });
  choose();
  render({ model, el: document.getElementById("sp-explorer-view") });
  document.body.dataset.ready = "true";
}

open_page();
