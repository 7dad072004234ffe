// The workflow as a picture. Its shape is drawn when it changes; figures are written into it.

import { el, say, svg } from "./dom.js";
import { bytes, count, duration, isoMoment, printable, secondsOf, short } from "./format.js";
import { numberOf } from "./json.js";
import { arrange } from "./layout.js";

const WIDEST = 196;
const NARROWEST = 164;
const HEIGHT = 70;
const MARGIN = 14;
const SMALLEST = 0.66; // a wider picture is scrolled, not shrunk further

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
const look = (kind) => LOOKS.get(kind)?.[0] ?? "step";
const title = (kind) => LOOKS.get(kind)?.[1] ?? printable(String(kind ?? "step"));

export class Graph {
  constructor(container, legend, note, tip) {
    this.container = container;
    this.legend = legend;
    this.note = note;
    this.tip = tip;
    this.drawn = "";
    this.nodes = new Map();
    this.status = null;
    this.rates = new Map();
    new ResizeObserver(() => this.#draw()).observe(container);
  }

  update(status, rates) {
    this.status = status;
    this.rates = rates;
    this.#draw();
    this.#write();
  }

  #draw() {
    const graph = this.status?.graph;
    if (!graph || !this.container.clientWidth) return;
    const nodes = graph.nodes ?? [];
    const edges = graph.edges ?? [];
    const room = this.container.clientWidth;
    const wanted = JSON.stringify([room, nodes.map((n) => [n.name, n.kind]), edges]);
    if (wanted === this.drawn) return;
    this.drawn = wanted;
    this.nodes.clear();
    this.container.replaceChildren();
    say(this.note, nodes.length ? `${nodes.length} ${nodes.length === 1 ? "step" : "steps"}` : "");
    this.#explain(nodes);
    if (!nodes.length) {
      this.container.append(el("p", { class: "empty" }, "The shape of this flow is not known yet."));
      return;
    }
    const down = room < 700;
    const place = (width) =>
      arrange(nodes, edges, {
        along: down ? HEIGHT : width,
        across: down ? width : HEIGHT,
        layers: down ? 34 : 46,
        rows: down ? 18 : 20,
      });
    this.width = WIDEST;
    let layout = place(WIDEST);
    if ((down ? layout.across : layout.along) + 2 * MARGIN > room) {
      this.width = NARROWEST;
      layout = place(NARROWEST);
    }
    const xy = (along, across) => (down ? [across, along] : [along, across]);
    const [w, h] = xy(layout.along, layout.across);
    const width = w + 2 * MARGIN;
    const height = h + 2 * MARGIN;
    const scale = Math.max(Math.min(1, room / width), SMALLEST);
    const picture = svg("svg", {
      width: width * scale,
      height: height * scale,
      viewBox: `${-MARGIN} ${-MARGIN} ${width} ${height}`,
    });
    for (const edge of layout.edges) picture.append(...this.#edge(edge, layout.places, xy, down));
    for (const node of nodes) {
      const place = layout.places.get(node.name);
      const [x, y] = xy(place.along, place.across);
      picture.append(this.#node(node, x, y));
    }
    this.container.append(picture);
    this.#fit();
  }

  #explain(nodes) {
    const kinds = [...new Map(nodes.map((node) => [look(node.kind), node.kind])).entries()];
    this.legend.replaceChildren(
      ...kinds.map(([name, kind]) =>
        el(
          "li",
          {},
          svg(
            "svg",
            { class: `node ${name}`, width: 30, height: 20, viewBox: "-2 -4 36 26", "aria-hidden": "true" },
            ...shape(name, 30, 20),
          ),
          name === "step" ? "step" : title(kind),
        ),
      ),
    );
  }

  #edge(edge, places, xy, down) {
    const from = places.get(edge.from);
    const to = places.get(edge.to);
    const [length, breadth] = down ? [HEIGHT, this.width] : [this.width, HEIGHT];
    if (edge.back) {
      const out = from.across + breadth * 0.75;
      const into = to.across + breadth * 0.75;
      const right = from.along + length;
      const points = [
        [right, out],
        [right + 18, out],
        [right + 18, edge.lane],
        [to.along - 20, edge.lane],
        [to.along - 20, into],
        [to.along - 1, into],
      ].map(([a, b]) => xy(a, b));
      return [
        svg("path", { class: "edge back", d: rounded(points, 9) }),
        svg("path", { class: "head", d: head(...points.at(-1), down) }),
      ];
    }
    const stops = [[from.along + length, from.across + breadth / 2]];
    for (const via of edge.via) {
      stops.push([via.along, via.across], [via.along + length, via.across]);
    }
    stops.push([to.along - 1, to.across + breadth / 2]);
    let path = `M${xy(...stops[0])}`;
    for (let i = 0; i < stops.length - 1; i += 1) {
      const [a, b] = stops[i];
      const [c, d] = stops[i + 1];
      const bend = (c - a) / 2;
      path +=
        i % 2 ? `L${xy(c, d)}` : `C${xy(a + bend, b)} ${xy(c - bend, d)} ${xy(c, d)}`;
    }
    return [
      svg("path", { class: "edge", d: path }),
      svg("path", { class: "head", d: head(...xy(...stops.at(-1)), down) }),
    ];
  }

