// A line over time, with axes, and the value under the pointer or the arrow keys.

import { el, svg } from "./dom.js";
import { clock, moment } from "./format.js";

const LEFT = 62;
const RIGHT = 12;
const TOP = 10;
const BOTTOM = 24;
const HEIGHT = 190;
const TIME_STEPS = [5, 10, 15, 30, 60, 120, 300, 600];

export class Chart {
  // value(point) -> number, format(number) -> text, lines(point) -> [[name, value]] for the tip.
  constructor(container, tip, { value, format, lines, steps, empty }) {
    Object.assign(this, { container, tip, value, format, lines, steps });
    this.grid = svg("g", { class: "grid" });
    this.area = svg("path", { class: "area" });
    this.line = svg("path", { class: "line" });
    this.cursor = svg("g", { class: "cursor", visibility: "hidden" });
    this.ruler = svg("path", {});
    this.dot = svg("circle", { r: 4 });
    this.cursor.append(this.ruler, this.dot);
    this.picture = svg(
      "svg",
      { height: HEIGHT, tabindex: 0, role: "img" },
      this.grid,
      this.area,
      this.line,
      this.cursor,
    );
    this.nothing = el("p", { class: "empty" }, empty);
    container.append(this.picture, this.nothing);
    this.shown = [];
    this.at = null; // the time of the point under the cursor
    new ResizeObserver(() => this.#draw()).observe(container);
    this.picture.addEventListener("pointermove", (event) => this.#point(event));
    this.picture.addEventListener("pointerleave", () => this.#leave());
    this.picture.addEventListener("blur", () => this.#leave());
    this.picture.addEventListener("keydown", (event) => this.#key(event));
  }

  // points: [{at, ...}] in order of time; the axis goes from `end - span` to `end`.
  update(points, end, span, label) {
    this.points = points;
    this.end = end;
    this.span = span;
    this.picture.setAttribute("aria-label", label);
    this.#draw();
  }

  #draw() {
    const width = this.container.clientWidth;
    if (!this.points || !width) return;
    const begin = this.end - this.span;
    this.shown = this.points.filter((point) => point.at >= begin && point.at <= this.end + 1);
    const any = this.shown.length > 0;
    this.nothing.hidden = any;
    this.picture.classList.toggle("none", !any);
    this.picture.setAttribute("width", width);
    const most = Math.max(0, ...this.shown.map(this.value));
    const step = niceStep(most || 1, this.steps);
    const top = Math.max(step, Math.ceil(most / step - 1e-9) * step);
    const inner = width - LEFT - RIGHT;
    const low = HEIGHT - BOTTOM;
    this.x = (at) => LEFT + ((at - begin) / this.span) * inner;
    this.y = (value) => low - (value / top) * (low - TOP);
    this.#axes(begin, width, top, step);
    this.#trace(low);
    if (this.at !== null) this.#mark(this.shown.find((point) => point.at === this.at));
  }

  #axes(begin, width, top, step) {
    const parts = [];
    for (let value = 0; value <= top + step / 2; value += step) {
      const y = this.y(value);
      parts.push(svg("path", { d: `M${LEFT} ${y}H${width - RIGHT}`, class: value ? "" : "base" }));
      parts.push(svg("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, this.format(value)));
    }
    const room = (one) => (width - LEFT - RIGHT) / (one < 60 ? 84 : 60); // as many labels fit
    const every = TIME_STEPS.find((one) => this.span / one <= room(one)) ?? TIME_STEPS.at(-1);
    for (let at = Math.ceil(begin / every) * every; at <= this.end; at += every) {
      const x = this.x(at);
      if (x < LEFT + 12 || x > width - RIGHT - 14) continue;
      const text = clock(at, every < 60);
      parts.push(svg("path", { d: `M${x} ${HEIGHT - BOTTOM}v4`, class: "base" }));
      parts.push(svg("text", { x, y: HEIGHT - 6, "text-anchor": "middle" }, text));
    }
    this.grid.replaceChildren(...parts);
  }

  // Where no batch came for long, the line is broken: nothing was measured there.
  #trace(low) {
    const gaps = this.shown.slice(1).map((point, i) => point.at - this.shown[i].at);
    const usual = [...gaps].sort((a, b) => a - b)[gaps.length >> 1] ?? 0;
    const longest = Math.max(8, 5 * usual);
    let line = "";
    let area = "";
    let first = null;
    let last = null;
    const finish = () => {
      if (first !== null) area += `L${last} ${low}L${first} ${low}Z`;
    };
    this.shown.forEach((point, i) => {
      const x = this.x(point.at).toFixed(1);
      const y = this.y(this.value(point)).toFixed(1);
      const fresh = i === 0 || gaps[i - 1] > longest;
      if (fresh) {
        finish();
        first = x;
        const alone = i === this.shown.length - 1 || gaps[i] > longest;
        line += `M${x} ${y}${alone ? "h0.01" : ""}`;
        area += `M${x} ${y}`;
      } else {
        line += `L${x} ${y}`;
        area += `L${x} ${y}`;
      }
      last = x;
    });
    finish();
    this.line.setAttribute("d", line);
    this.area.setAttribute("d", area);
  }

  #point(event) {
    const x = event.clientX - this.picture.getBoundingClientRect().left;
    let nearest = null;
    for (const point of this.shown) {
      const off = Math.abs(this.x(point.at) - x);
      if (nearest === null || off < nearest.off) nearest = { off, point };
    }
    if (nearest && nearest.off < 60) this.#mark(nearest.point);
    else this.#leave();
  }

  #key(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (!Object.hasOwn(moves, event.key) || !this.shown.length) return;
    event.preventDefault();
    const last = this.shown.length - 1;
    const now = this.shown.findIndex((point) => point.at === this.at);
    const to = now < 0 ? last : Math.min(last, Math.max(0, now + moves[event.key]));
    this.#mark(this.shown[to]);
  }

  #mark(point) {
    if (!point) return this.#leave();
    this.at = point.at;
    const x = this.x(point.at);
    const y = this.y(this.value(point));
    this.ruler.setAttribute("d", `M${x} ${TOP}V${HEIGHT - BOTTOM}`);
    this.dot.setAttribute("cx", x);
    this.dot.setAttribute("cy", y);
    this.cursor.setAttribute("visibility", "visible");
    const box = this.picture.getBoundingClientRect();
    const at = { left: box.left + x, right: box.left + x, top: box.top + TOP, bottom: box.bottom };
    this.tip.show([["at", moment(point.at)], ...this.lines(point)], at);
  }

  #leave() {
    if (this.at === null) return;
    this.at = null;
    this.cursor.setAttribute("visibility", "hidden");
    this.tip.hide();
  }
}

// A step of 1, 2 or 5 times a power of ten that gives three to five lines.
function niceStep(most, least = 0) {
  const raw = most / 4;
  const power = 10 ** Math.floor(Math.log10(raw));
  const factor = [1, 2, 5, 10].find((one) => one * power >= raw * 0.999);
  return Math.max(factor * power, least);
}
