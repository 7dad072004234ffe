// The one box that opens beside what is pointed at or focused.

import { el, show } from "./dom.js";

const GAP = 10;

export class Tip {
  constructor(element) {
    this.element = element;
    addEventListener("keydown", (event) => event.key === "Escape" && this.hide());
    addEventListener("scroll", () => this.hide(), { passive: true });
  }

  // lines: [[name, value]]; beside: an element, or {left, right, top, bottom} in the window.
  show(lines, beside) {
    this.element.replaceChildren(
      el("dl", {}, ...lines.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    );
    show(this.element, true);
    const at = beside instanceof Element ? beside.getBoundingClientRect() : beside;
    const own = this.element.getBoundingClientRect();
    const x = Math.min(Math.max((at.left + at.right - own.width) / 2, GAP), innerWidth - own.width - GAP);
    const below = at.bottom + GAP + own.height < innerHeight;
    const y = below ? at.bottom + GAP : Math.max(GAP, at.top - own.height - GAP);
    this.element.style.left = `${Math.max(GAP, x)}px`;
    this.element.style.top = `${y}px`;
  }

  hide() {
    show(this.element, false);
  }
}
