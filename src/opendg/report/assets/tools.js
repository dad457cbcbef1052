// Small tools: elements, numbers, packed arrays. Text becomes text nodes, never HTML. All files share one scope.

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const el = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);

const svg = (name, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

const byId = (id) => document.getElementById(id);

function unpack(text, Kind) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Kind(bytes.buffer);
}

const percent = (share, digits = 2) => (share === null || share === undefined ? "–" : (100 * share).toFixed(digits));

// As many digits as tell a value from 1.
function shown(value) {
  if (value > 0.999 && value < 1) return value.toFixed(Math.min(15, 1 - Math.floor(Math.log10(1 - value))));
  return Math.abs(value) >= 1e-3 || value === 0 ? value.toPrecision(4) : value.toExponential(2);
}

const average = (values) =>
  values.some((value) => value === null) ? null : values.reduce((sum, value) => sum + value, 0) / values.length;

function collect(items, key) {
  const groups = new Map();
  for (const item of items) {
    const own = groups.get(key(item));
    if (own) own.push(item);
    else groups.set(key(item), [item]);
  }
  return groups;
}

const distinct = (items, key) => [...new Set(items.map(key))];

const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
