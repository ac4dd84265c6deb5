// The cuts of the strip of layers, to be dragged or moved with the arrow keys. Read together with names.js and
// partition_view.js, as one module.

class Cuts {  // the handles: kept from scene to scene, so that a drag and the focus survive
  constructor(box, reason, send) {  // `send(cut, layers before it)`
    this.box = box; this.reason = reason; this.send = send; this.handles = []; this.held = -1;
  }
  update(scene, width, old) {
    const { at, movable, blocked, reasons } = scene.cuts;
    this.old = Boolean(old); this.whyOld = old;
    this.scene = scene; this.cell = width / scene.layers.length;
    this.blocked = blocked; this.reasons = reasons;
    const number = movable ? at.length : 0;
    while (this.handles.length > number) this.handles.pop().remove();
    while (this.handles.length < number) this.handles.push(this.make(this.handles.length));
    this.handles.forEach((handle, k) => { if (k !== this.held) this.put(handle, k, at[k]); });
    if (this.held < 0 && !this.kept) this.reason.textContent = "";
    this.kept = false;
    const active = this.held < 0 ? this.handles.indexOf(document.activeElement) : this.held;
    if (active >= 0) this.shadow(active);  // where it cannot be depends on the others
  }
  put(handle, k, at) {
    handle.style.left = `${at * this.cell}px`;
    handle.setAttribute("aria-valuenow", at);
    handle.setAttribute("aria-valuemin", 1);
    handle.setAttribute("aria-valuemax", this.scene.layers.length - 1);
    handle.setAttribute("aria-valuetext", `after ${this.scene.layers[at - 1][0]}`);
    handle.at = at;
    handle.setAttribute("aria-disabled", this.old);  // cuts of an old plan stay where they are
    handle.tabIndex = this.old ? -1 : 0;
    handle.title = this.whyOld;
  }
  why(k, at) {  // the reason why cut k cannot be there, or nothing
    const range = (this.blocked[k] || []).find(([low, high]) => low <= at && at <= high);
    return range ? this.reasons[range[2]] : "";
  }
  make(k) {
    const handle = document.createElement("div");
    handle.className = "sp-cut";
    handle.setAttribute("role", "slider");
    handle.setAttribute("aria-label", `cut between stage ${k} and stage ${k + 1}`);
    handle.addEventListener("pointerdown", (event) => {
      if (this.old) return;
      handle.setPointerCapture(event.pointerId); handle.focus(); this.held = k; this.shadow(k); event.preventDefault();
    });
    handle.addEventListener("pointermove", (event) => {
      if (this.held !== k) return;
      const x = event.clientX - this.box.getBoundingClientRect().left;
      this.to(k, Math.max(1, Math.min(this.scene.layers.length - 1, Math.round(x / this.cell))));
    });
    const drop = () => {
      if (this.held !== k) return;
      this.held = -1; handle.classList.remove("sp-bad"); this.shadow(-1);
      this.put(handle, k, this.scene.cuts.at[k]);
    };
    handle.addEventListener("pointerup", drop);
    handle.addEventListener("pointercancel", drop);
    handle.addEventListener("focus", () => this.shadow(k));
    handle.addEventListener("blur", () => this.shadow(-1));
    handle.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1 }[event.key];
      if (!step) return;
      event.preventDefault(); event.stopPropagation();
      const at = handle.at + step;
      if (at < 1 || at > this.scene.layers.length - 1) return;
      this.to(k, at);
      if (this.why(k, at)) setTimeout(() => { handle.classList.remove("sp-bad"); this.put(handle, k, this.scene.cuts.at[k]); }, 250);
    });
    this.box.appendChild(handle);
    return handle;
  }
  to(k, at) {
    const handle = this.handles[k], reason = this.why(k, at);
    if (handle.at === at || this.old) return;
    this.put(handle, k, at);
    handle.classList.toggle("sp-bad", Boolean(reason));
    this.reason.innerHTML = reason ? whole(`Not after ${this.scene.layers[at - 1][0]}: ${reason}`) : "";
    if (reason) { this.kept = true; return; }
    this.send(k, at);
  }
  shadow(k) {  // grey where cut k cannot be
    this.box.querySelectorAll(".sp-no").forEach((old) => old.remove());
    for (const [low, high, why] of this.blocked[k] || []) {
      const no = document.createElement("div");
      no.className = "sp-no"; no.title = this.reasons[why].replace(/^[a-z]/, (first) => first.toUpperCase());
      no.style.cssText = `position:absolute;top:0;height:${STRIP - 16}px;pointer-events:none;` +
        "background:repeating-linear-gradient(45deg,#8888 0 3px,#8884 3px 7px)";
      no.style.left = `${(low - 0.5) * this.cell}px`;
      no.style.width = `${(high - low + 1) * this.cell}px`;
      this.box.insertBefore(no, this.box.firstChild.nextSibling);
    }
  }
}
