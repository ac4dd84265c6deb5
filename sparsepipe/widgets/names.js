// Names with hyphens in one line each, as display/names.py puts them: text becomes markup, escaped. Read together with
// what uses it, as one module: page_code.py puts them together.

const escape = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
const whole = (text) => escape(text).replace(/[^\s-]+(?:-[^\s-]+)+/g,
  (name) => `<span style="display:inline-block;max-width:calc(100% - 10px);overflow-wrap:anywhere">${name}</span>`);
