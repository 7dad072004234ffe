// Where every record went, as a table that is checked here once more, and what steps made of them;
// and the keys with most events.

import { el, keyed, say, show } from "./dom.js";
import { addressOf, count, plural, printable } from "./format.js";
import { countOf, keyText, numberOf } from "./json.js";

const WAYS = ["aggregated", "dead", "late", "diverted", "dropped"];
const GIVEN = ["results", "failed"]; // beside the sum: rows a step gave, results it could not give
const LOST = ["dead", "dropped", "failed"];

export class Ledger {
  constructor(container, note) {
    this.note = note;
    this.empty = el("p", { class: "empty" }, "No batch has been committed yet.");
    const sum = WAYS.flatMap((way, i) => (i ? ["+", way] : [way]));
    const heads = ["step", "offered", "=", ...sum, "balance", ...GIVEN];
    const head = el(
      "tr",
      {},
      ...heads.map((text) =>
        /^\w/.test(text)
          ? el("th", { scope: "col", class: text === "step" ? "" : "number" }, text)
          : el("td", { class: "sign", "aria-hidden": "true" }, text),
      ),
    );
    this.body = el("tbody");
    this.table = el("table", { class: "books" }, el("thead", {}, head), this.body);
    container.append(this.table, this.empty);
    this.rows = keyed(this.body, (step) => this.#row(step));
  }

  update(status) {
    const order = new Map((status.graph?.nodes ?? []).map((node, i) => [node.name, i]));
    const place = ([step]) => order.get(step) ?? order.size;
    const accounts = Object.entries(status.ledger ?? {}).sort((a, b) => place(a) - place(b));
    show(this.table, accounts.length > 0);
    show(this.empty, accounts.length === 0);
    this.rows(accounts);
    const wrong = accounts.filter(([, account]) => difference(account) !== 0n).length;
    const lost = accounts.reduce((sum, [, account]) => sum + countOf(account.failed), 0n);
    this.note.classList.toggle("bad", wrong > 0 || lost > 0n);
    this.note.classList.toggle("good", wrong === 0 && lost === 0n && accounts.length > 0);
    const failed = lost ? `; ⚠ ${plural(lost, "result")} failed` : "";
    if (!accounts.length) say(this.note, "");
    else if (wrong) say(this.note, `✗ ${plural(wrong, "step does", "steps do")} not balance${failed}`);
    else say(this.note, `✓ all ${plural(accounts.length, "step")} balance${failed}`);
  }

  #row(step) {
    const ways = ["offered", ...WAYS, ...GIVEN];
    const cells = new Map(ways.map((way) => [way, el("td", { class: "number" })]));
    const mark = el("span");
    const words = el("span", { class: "words" });
    const verdict = el("td", { class: "number verdict" }, mark, " ", words);
    const sign = (text) => el("td", { class: "sign", "aria-hidden": "true" }, text);
    const parts = WAYS.flatMap((way, i) => [sign(i ? "+" : "="), cells.get(way)]);
    const name = el("th", { scope: "row" }, printable(step));
    const given = GIVEN.map((way) => cells.get(way));
    const element = el(
      "tr",
      { "data-step": step },
      name,
      cells.get("offered"),
      ...parts,
      verdict,
      ...given,
    );
    return {
      element,
      update(account) {
        for (const [way, cell] of cells) {
          const value = countOf(account[way]);
          say(cell, count(value));
          cell.classList.toggle("zero", value === 0n);
          cell.classList.toggle("warn", LOST.includes(way) && value > 0n);
        }
        const off = difference(account);
        verdict.classList.toggle("good", off === 0n);
        verdict.classList.toggle("bad", off !== 0n);
        say(mark, off === 0n ? "✓" : "✗");
        say(words, off === 0n ? "balances" : `off by ${count(off)}`);
      },
    };
  }
}

function difference(account) {
  return WAYS.reduce((left, way) => left - countOf(account[way]), countOf(account.offered));
}

export class HotKeys {
  constructor(container) {
    this.empty = el("p", { class: "empty" }, "No updater has had events yet.");
    this.list = el("div", { class: "updaters" });
    container.append(this.list, this.empty);
    this.updaters = keyed(this.list, (name) => updaterBlock(name));
  }

  update(status) {
    const hot = Object.entries(status.hot ?? {}).filter(([, one]) => one?.keys?.length);
    show(this.empty, hot.length === 0);
    this.updaters(hot);
  }
}

function updaterBlock(updater) {
  const note = el("span", { class: "note" });
  const list = el("ol", { class: "bars" });
  const rows = keyed(list, (key) => hotRow(updater, key));
  return {
    element: el("section", {}, el("h3", {}, printable(updater), " ", note), list),
    update(one) {
      say(note, plural(countOf(one.events), "event"));
      rows(one.keys.slice(0, 10).map((row) => [keyText(row.key), row]));
    },
  };
}

function hotRow(updater, key) {
  const bar = el("span", { class: "bar", "aria-hidden": "true" });
  const share = el("span", { class: "share" });
  const number = el("span", { class: "note" });
  const to = addressOf(updater, key);
  const link = el("a", { href: to, class: "key", dir: "auto" }, printable(key) || "(empty)");
  return {
    element: el("li", {}, link, number, share, bar),
    update(row) {
      const part = Math.min(1, Math.max(0, numberOf(row.share)));
      const text = `${(100 * part).toFixed(part < 0.0995 ? 1 : 0)} %`;
      say(share, text);
      say(number, count(countOf(row.count)));
      bar.style.setProperty("--share", part);
    },
  };
}
