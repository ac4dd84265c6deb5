// What ipywidgets' own controls do not show where they have a name: their tooltips, to the pointer and screen readers.
// And what they show where they have no tooltip: "null".

function render({ model, el }) {
  el.style.display = "none";
  const put = () => {
    const tips = model.get("tips"), root = el.closest(".jp-OutputArea-output") || document.body;
    for (const one of root.querySelectorAll('[title="null"]')) one.removeAttribute("title");
    for (const label of root.querySelectorAll("label.widget-label")) {
      const row = label.parentElement, control = row.querySelector("select, input"), tip = tips[label.textContent];
      if (!tip || !control || row.title === tip) continue;
      row.title = tip;
      control.setAttribute("aria-description", tip);
    }
  };
  const again = setInterval(put, 1000);  // those beside it, and rows that come later
  return () => clearInterval(again);
}

export default { render };
