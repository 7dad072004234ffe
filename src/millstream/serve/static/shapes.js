// How the steps and edges of a workflow look.

import { svg } from "./dom.js";
import { printable } from "./format.js";

// Kind of node -> how it looks, and what it is called.
const LOOKS = new Map(
  Object.entries({
    source: ["source", "source"],
    sink: ["sink", "sink"],
    windowed: ["window", "window"],
    window: ["window", "window"],
    update: ["update", "updater"],
    updater: ["update", "updater"],
    stream: ["stream", "stream"],
    published: ["stream", "stream"],
    late: ["late", "late records"],
    mapbatches: ["step", "map batches"],
    pairs: ["step", "map"],
  }),
);
export const look = (kind) => LOOKS.get(kind)?.[0] ?? "step";
export const title = (kind) => LOOKS.get(kind)?.[1] ?? printable(String(kind ?? "step"));

// Each kind has an outline of its own, so that colour is not needed to tell them apart.
export function shape(kind, w, h) {
  const round = Math.min(9, h / 4);
  const box = (x, y, rx) => svg("rect", { class: "box", x, y, width: w, height: h, rx });
  switch (kind) {
    case "source":
      return [box(0, 0, Math.min(26, h / 2))];
    case "sink": {
      const fold = Math.min(16, h / 2.5);
      return [
        svg("path", { class: "box", d: `M0 0h${w - fold}l${fold} ${fold}v${h - fold}h${-w}z` }),
        svg("path", { class: "line", d: `M${w - fold} 0v${fold}h${fold}` }),
      ];
    }
    case "update": {
      const off = Math.min(5, h / 7);
      return [box(off, -off, round), box(0, 0, round)];
    }
    case "window": {
      const bars = Math.max(2, Math.floor((w - 12) / 15));
      const step = (w - 12) / bars;
      const d = Array.from({ length: bars }, (_, i) => `M${6 + i * step} 4h${step - 3}`).join("");
      return [box(0, 0, Math.min(4, round)), svg("path", { class: "panes", d })];
    }
    case "stream": {
      const tip = Math.min(14, h / 3);
      const d = `M0 0h${w - tip}l${tip} ${h / 2}l${-tip} ${h / 2}h${tip - w}z`;
      return [svg("path", { class: "box", d })];
    }
    default:
      return [box(0, 0, round)];
  }
}

export function head(x, y, down) {
  return down ? `M${x} ${y}l-4.5 -8h9z` : `M${x} ${y}l-8 -4.5v9z`;
}

export function rounded(points, radius) {
  let path = `M${points[0]}`;
  for (let i = 1; i < points.length - 1; i += 1) {
    const before = towards(points[i], points[i - 1], radius);
    const after = towards(points[i], points[i + 1], radius);
    path += `L${before}Q${points[i]} ${after}`;
  }
  return `${path}L${points.at(-1)}`;
}

function towards([x, y], [u, v], most) {
  const length = Math.hypot(u - x, v - y);
  const part = length ? Math.min(most, length / 2) / length : 0;
  return [x + (u - x) * part, y + (v - y) * part];
}
