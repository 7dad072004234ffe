// The rows of a view as a small table, read again after each batch. A row keeps its place when it
// changes, so cells are compared with what stood there before, and those that changed are marked.

import { $, el, flash, keyed, say, show } from "./dom.js";
import { count, encoded, plural, printable } from "./format.js";
import { brief, same } from "./json.js";
import { dropped, Question } from "./server.js";

const ROWS = 20;
const ROOM = 60; // characters of a cell

const told = (value) =>
  typeof value === "string" && value.length <= ROOM ? value : brief(value, ROOM);

export class Views {
  constructor() {
    Object.assign(this, { names: [], view: null, batch: null, shown: null });
    this.listing = new Question();
    this.reading = new Question();
    this.options = keyed($("views-choice"), (name) => ({
      element: el("option", { value: name }, printable(name)),
      update() {},
    }));
    $("views-choice").addEventListener("change", (event) => {
      this.view = event.target.value;
      this.shown = null;
      this.read();
    });
  }

  // A flow without views is not asked for them; one with views once per batch.
  update(status) {
    const kept = (status.operators ?? []).some((one) => one.kind === "kept");
    show($("views"), kept);
    if (!kept || same(status.batch, this.batch)) return;
    this.batch = status.batch;
    this.#look();
  }

  async #look() {
    try {
      const answer = await this.listing.ask("views");
      this.names = answer.views.map((one) => one.name);
      this.options(this.names.map((name) => [name, name]));
      show($("views-choice"), this.names.length > 1);
      if (!this.names.includes(this.view)) this.view = this.names[0] ?? null;
      await this.read();
    } catch (error) {
      if (!dropped(error)) say($("views-note"), String(error.message));
    }
  }

  async read() {
    if (this.view === null) return;
    try {
      this.#show(await this.reading.ask(`views/${encoded(this.view)}?limit=${ROWS}`));
    } catch (error) {
      if (!dropped(error)) say($("views-note"), String(error.message));
    }
  }

  #show(page) {
    const names = [...new Set(page.rows.flatMap((row) => Object.keys(row)))];
    const before = this.shown;
    const cell = (row, i, name) => {
      const made = el("td", {}, printable(told(row[name] ?? null)));
      if (before?.rows[i] !== undefined && !same(before.rows[i][name], row[name])) flash(made);
      return made;
    };
    const rows = page.rows.map((row, i) => el("tr", {}, ...names.map((name) => cell(row, i, name))));
    const head = names.map((name) => el("th", { scope: "col" }, printable(name)));
    $("views-rows").replaceChildren(
      el("table", { class: "books" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows)),
    );
    const more = page.next === null ? "" : ", the first of more";
    say($("views-note"), `${printable(page.view)}: ${plural(page.rows.length, "row")}${more}, batch ${count(Number(page.batch))}`);
    this.shown = page;
  }
}
