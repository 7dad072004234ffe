// What waits before every source, operator and sink: how much, since when, and who is held back.

import { el, keyed, say, show } from "./dom.js";
import { bytes, count, isoMoment, plural, printable } from "./format.js";
import { numberOf } from "./json.js";

const HEADS = ["queue", "of a", "rows", "bytes", "at its head", ""];
const NUMBERS = ["rows", "bytes"];

export class Queues {
  constructor(section, container, note) {
    this.section = section;
    this.note = note;
    this.body = el("tbody");
    const titled = (text) =>
      el("th", { scope: "col", class: NUMBERS.includes(text) ? "number" : "" }, text);
    const head = el("tr", {}, ...HEADS.map(titled));
    container.append(el("table", { class: "books people" }, el("thead", {}, head), this.body));
    this.rows = keyed(this.body, () => this.#row());
  }

  update(status) {
    const queues = status.queues ?? [];
    show(this.section, queues.length > 0);
    this.rows(queues.map((one) => [`${one.kind} ${one.name}`, one]));
    const held = queues.filter((one) => one.held);
    const total = queues.reduce((sum, one) => sum + numberOf(one.bytes), 0);
    const { used, budget } = status.memory ?? {};
    const memory = used ? `; ${bytes(numberOf(used))} of ${bytes(numberOf(budget))} memory` : "";
    const waits = (total ? `${bytes(total)} wait` : "nothing waits") + memory;
    say(this.note, held.length ? `${waits}; ${plural(held.length, "operator")} held back` : waits);
  }

  #row() {
    const name = el("th", { scope: "row" });
    const [kind, head, held] = [el("td"), el("td"), el("td")];
    const [rows, size] = [el("td", { class: "number" }), el("td", { class: "number" })];
    return {
      element: el("tr", {}, name, kind, rows, size, head, held),
      update(one) {
        say(name, printable(one.name));
        say(kind, printable(one.kind));
        say(rows, count(numberOf(one.rows)));
        say(size, numberOf(one.bytes) ? bytes(numberOf(one.bytes)) : "–");
        say(head, one.head ? isoMoment(one.head) : "–");
        say(held, one.held ? "held back" : "");
        held.classList.toggle("warn", Boolean(one.held));
      },
    };
  }
}
