// Building and changing elements. Whatever comes from the server becomes a text node or an attribute
// set by its name, so a key or value can never become markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

export const $ = (id) => document.getElementById(id);

export function el(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

// Set a text only if it is another one: screen readers and selections stay undisturbed.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function show(node, shown) {
  if (node.hidden === shown) node.hidden = !shown;
}

// A list of elements that follows a list of data. `make(key, data)` gives {element, update(data)};
// elements whose key stays are kept, so focus, selection and open branches survive an update.
export function keyed(container, make) {
  let shown = new Map();
  return (items) => {
    const wanted = new Set(items.map(([key]) => key));
    for (const [key, row] of shown) if (!wanted.has(key)) row.element.remove();
    const next = new Map();
    let at = container.firstChild;
    for (const [key, data] of items) {
      const row = shown.get(key) ?? make(key, data);
      next.set(key, row);
      row.update(data);
      if (row.element === at) at = at.nextSibling;
      else container.insertBefore(row.element, at);
    }
    shown = next;
  };
}

// Mark what has just changed. Two equal animations take turns, which starts the next one afresh.
export function flash(node) {
  const again = node.classList.contains("changed");
  node.classList.toggle("changed", !again);
  node.classList.toggle("changed-again", again);
}
