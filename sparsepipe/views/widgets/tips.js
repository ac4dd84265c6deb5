// What ipywidgets' own controls do not show where they have a name: their tooltips, to the pointer and screen readers.
// And what they show where they have no tooltip: "null". A field of the class sp-of-stage-1 is one of many of its name,
// and called after what it is of. And what their own style does not show: knobs of sliders that are white on white, and
// arrows of lists that are black on black. And that the kernel has ended, with a button that runs the panel's cell again.

const ARROW = "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 18 18'><path fill='#e0e0e0' d='M5.2,5.9L9,9.7l3.8-3.8l1.2,1.2l-4.9,5l-4.9-5L5.2,5.9z'/></svg>";
const STYLE = `
.sp-panel .widget-slider .noUi-handle{border-color:#616161}
body[data-jp-theme-light="false"] .sp-panel{--jp-widgets-dropdown-arrow:url("data:image/svg+xml,${encodeURIComponent(ARROW)}")}
.sp-dead{order:-1;position:sticky;top:0;z-index:8;display:flex;gap:10px;align-items:center;padding:6px 8px;font-weight:600;border-left:4px solid #D55E00;
  background:var(--jp-layout-color1,#fff);box-shadow:0 2px 8px #0003}
.sp-dead[hidden]{display:none}
.sp-lost>:not(.sp-dead){filter:grayscale(1);opacity:.6;pointer-events:none}
`;
const DEAD = `<span>The kernel was restarted or has ended: nothing here answers any more.</span><button type="button" class="sp-again">run its cell</button>`;

function runAgain(cell) {  // as a hand does: choose the cell, and press the notebook's own button
  const run = cell.closest(".jp-NotebookPanel").querySelector('[data-command="notebook:run-cell-and-select-next"]');
  for (const target of [cell.querySelector(".jp-InputPrompt"), run])
    for (const kind of ["mousedown", "mouseup", "click"]) target.dispatchEvent(new MouseEvent(kind, { bubbles: true, cancelable: true, composed: true, button: 0 }));
}

function living(panel) {  // JupyterLab marks the box of a widget when its kernel ends
  const dead = Object.assign(document.createElement("div"), { className: "sp-dead", hidden: true, innerHTML: DEAD });
  const cell = () => panel.closest(".jp-Cell");
  dead.setAttribute("role", "alert");
  dead.lastChild.addEventListener("click", () => runAgain(cell()));
  panel.append(dead);  // last: a box of ipywidgets counts its children
  const look = () => {
    const ended = panel.classList.contains("jupyter-widgets-disconnected");
    dead.hidden = !ended;
    dead.lastChild.hidden = !cell();
    if (panel.classList.contains("sp-lost") !== ended) panel.classList.toggle("sp-lost");
  };
  const observer = new MutationObserver(look);
  look();
  observer.observe(panel, { attributes: true, attributeFilter: ["class"] });
  return observer;
}

function render({ model, el }) {
  el.style.display = "none";
  el.innerHTML = `<style>${STYLE}</style>`;
  let observer = null;
  const put = () => {
    const panel = el.closest(".sp-panel");
    if (!observer && panel) observer = living(panel);
    const tips = model.get("tips"), root = el.closest(".jp-OutputArea-output") || document.body;
    for (const one of root.querySelectorAll('[title="null"]')) one.removeAttribute("title");
    for (const button of root.querySelectorAll("button[class*='sp-of-']")) {
      const of = [...button.classList].find((name) => name.startsWith("sp-of-")).slice(6), label = `${button.textContent.trim()} ${of}`;
      if (button.getAttribute("aria-label") !== label) button.setAttribute("aria-label", label);
    }
    for (const label of root.querySelectorAll("label.widget-label")) {
      const row = label.parentElement, control = row.querySelector("select, input");
      const of = ([...row.classList].find((name) => name.startsWith("sp-of-")) || "").slice(6).replace("-", " ");
      const tip = of && of !== "launch" ? `How many ${label.textContent} ${of} has` : tips[label.textContent];
      if (of && control) control.setAttribute("aria-label", `${label.textContent}, ${of}`);
      if (!tip || !control || row.title === tip) continue;
      row.title = tip;
      control.setAttribute("aria-description", tip);
    }
  };
  const again = setInterval(put, 1000);  // those beside it, and rows that come later
  return () => { clearInterval(again); if (observer) observer.disconnect(); };
}

export default { render };
