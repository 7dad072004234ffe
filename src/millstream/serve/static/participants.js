// Who brings records, how far each has come, and who is silent; and how much of their input the
// windows stood on that left.

import { el, keyed, say, show } from "./dom.js";
import { count, duration, moment, printable } from "./format.js";
import { numberOf } from "./json.js";

const SILENT = 5; // seconds after which somebody counts as silent here

// The lowest of the shares that the last windows of all steps stood on; null if none tells.
export function fidelityOf(status) {
  const shares = (status.operators ?? [])
    .filter((one) => one.fidelity != null)
    .map((one) => numberOf(one.fidelity));
  return shares.length ? Math.min(...shares) : null;
}

export class Participants {
  constructor(section, container, note) {
    this.section = section;
    this.note = note;
    this.body = el("tbody");
    const heads = ["", "source", "has come to", "silent for"];
    const head = el("tr", {}, ...heads.map((text) => el("th", { scope: "col" }, text)));
    container.append(el("table", { class: "books people" }, el("thead", {}, head), this.body));
    this.rows = keyed(this.body, () => this.#row());
  }

  // Gives whether there is anybody to tell of: a source that is one as a whole is no news.
  update(status) {
    const all = (status.sources ?? []).flatMap((source) =>
      (source.participants ?? []).map((one) => ({ ...one, source: source.name })),
    );
    const several = all.length > (status.sources ?? []).length;
    show(this.section, several);
    if (!several) return false;
    const silence = (one) => numberOf(one.silent_seconds);
    all.sort((a, b) => silence(b) - silence(a) || (a.name < b.name ? -1 : 1));
    this.rows(all.map((one) => [`${one.source} ${one.name}`, one]));
    const silent = all.filter((one) => silence(one) > SILENT);
    this.note.classList.toggle("bad", silent.length > 0);
    this.note.classList.toggle("good", silent.length === 0);
    const first = silent.slice(0, 3).map((one) => printable(one.name));
    const more = silent.length > 3 ? ` and ${count(silent.length - 3)} more` : "";
    say(
      this.note,
      silent.length ? `✗ silent: ${first.join(", ")}${more}` : `✓ all ${count(all.length)} are there`,
    );
    return true;
  }

  #row() {
    const name = el("th", { scope: "row" });
    const [source, at, silent] = [el("td"), el("td"), el("td", { class: "number" })];
    return {
      element: el("tr", {}, name, source, at, silent),
      update(one) {
        const seconds = numberOf(one.silent_seconds);
        say(name, printable(one.name));
        say(source, printable(one.source));
        say(at, one.at ? moment(Date.parse(one.at) / 1000) : "nothing yet");
        say(silent, seconds > SILENT ? duration(seconds) : "–");
        silent.classList.toggle("warn", seconds > SILENT);
      },
    };
  }
}
