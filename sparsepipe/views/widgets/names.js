// Names with hyphens in one line each, as views/markup.py puts them, and numbers with their units, as `tied` of
// views/plots/theme.py does, which ends lines behind a dot: text becomes markup, escaped. Read together with what uses it, as one module: see page_code.py.

const escape = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
const tied = (text) => text.replaceAll(" · ", "\u00a0· ").replace(/ ?× ?/g, (found) => found.replaceAll(" ", "\u00a0"))
  .replace(/(\([\d,.]+) (?=[a-z]+\))/g, "$1\u00a0").replace(/\bgap (?=<?\d)/g, "gap\u00a0")
  .replace(/(\d) (?=\(|(?:%|[mµ]?s|[kMG]?B|[kMG]B\/s|[kMG]bit\/s|[a-z]+\/s|more|times)(?![\w\/]))/g, "$1\u00a0");
const whole = (text) => escape(tied(String(text))).replace(/(?:[^\s-]+\u00a0)*[^\s-]+(?:-[^\s-]+)+(?:\u00a0[^\s-]+)*/g,
  (name) => `<span style="display:inline-block;max-width:calc(100% - 10px);overflow-wrap:anywhere">${name}</span>`);
