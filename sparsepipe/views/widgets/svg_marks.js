// Shapes and words of a picture as SVG, in colours that are told apart and read on light pages and dark ones. Read together with
// names.js and what draws with it, as one module: see page_code.py.

// Three digits and all that stand before the point, as util/text/numbers.py writes what was measured or predicted.
const measured = (v) => (Math.abs(v) >= 999.5 ? Math.round(v).toLocaleString("en") : v ? v.toPrecision(3) : "0");
const duration = (s) => (Math.abs(s) >= 10 ? `${measured(s)} s` : `${measured(s * 1e3)} ms`);
const size = (b) => {
  for (const [unit, n] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (b >= n) return `${measured(b / n)} ${unit}`;
  return `${b.toFixed(0)} B`;
};

const SVG = "http://www.w3.org/2000/svg";
const rect = (x, y, w, h, fill, more = "", title = "") =>
  `<rect x="${x.toFixed(2)}" y="${y}" width="${Math.max(w, 0).toFixed(2)}" height="${h}" fill="${fill}" ${more}${title ? ` data-tip="${escape(title)}"` : ""}/>`;
const ruler = document.createElement("canvas").getContext("2d");  // its font is that of a view's bold text
function inLines(words, room) {  // of bold text, as wide as that
  const lines = [""];
  for (const word of words.split(" ")) {
    const last = lines.length - 1, longer = lines[last] ? `${lines[last]} ${word}` : word;
    if (lines[last] && ruler.measureText(longer).width > room) lines.push(word);
    else lines[last] = longer;
  }
  return lines;
}
const text = (x, y, words, more = "") => `<text x="${x}" y="${y}" ${more}>${escape(words)}</text>`;
const LEADING = 13;                  // pixels from one line of such text to the next: they do not touch
const LETTER = 6.6;                  // pixels of a letter of a view's text, on average
const shortened = (words, most) => (words.length > most ? words.slice(0, Math.max(1, Math.floor(most) - 1)) + "…" : words);
const named = (x, y, lines, whole, more = "") =>  // words in lines, the lowest at y, and all of what they say under the pointer
  `<text x="${x}" y="${y}" ${more} data-tip="${escape(whole)}">` + lines.map((part, k) => `<tspan x="${x}" y="${y - LEADING * (lines.length - 1 - k)}">${escape(part)}</tspan>`).join("") + "</text>";
const line = (x1, y1, x2, y2, more = "") =>
  `<line x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}" stroke="var(--jp-ui-font-color1,#222)" ${more}/>`;
const svg = (width, height, inside, label, role = "img") =>
  `<svg xmlns="${SVG}" height="${height}" viewBox="0 0 ${width} ${height}" role="${role}" aria-label="${escape(label)}">${inside}</svg>`;

function shade(palette, stage, kind) {
  const own = palette.stages[stage % palette.stages.length];
  if (kind === "forward") return own[0];
  if (kind === "backward" || kind === "send") return own[1];
  if (kind === "update" || kind === "average") return own[2];
  return kind === "wait" ? palette.wait : palette.other;
}

const EDGED = 3;                     // pixels: what is wider has an edge, by which it is seen on light pages and dark ones
const edge = (palette, color) => palette.edges[color] || color;
const edged = (palette, color) => (edge(palette, color) === color ? "" : `stroke="${edge(palette, color)}" stroke-width="0.8"`);

function luminance(color) {  // WCAG 2: of #rrggbb
  const linear = [1, 3, 5].map((k) => parseInt(color.slice(k, k + 2), 16) / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}
const inks = new Map();
function ink(color) {  // black or white, whichever is read better on it
  if (!inks.has(color)) inks.set(color, luminance(color) > 0.179 ? "#000" : "#fff");
  return inks.get(color);
}

// Shapes of one colour are one path: a browser lays out and paints some dozen of them sooner than some hundred rectangles.
// What is under the pointer is then found by its place.
class Shapes {
  constructor(palette) { this.palette = palette; this.paths = new Map(); }
  add(color, x, y, w, h, stage = "") {
    const wide = Math.max(w, 0), own = `${Math.min(wide, h) > EDGED ? color : edge(this.palette, color)} ${stage}`;
    const box = `M${x.toFixed(2)} ${y.toFixed(2)}h${wide.toFixed(2)}v${h.toFixed(2)}h${(-wide).toFixed(2)}z`;
    this.paths.set(own, (this.paths.get(own) || "") + box);
  }
  markup() {
    return [...this.paths].map(([own, path]) => {
      const [color, stage] = own.split(" ");
      return `<path d="${path}" fill="${color}" ${stage ? `data-s="${stage}" ` : ""}${edged(this.palette, color)}/>`;
    }).join("");
  }
}

