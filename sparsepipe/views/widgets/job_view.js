// A job's devices and what each rank did in the last seconds. Read together with names.js, svg_marks.js and device_map.js, as one module.

const JOB_STYLE = `
.sp-job{border:1px solid var(--jp-border-color1,#bbb);border-radius:4px;padding:6px 10px 8px!important;margin:0 0 8px!important;overflow:hidden!important}
.sp-job-head{align-items:center;border-bottom:1px solid var(--jp-border-color2,#ddd);min-height:32px}
.sp-job-head .sp-job-title{flex:1 1 180px;min-width:0}
.sp-job-head button{width:auto!important}
.sp-job-view{display:grid;grid-template-columns:minmax(180px,240px) minmax(0,1fr);gap:4px 16px;margin:4px 0}
.sp-job-view .sp-map{grid-area:auto;max-height:220px}
.sp-lane{display:grid;grid-template-columns:minmax(90px,auto) minmax(80px,1fr) minmax(110px,34%);gap:8px;align-items:center;font-size:12px;min-height:20px}
.sp-lane svg{height:14px;background:var(--jp-layout-color2,#eee)}
.sp-lane span{white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.sp-lanes-head{font-size:12px;color:var(--jp-ui-font-color2,#666)}
@container (max-width:640px){.sp-job-view{grid-template-columns:minmax(0,1fr)} .sp-lane{grid-template-columns:minmax(90px,auto) minmax(80px,1fr) minmax(110px,42%)} .sp-job-head .sp-job-title{flex-basis:100%}}
.sp-job{container-type:inline-size}
`;
const WIDE = 1000;  // of a lane's own units: as wide as its place

function lane({ label, told, spans }, palette) {
  const shapes = new Shapes(palette);
  for (const [start, end, stage, kind] of spans) shapes.add(shade(palette, stage, kind), start * WIDE, 0, (end - start) * WIDE, 14);
  const picture = `<svg xmlns="${SVG}" viewBox="0 0 ${WIDE} 14" preserveAspectRatio="none" role="img" aria-label="${escape(`${label}: ${told}`)}">${shapes.markup()}</svg>`;
  return `<div class="sp-lane"><span data-tip="${escape(label)}">${whole(label)}</span>${picture}<span data-tip="${escape(told)}">${whole(told)}</span></div>`;
}

function render({ model, el }) {
  el.classList.add("sp-view", "sp-job-view");
  el.innerHTML = `<style>${JOB_STYLE}</style><div class="sp-map"></div><div class="sp-job-lanes"></div>`;
  const map = new DeviceMap(el.querySelector(".sp-map")), lanes = el.querySelector(".sp-job-lanes");
  const drawMap = () => {
    const { drawn, chips } = JSON.parse(model.get("devices"));
    map.update(drawn || {}, chips, model.get("palette"));
  };
  const drawLanes = () => {
    const { head, rows } = JSON.parse(model.get("lanes")), palette = model.get("palette");
    lanes.innerHTML = rows && rows.length ? `<div class="sp-lanes-head">${whole(head)}</div>${rows.map((row) => lane(row, palette)).join("")}` : "";
  };
  const tip = ({ target }) => { const of = target.closest("[data-tip]"); if (of) of.title = of.dataset.tip; };
  el.addEventListener("pointerover", tip);
  model.on("change:devices", drawMap);
  model.on("change:lanes", drawLanes);
  drawMap();
  drawLanes();
  return () => { model.off("change:devices", drawMap); model.off("change:lanes", drawLanes); el.removeEventListener("pointerover", tip); };
}

export default { render };
