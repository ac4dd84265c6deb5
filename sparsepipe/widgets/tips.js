// What ipywidgets' own controls do not show where they have a name: their tooltips, to the pointer and screen readers.
// And what they show where they have no tooltip: "null". A field of the class sp-of-stage-1 is one of many of its name,
// and called after what it is of.

function render({ model, el }) {
  el.style.display = "none";
  const put = () => {
    const tips = model.get("tips"), root = el.closest(".jp-OutputArea-output") || document.body;
    for (const one of root.querySelectorAll('[title="null"]')) one.removeAttribute("title");
    for (const label of root.querySelectorAll("label.widget-label")) {
      const row = label.parentElement, control = row.querySelector("select, input");
      const of = ([...row.classList].find((name) => name.startsWith("sp-of-")) || "").slice(6).replace("-", " ");
      const tip = of ? `How many ${label.textContent} ${of} has` : tips[label.textContent];
      if (of && control) control.setAttribute("aria-label", `${label.textContent}, ${of}`);
      if (!tip || !control || row.title === tip) continue;
      row.title = tip;
      control.setAttribute("aria-description", tip);
    }
  };
  const again = setInterval(put, 1000);  // those beside it, and rows that come later
  return () => clearInterval(again);
}

export default { render };
