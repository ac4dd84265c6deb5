// Words below `root` that are hard to read, a line each. Corners of each text are taken as drawn, turned text too;
// two of them meet where no axis of theirs keeps them apart.
(root) => {
  const told = [], scope = document.querySelector(root) || document.documentElement;
  const say = (what, ...texts) => told.push(`${what}: ${texts.map((t) => JSON.stringify(t.trim().replace(/\s+/g, " ").slice(0, 60))).join(" and ")}`);
  const shown = (el) => {
    for (let at = el; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.visibility === "hidden" || style.display === "none" || Number(style.opacity) < 0.05) return false;
    }
    return el.getBoundingClientRect().width > 0;
  };
  const corners = (text) => {
    const box = text.getBBox(), matrix = text.getScreenCTM(), inset = 0.18 * Math.min(box.height, box.width);
    return [[0, 0], [1, 0], [1, 1], [0, 1]].map(([i, j]) => {
      const x = box.x + inset + i * (box.width - 2 * inset), y = box.y + inset + j * (box.height - 2 * inset);
      return [matrix.a * x + matrix.c * y + matrix.e, matrix.b * x + matrix.d * y + matrix.f];
    });
  };
  const apart = (a, b) => [a, b].some((own) => own.some((p, k) => {
    const q = own[(k + 1) % 4], n = [q[1] - p[1], p[0] - q[0]];
    const on = (points) => points.map(([x, y]) => x * n[0] + y * n[1]);
    return Math.max(...on(a)) <= Math.min(...on(b)) || Math.max(...on(b)) <= Math.min(...on(a));
  }));
  const frames = new Map();
  for (const text of scope.querySelectorAll("svg text")) {
    let svg = text.ownerSVGElement;
    while (svg.ownerSVGElement) svg = svg.ownerSVGElement;
    const frame = svg.closest(".svg-container") || svg;
    if (!text.textContent.trim() || !shown(text)) continue;
    if (!frames.has(frame)) frames.set(frame, []);
    frames.get(frame).push([text.textContent, corners(text)]);
  }
  for (const [frame, texts] of frames) {
    const box = frame.getBoundingClientRect(), hidden = getComputedStyle(frame).overflow !== "visible" || frame === document.documentElement;
    texts.forEach(([own, a], k) => {
      if (hidden && a.some(([x, y]) => x < box.left - 1 || x > box.right + 1 || y < box.top - 1 || y > box.bottom + 1)) say("cut off", own);
      for (const [other, b] of texts.slice(k + 1)) if (!apart(a, b)) say("over each other", own, other);
    });
  }
  for (const el of scope.querySelectorAll("*")) {
    if (el instanceof SVGElement || el.closest("svg, .jp-Toolbar, .jp-InputArea, .jp-SideBar")) continue;
    const style = getComputedStyle(el), own = [...el.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (own && shown(el) && el.clientWidth && el.scrollWidth > el.clientWidth + 1 && ["hidden", "clip"].includes(style.overflowX)) say("cut off", el.textContent);
  }
  if (root === "html" && scope.scrollWidth > innerWidth + 1) told.push(`scrolls sideways: ${scope.scrollWidth} of ${innerWidth} pixels`);
  return [...new Set(told)];
}
