// A table of runs: a box to mark each, headers that sort. The kernel sorts and filters; cells are text, never markup.
// A name, a time and a number stay in one line, and a sentence goes on in further ones: where the page is too narrow for
// that, the table scrolls sideways within itself, by the pointer and by keys, and the runs' names stay in sight.

const STYLE = `
.sp-runs{container-type:inline-size;max-height:300px;overflow:auto;font-size:12px;line-height:1.5}
.sp-runs table{border-collapse:collapse;width:100%}
.sp-runs th,.sp-runs td{text-align:left;padding:2px 8px 2px 4px;vertical-align:top;white-space:nowrap}
.sp-runs td.sp-sentence{white-space:normal;min-width:280px}
.sp-runs td.sp-sentence span{white-space:nowrap}
.sp-runs td.sp-number,.sp-runs th.sp-number{text-align:right}
.sp-runs thead th{position:sticky;top:0;z-index:1;background:var(--jp-layout-color0,#fff)}
@container (min-width:700px){.sp-runs tr>:nth-child(2){position:sticky;left:0;background:var(--jp-layout-color0,#fff)}
.sp-runs thead tr>:nth-child(2){z-index:2}.sp-runs tr.sp-marked>:nth-child(2){background:var(--jp-layout-color2,#eee)}}
.sp-runs thead button{all:unset;cursor:pointer;font-weight:600}
.sp-runs thead button:focus-visible,.sp-runs input:focus-visible{outline:2px solid var(--jp-brand-color1,#1976D2);outline-offset:1px}
.sp-cut-columns{font-size:12px;color:var(--jp-ui-font-color2,#666);min-height:18px;text-align:right}
.sp-runs tr.sp-baseline td{border-bottom:2px solid #D55E00}
.sp-runs.sp-is-cut{box-shadow:inset -14px 0 10px -10px #0006}
.sp-runs tr.sp-marked{background:var(--jp-layout-color2,#eee)}
`;

const SENTENCE = 40;  // letters: what is longer and has spaces is none of a name, a time or a plan's shape
function filled(cell, text) {  // in a sentence, too, names with hyphens are in one line each
  const is_sentence = text.length > SENTENCE && text.includes(" ");
  cell.classList.toggle("sp-sentence", is_sentence);
  if (!is_sentence) return Object.assign(cell, { textContent: text });
  for (const [k, part] of text.split(/([^\s-]+(?:-[^\s-]+)+)/).entries())
    cell.append(k % 2 ? Object.assign(document.createElement("span"), { textContent: part }) : part);
  return cell;
}

function render({ model, el }) {
  el.innerHTML = `<style>${STYLE}</style><div class="sp-runs" tabindex="0" role="region" aria-label="runs"><table><thead></thead><tbody></tbody></table></div><div class="sp-cut-columns"></div>`;
  const head = el.querySelector("thead"), body = el.querySelector("tbody"), box = el.querySelector(".sp-runs");
  const beyond = el.querySelector(".sp-cut-columns");
  const tellCut = () => {  // which columns are beyond the right edge, until the table is scrolled there
    const edge = box.getBoundingClientRect().right, cells = [...head.querySelectorAll("th")];
    const names = cells.filter((cell) => cell.getBoundingClientRect().right > edge + 2).map((cell) => cell.textContent.replace(/ [▾▴]$/, ""));
    box.classList.toggle("sp-is-cut", names.length > 0);
    beyond.textContent = names.length ? `scroll for ${names.join(", ")} →` : "";
  };
  box.addEventListener("scroll", tellCut, { passive: true });
  const watch = new ResizeObserver(tellCut);
  watch.observe(box);
  const make = (name, text, more = {}) => Object.assign(document.createElement(name), { textContent: text }, more);

  const sorted = (column) => {
    const now = model.get("sort");
    model.set("sort", { column, descending: now.column === column ? !now.descending : false });
    model.save_changes();
  };
  const marked = (name, on) => {
    const others = model.get("value").filter((one) => one !== name);
    model.set("value", on ? [...others, name] : others);
    model.save_changes();
  };
  const draw = () => {
    const { columns, heads, meanings, numbers, rows, baseline } = JSON.parse(model.get("document")), sort = model.get("sort"), value = new Set(model.get("value"));
    const held = document.activeElement && box.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    box.style.display = rows.length ? "" : "none";
    const line = make("tr", "");
    line.append(make("th", "mark", { scope: "col" }));
    columns.forEach((column, k) => {
      const cell = make("th", "", { scope: "col", className: numbers[k] ? "sp-number" : "" });
      const own = sort.column === column;
      cell.setAttribute("aria-sort", own ? (sort.descending ? "descending" : "ascending") : "none");
      const button = make("button", heads[k] + (own ? (sort.descending ? " ▾" : " ▴") : ""), { type: "button", title: `Sort by ${heads[k]}` + (meanings[k] ? `: ${meanings[k]}` : "") });
      button.dataset.key = `sort ${column}`;
      button.addEventListener("click", () => sorted(column));
      cell.append(button);
      line.append(cell);
    });
    head.replaceChildren(line);
    body.replaceChildren(...rows.map((cells) => {
      const name = cells[0], row = make("tr", "", { className: `${value.has(name) ? "sp-marked" : ""} ${name === baseline ? "sp-baseline" : ""}` }), first = make("td", "");
      const tick = make("input", "", { type: "checkbox", checked: value.has(name) });
      tick.setAttribute("aria-label", `mark ${name}`);
      tick.dataset.key = `mark ${name}`;
      tick.addEventListener("change", () => marked(name, tick.checked));
      first.append(tick);
      row.append(first, ...cells.map((text, k) => filled(make("td", "", { className: numbers[k] ? "sp-number" : "" }), !k && name === baseline ? `⚑\u00a0${text}` : text)));
      row.addEventListener("click", (event) => { if (!event.target.closest("input")) marked(name, !value.has(name)); });
      return row;
    }));
    tellCut();
    if (held) for (const one of box.querySelectorAll("[data-key]")) if (one.dataset.key === held) one.focus();
  };
  const names = ["document", "value", "sort"].map((name) => `change:${name}`);
  for (const name of names) model.on(name, draw);
  draw();
  return () => { watch.disconnect(); for (const name of names) model.off(name, draw); };
}

export default { render };
