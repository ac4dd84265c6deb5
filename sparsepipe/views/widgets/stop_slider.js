// A slider over named stops. It knows no numbers: the kernel names each stop and reads what is typed into the readout.
// Elements and classes are those of ipywidgets' sliders, so that both look alike in every theme.

const STYLE = `
.sp-slider{position:relative}
.sp-slider .noUi-handle{touch-action:none}
.sp-slider .noUi-handle:focus-visible{outline:2px solid var(--jp-brand-color1,#1976D2);outline-offset:2px}
.sp-slider .noUi-given{position:absolute;top:-4px;width:2px;height:12px;margin-left:-1px;background:currentColor;opacity:.55}
.sp-slider .noUi-band{position:absolute;top:0;height:100%;background:#56B4E9;opacity:.55}
.sp-slider .widget-readout{width:84px;max-width:84px;cursor:text;border-radius:2px;outline:0}
.sp-slider .widget-readout:focus{outline:1px solid var(--jp-brand-color1,#1976d2);text-align:left;overflow-x:auto}
.sp-slider.sp-off .widget-readout,.sp-slider.sp-off .widget-label{opacity:.5;cursor:default}
.sp-refusal{font-size:12px;line-height:1.4;border-left:4px solid #D55E00;padding-left:6px;margin:0 2px 2px;overflow-wrap:break-word}
.sp-refusal:empty{display:none}
`;

function render({ model, el }) {
  const id = `sp-${Math.random().toString(36).slice(2)}`;
  el.innerHTML = `<style>${STYLE}</style>
    <div class="sp-slider widget-inline-hbox widget-slider widget-hslider"><label class="widget-label" id="${id}" style="width:118px"></label>
    <div class="slider-container"><div class="slider noUi-target noUi-ltr noUi-horizontal"><div class="noUi-base"><div class="noUi-connects"></div>
    <div class="noUi-band"></div><div class="noUi-given"></div><div class="noUi-origin"><div class="noUi-handle noUi-handle-lower" role="slider" aria-orientation="horizontal"
    aria-labelledby="${id}"></div></div></div></div></div><div class="widget-readout" role="textbox" spellcheck="false"></div></div>
    <div class="sp-refusal" role="alert"></div>`;
  const find = (name) => el.querySelector(`.${name}`);
  const root = find("sp-slider"), label = find("widget-label"), target = find("noUi-target"), readout = find("widget-readout");
  const handle = find("noUi-handle"), origin = find("noUi-origin"), given = find("noUi-given"), band = find("noUi-band"), refusal = find("sp-refusal");
  const stops = () => model.get("stops"), off = () => model.get("disabled");
  const place = (key) => Math.max(0, stops().findIndex(([own]) => own === key));
  const share = (at) => (stops().length > 1 ? at / (stops().length - 1) : 0);
  let typing = false, refused = "";
  const put = (element, text) => { if (element.textContent !== text) element.textContent = text; };  // no layout for what stays

  const draw = () => {
    const all = stops(), at = place(model.get("value")), text = all.length ? all[at][1] : "";
    put(label, model.get("description"));
    root.title = model.get("tooltip");
    origin.style.transform = `translate(-${(1 - share(at)) * 1000}%, 0)`;
    given.style.left = `${share(place(model.get("given"))) * 100}%`;
    given.style.display = model.get("given") ? "" : "none";
    const [low, high] = model.get("band").map((key) => share(place(key)) * 100);
    band.style.cssText = low === undefined ? "display:none" : `left:${low}%;width:${Math.max(high - low, 1)}%`;
    for (const [name, value] of [["valuemin", 0], ["valuemax", all.length - 1], ["valuenow", at], ["valuetext", text], ["disabled", off()]])
      handle.setAttribute(`aria-${name}`, value);
    handle.tabIndex = off() ? -1 : 0;
    handle.setAttribute("aria-description", model.get("tooltip"));
    target.toggleAttribute("disabled", off());
    root.classList.toggle("sp-off", off());
    readout.contentEditable = off() ? "false" : "true";
    readout.setAttribute("aria-label", `${model.get("description")}: type a value`);
    if (!typing) put(readout, text);
    if (refused !== model.get("refusal")) refusal.innerHTML = whole(refused = model.get("refusal"));
  };
  const go = (at) => {
    const all = stops(), [key] = all[Math.max(0, Math.min(all.length - 1, at))];
    if (off() || key === model.get("value")) return;
    model.set("value", key);
    model.save_changes();  // before the page draws: the kernel works meanwhile
    el.dispatchEvent(new CustomEvent("sp-moved", { bubbles: true, detail: { name: model.get("description"), key } }));
  };

  const pointed = (event) => {
    const box = target.getBoundingClientRect();
    go(Math.round((event.clientX - box.left) / box.width * (stops().length - 1)));
  };
  target.addEventListener("pointerdown", (event) => {
    if (off()) return;
    event.preventDefault();
    handle.focus();
    target.setPointerCapture(event.pointerId);
    if (event.target !== handle) pointed(event);
  });
  target.addEventListener("pointermove", (event) => { if (target.hasPointerCapture(event.pointerId)) pointed(event); });
  handle.addEventListener("keydown", (event) => {
    const at = place(model.get("value")), last = stops().length - 1, far = Math.max(1, Math.round(last / 10));
    const to = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, PageDown: at - far, PageUp: at + far, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault(); event.stopPropagation();
    go(to);
  });

  const typed = () => {  // only what was changed is sent: the readout rounds, the value does not
    if (!typing) return;
    typing = false;
    const text = readout.textContent;
    if (text !== stops()[place(model.get("value"))][1]) model.send({ typed: text });
  };
  readout.addEventListener("focus", () => { typing = !off(); getSelection().selectAllChildren(readout); });
  readout.addEventListener("blur", typed);
  readout.addEventListener("keydown", (event) => {
    event.stopPropagation();  // the notebook has shortcuts of single letters
    if (event.key === "Escape") { typing = false; draw(); readout.blur(); }
    if (event.key === "Enter") { event.preventDefault(); readout.blur(); }
  });
  readout.addEventListener("paste", (event) => {
    event.preventDefault();
    document.execCommand("insertText", false, event.clipboardData.getData("text/plain"));
  });
  const names = ["value", "stops", "given", "description", "tooltip", "disabled", "refusal", "band"].map((name) => `change:${name}`);
  for (const name of names) model.on(name, draw);
  model.on("msg:custom", draw);
  draw();
  return () => { for (const name of names) model.off(name, draw); model.off("msg:custom", draw); };
}

export default { render };
