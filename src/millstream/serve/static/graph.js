// The workflow as a picture. Its shape is drawn when it changes; figures are written into it.

import { el, say, svg } from "./dom.js";
import { behindOf, figuresOf } from "./figures.js";
import { addressOf, bytes, count, duration, isoMoment, printable, short } from "./format.js";
import { arrange } from "./layout.js";
import { head, look, rounded, shape, title } from "./shapes.js";

const WIDEST = 196;
const NARROWEST = 170;
const HEIGHT = 70;
const MARGIN = 14;
const SMALLEST = 0.66; // a wider picture is scrolled, not shrunk further

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
      group = svg("a", { ...attributes, href: addressOf(node.name) }, ...parts);
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
    if (figures.overloaded) line("overload", "more waits than its policy allows");
    if (figures.heldBy) line("held back by", printable(figures.heldBy));
    if (figures.silent > 2) line("silent for", duration(figures.silent));
    if (figures.fidelity !== null) {
      const share = `${(100 * figures.fidelity).toFixed(1)} %`;
      const told = `${printable(figures.participants)}, ${printable(figures.closedBy)}`;
      line("last window", `${share} of ${told}`);
    }
    if (figures.pending) line("waiting for the watermark", count(figures.pending));
    if (figures.carried) line("carried to the next batch", count(figures.carried));
    if (figures.slates !== null) line("slates", count(figures.slates));
    if (figures.strategy) line("strategy", printable(figures.strategy));
    for (const way of ["dead", "late", "diverted", "dropped"]) {
      if (figures[way]) line(way, count(figures[way]));
    }
    if (figures.results) line("results", count(figures.results));
    if (figures.failed) line("failed results", count(figures.failed));
    return lines;
  }
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
