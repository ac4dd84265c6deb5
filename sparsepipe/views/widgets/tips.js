// What ipywidgets' own controls do not show where they have a name: their tooltips, to the pointer and screen readers.
// And what they show where they have no tooltip: "null". A field of the class sp-of-stage-1 is one of many of its name,
// and called after what it is of. And what their own style does not show: knobs of sliders that are white on white, and
// arrows of lists that are black on black.

const ARROW = "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 18 18'><path fill='#e0e0e0' d='M5.2,5.9L9,9.7l3.8-3.8l1.2,1.2l-4.9,5l-4.9-5L5.2,5.9z'/></svg>";
const STYLE = `
.sp-panel .widget-slider .noUi-handle{border-color:#616161}
body[data-jp-theme-light="false"] .sp-panel{--jp-widgets-dropdown-arrow:url("data:image/svg+xml,${encodeURIComponent(ARROW)}")}
`;

function render({ model, el }) {
  el.style.display = "none";
  el.innerHTML = `<style>${STYLE}</style>`;
  const put = () => {
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
  return () => clearInterval(again);
}

export default { render };
