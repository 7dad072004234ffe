// Early answers: one small picture per group, with its estimate and error bars over what was read.

import { el, keyed, say, show, svg } from "./dom.js";
import { count, duration, plural, printable, short } from "./format.js";
import { numberOf } from "./json.js";

const WIDTH = 250;
const HEIGHT = 120;
const LEFT = 46;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;
const CAP = 3; // half the width of the ends of an error bar

export class Answers {
  constructor(section, tip) {
    const part = (name) => section.querySelector(`[data-part="${name}"]`);
    Object.assign(this, { section, tip, value: null });
    this.note = part("note");
    this.more = part("more");
    this.choice = part("choice");
    this.bar = part("bar");
    this.panels = keyed(part("panels"), (key) => new Panel(key, tip));
    this.options = keyed(this.choice, (name) => {
      const element = el("option", { value: name }, printable(name));
      return { element, update: (label) => say(element, printable(label)) };
    });
    this.choice.addEventListener("change", () => {
      this.value = this.choice.value;
      if (this.answers) this.update(this.answers);
    });
  }

  update(answers) {
    this.answers = answers;
    show(this.section, answers != null);
    if (answers == null) return;
    const names = Object.keys(answers.values);
    if (!names.includes(this.value)) this.value = names[0] ?? null;
    const heavy = (name) => (answers.heavy.includes(name) ? `${name} (heavy tail)` : name);
    this.options(names.map((name) => [name, heavy(name)]));
    show(this.choice, names.length > 1);
    if (this.choice.value !== this.value) this.choice.value = this.value ?? "";
    this.bar.value = numberOf(answers.progress);
    say(this.note, headOf(answers));
    const series = this.value === null ? [] : answers.values[this.value];
    const looks = answers.looks.map(numberOf);
    this.panels(series.map((one) => [one.key.join(" · "), { ...one, looks, exact: answers.exact }]));
    say(this.more, tailOf(answers, series.length));
  }
}

function headOf(answers) {
  const read = `${(100 * numberOf(answers.progress)).toFixed(1)} % read in ${duration(numberOf(answers.elapsed))}`;
  if (answers.exact) return `exact: all was ${read.replace(/^.* % /, "")}`;
  if (answers.ended_by) return `${read}; ended by ${answers.ended_by}`;
  return answers.left == null ? read : `${read}, about ${duration(numberOf(answers.left))} left`;
}

function tailOf(answers, shown) {
  const parts = [];
  const more = numberOf(answers.groups) - shown;
  if (more > 0 && shown) parts.push(`${plural(more, "group")} more.`);
  if (!answers.exact) {
    parts.push(`Bars at ${Math.round(1000 * numberOf(answers.confidence)) / 10} % confidence: ${answers.promise}.`);
    const unseen = numberOf(answers.unseen ?? 0);
    if (unseen > 0) parts.push(`A group not seen yet holds at most ${(100 * unseen).toFixed(2)} % of the input.`);
  }
  return printable([...parts, ...answers.notes].join(" "));
}

class Panel {
  constructor(key, tip) {
    this.tip = tip;
    this.told = el("span", { class: "note" });
    this.grid = svg("g", { class: "grid" });
    this.marks = svg("g", {});
    this.picture = svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: 0 },
      this.grid,
      this.marks,
    );
    const head = el("figcaption", {}, el("b", { title: printable(key) }, printable(key) || "everything"), this.told);
    this.element = el("figure", { class: "answer" }, head, this.picture);
    this.key = printable(key);
  }

  update({ points, looks, exact }) {
    const known = points
      .map((point, i) => ({ at: looks[i], point: point?.map((one) => (one == null ? null : numberOf(one))) }))
      .filter(({ point }) => point?.[0] != null);
    const last = known.at(-1)?.point;
    const text = last ? told(last, exact) : "";
    say(this.told, text);
    this.picture.setAttribute("aria-label", `${this.key}: ${text}`);
    // A single estimate without bounds may be far off, and must not squeeze all others.
    const bounds = known.flatMap(({ point }) => [point[1], point[2]]).filter((one) => one != null);
    const numbers = bounds.length ? bounds : known.map(({ point }) => point[0]);
    const most = Math.max(0, ...numbers) || 1;
    const least = Math.min(0, ...numbers);
    const low = HEIGHT - BOTTOM;
    const x = (at) => LEFT + at * (WIDTH - LEFT - RIGHT);
    const y = (value) => {
      const share = (value - least) / (most - least);
      return low - Math.min(1, Math.max(0, share)) * (low - TOP);
    };
    this.grid.replaceChildren(
      ...[least, most].flatMap((value) => [
        svg("path", { d: `M${LEFT} ${y(value)}H${WIDTH - RIGHT}`, class: value ? "" : "base" }),
        svg("text", { x: LEFT - 5, y: y(value) + 4, "text-anchor": "end" }, short(value)),
      ]),
      ...[0, 0.5, 1].map((at) =>
        svg("text", { x: x(at), y: HEIGHT - 5, "text-anchor": at === 1 ? "end" : "middle" }, `${100 * at} %`),
      ),
    );
    this.marks.replaceChildren(...known.flatMap(({ at, point }) => barOf(x(at), y, point)));
  }
}

// A whisker from the lower to the upper bound, and the estimate on it; hollow if it has no bounds.
function barOf(x, y, [value, lower, upper]) {
  const dot = (kind) => svg("circle", { cx: x, cy: y(value), r: 2.6, class: kind });
  if (lower == null && upper == null) return [dot("free")];
  const ends = [lower, upper].filter((one) => one != null).map(y);
  const from = lower == null ? y(value) : y(lower);
  const to = upper == null ? y(value) : y(upper);
  const caps = ends.map((at) => `M${x - CAP} ${at}h${2 * CAP}`).join("");
  return [svg("path", { d: `M${x} ${from}V${to}${caps}`, class: "whisker" }), dot("estimate")];
}

function told([value, lower, upper], exact) {
  if (exact) return Number.isInteger(value) ? count(value) : short(value);
  if (lower == null || upper == null || !value) return `${short(value)} ± ?`;
  const off = Math.max(upper - value, value - lower) / Math.abs(value);
  return `${short(value)} ± ${(100 * off).toFixed(off < 0.0995 ? 1 : 0)} %`;
}