  #node(node, x, y) {
    const kind = look(node.kind);
    const name = svg("text", { class: "name", x: 14, y: 24 });
    const label = svg("text", { class: "kind", x: 14, y: 41 });
    const behind = svg("text", { class: "behind", x: this.width - 14, y: 41, "text-anchor": "end" });
    const total = svg("text", { class: "total", x: 14, y: 59 });
    const rate = svg("text", { class: "rate", x: this.width - 14, y: 59, "text-anchor": "end" });
    const parts = [...shape(kind, this.width, HEIGHT), name, label, behind, total, rate];
    const attributes = { class: `node ${kind}`, transform: `translate(${x} ${y})`, tabindex: 0 };
    let group;
    if (kind === "update") {
      const to = `#/slates/${encodeURIComponent(node.name)}`;
      group = svg("a", { ...attributes, href: to }, ...parts);
    } else {
      group = svg("g", { ...attributes, role: "img" }, ...parts);
    }
    const show = () => this.tip.show(this.#describe(node), group);
    group.addEventListener("pointerenter", show);
    group.addEventListener("pointerleave", () => this.tip.hide());
    group.addEventListener("focus", show);
    group.addEventListener("blur", () => this.tip.hide());
    label.textContent = title(node.kind);
    this.nodes.set(node.name, { node, group, name, label, behind, total, rate });
    return group;
  }

  // Cut names that are too long for their box; the whole one is in the box that opens.
  #fit() {
    for (const { node, name } of this.nodes.values()) {
      fit(name, printable(node.name), this.width - (look(node.kind) === "sink" ? 38 : 28));
    }
  }

  #write() {
    for (const { node, group, behind, total, rate } of this.nodes.values()) {
      const figures = figuresOf(this.status, node.name);
      say(total, figures.records === null ? "" : short(figures.records));
      const speed = this.rates.get(node.name);
      say(rate, speed === undefined ? "" : `${short(speed)}/s`);
      say(behind, behindOf(figures));
      group.classList.toggle("holds", Boolean(figures.pending || figures.carried));
      const told = this.#describe(node).map(([name, value]) => `${name} ${value}`);
      group.setAttribute("aria-label", told.join(", "));
    }
  }

  #describe(node) {
    const figures = figuresOf(this.status, node.name);
    const speed = this.rates.get(node.name);
    const lines = [[title(node.kind), printable(node.name)]];
    const line = (name, value) => lines.push([name, value]);
    if (figures.records !== null) line("records", count(figures.records));
    if (speed !== undefined) line("per second", short(speed));
    if (figures.watermark) line("watermark", isoMoment(figures.watermark));
    if (figures.lag !== null) line("lag", duration(figures.lag));
    if (figures.toRead) line("still to read", bytes(figures.toRead));
    if (figures.heldBy) line("held back by", printable(figures.heldBy));
    if (figures.pending) line("waiting for the watermark", count(figures.pending));
    if (figures.carried) line("carried to the next batch", count(figures.carried));
    if (figures.slates !== null) line("slates", count(figures.slates));
    if (figures.strategy) line("strategy", printable(figures.strategy));
    for (const way of ["dead", "late", "diverted", "dropped"]) {
      if (figures[way]) line(way, count(figures[way]));
    }
    return lines;
  }
}

// Everything that is known of a step, from the sources, the operators and the ledger.
export function figuresOf(status, name) {
  const source = status.sources?.find((one) => one.name === name);
  const operator = status.operators?.find((one) => one.name === name);
  const account = Object.hasOwn(status.ledger ?? {}, name) ? status.ledger[name] : null;
  const records = source?.rows ?? operator?.offered ?? account?.offered;
  const watermark = source?.watermark ?? operator?.watermark ?? null;
  const behind = secondsOf(status.watermark) - secondsOf(watermark);
  const heldBy = source?.held_by;
  return {
    records: records == null ? null : numberOf(records),
    watermark,
    lag: status.lag_seconds != null && Number.isFinite(behind) ? numberOf(status.lag_seconds) + behind : null,
    toRead: numberOf(source?.pending_bytes),
    heldBy: heldBy == null ? "" : [].concat(heldBy).join(", "),
    pending: numberOf(operator?.pending),
    carried: numberOf(operator?.carried),
    slates: operator?.slates == null ? null : numberOf(operator.slates),
    strategy: operator?.strategy ?? "",
    dead: numberOf(operator?.dead ?? account?.dead),
    late: numberOf(operator?.late ?? account?.late),
    diverted: numberOf(operator?.diverted ?? account?.diverted),
    dropped: numberOf(operator?.dropped ?? account?.dropped),
  };
}

function behindOf(figures) {
  if (figures.carried) return `${short(figures.carried)} carried`;
  if (figures.pending) return `${short(figures.pending)} waiting`;
  if (figures.toRead) return `${bytes(figures.toRead)} left`;
  if (figures.lag !== null) return `lag ${duration(figures.lag)}`;
  return "";
}

// Each kind has an outline of its own, so that colour is not needed to tell them apart.
function shape(kind, w, h) {
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
      return [svg("path", { class: "box", d: `M0 0h${w - tip}l${tip} ${h / 2}l${-tip} ${h / 2}h${tip - w}z` })];
    }
    default:
      return [box(0, 0, round)];
  }
}

function head(x, y, down) {
  return down ? `M${x} ${y}l-4.5 -8h9z` : `M${x} ${y}l-8 -4.5v9z`;
}

function rounded(points, radius) {
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

function fit(element, text, room) {
  const fits = (shown) => {
    element.textContent = shown;
    return element.getComputedTextLength() <= room;
  };
  if (fits(text)) return;
  let short = 0;
  let long = text.length;
  while (long - short > 1) {
    const middle = (short + long) >> 1;
    if (fits(`${text.slice(0, middle)}…`)) short = middle;
    else long = middle;
  }
  element.textContent = `${text.slice(0, short).replace(/[\ud800-\udbff]$/, "")}…`;
}
