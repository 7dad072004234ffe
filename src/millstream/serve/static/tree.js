// One slate as a tree that follows its value: what changes is marked, what is open stays open.
// Branches are built when they are opened and in portions, so a large slate costs little.

import { el, flash, keyed, say } from "./dom.js";
import { count, printable } from "./format.js";
import { brief, isBranch, same, Written } from "./json.js";

const PORTION = 100; // children shown at a time
const OPEN_DEPTH = 3; // levels that are open from the beginning
const OPEN_SIZE = 40; // unless they have more children than this
const LONGEST = 400; // characters of a text that are shown at first
const WHOLE = 100_000; // and when asked for

export class Tree {
  constructor(list) {
    this.list = list;
    this.clear();
  }

  clear() {
    this.list.replaceChildren();
    this.marking = false;
    this.rows = keyed(this.list, (name, entry) => item(name, entry, 0, this.marking));
  }

  update(value) {
    this.rows(isBranch(value) && !Array.isArray(value) ? entriesOf(value) : [["", { value, kind: "whole" }]]);
    this.marking = true;
  }
}

function entriesOf(value) {
  const kind = Array.isArray(value) ? "index" : "name";
  return Object.entries(value).map(([name, inner]) => [name, { value: inner, kind }]);
}

// A line of the tree; it changes its nature if the value does.
function item(name, { kind }, depth, marked) {
  const label = kind === "whole" ? [] : [el("span", { class: kind }, printable(name) || '""'), ": "];
  const element = el("li");
  let nature = null;
  let inside = null;
  return {
    element,
    update({ value }) {
      const now = isBranch(value) ? "branch" : "leaf";
      if (now === nature) {
        inside.update(value, true);
        return;
      }
      element.replaceChildren();
      inside = now === "branch" ? branch(element, label, value, depth) : leaf(element, label);
      inside.update(value, false);
      if (nature !== null || marked) flash(element.querySelector(".value"));
      nature = now;
    },
  };
}

function leaf(element, label) {
  const text = el("span", { class: "value", dir: "auto" });
  const more = el("button", { type: "button", class: "more" });
  element.append(...label, text);
  let last;
  let room = LONGEST;
  const write = () => {
    say(text, typeof last === "string" ? printable(JSON.stringify(last.slice(0, room))) : brief(last, room));
    const cut = typeof last === "string" && last.length > room;
    if (!cut) return more.remove();
    say(more, `Show more of ${count(last.length)} characters`);
    return element.append(more);
  };
  more.addEventListener("click", () => {
    room = WHOLE;
    write();
  });
  return {
    update(value, mark) {
      if (same(last, value)) return;
      last = value;
      write();
      text.dataset.type =
        value === null ? "null" : value instanceof Written ? "number" : typeof value;
      if (mark) flash(text);
    },
  };
}

function branch(element, label, value, depth) {
  const size = el("span", { class: "value size" });
  const list = el("ul", {});
  const more = el("button", { type: "button", class: "more" });
  const details = el("details", {}, el("summary", {}, ...label, size), list);
  element.append(details);
  let last = value;
  let limit = PORTION;
  let marking = false;
  const rows = keyed(list, (name, entry) => item(name, entry, depth + 1, marking));
  const fill = () => {
    const entries = entriesOf(last);
    rows(entries.slice(0, limit));
    const left = entries.length - limit;
    if (left > 0) {
      say(more, `Show ${count(Math.min(left, PORTION))} of ${count(left)} more`);
      details.append(more);
    } else {
      more.remove();
    }
  };
  details.addEventListener("toggle", () => details.open && fill());
  more.addEventListener("click", () => {
    limit += PORTION;
    fill();
  });
  details.open = depth < OPEN_DEPTH && Object.keys(value).length <= OPEN_SIZE;
  return {
    update(next, mark) {
      const changed = mark && !details.open && !same(last, next);
      last = next;
      const length = Object.keys(next).length;
      say(size, Array.isArray(next) ? `[${count(length)}]` : `{${count(length)}}`);
      if (changed) flash(size);
      marking = mark && list.hasChildNodes();
      if (details.open) fill();
      marking = false;
    },
  };
}
