// The slate browser: an updater, the keys that begin with a text, and one slate that follows its
// value. Its place is in the address: #/slates/<updater>/<key>, each percent-encoded.

import { $, el, flash, keyed, say, show } from "./dom.js";
import { addressOf, count, encoded, plural, printable } from "./format.js";
import { brief, keyText, numberOf, same } from "./json.js";
import { Changes, dropped, Question } from "./server.js";
import { SlateCard } from "./slate.js";

const PAGE = 30;
const TYPING = 200; // milliseconds without a key before the list follows
const LEAST = 1000; // milliseconds between two readings of the list

export class Slates {
  constructor(onBatch) {
    this.card = new SlateCard();
    this.rows = keyed($("list"), (_, one) => this.#row(keyText(one.key)));
    this.listing = new Question();
    this.reading = new Question();
    this.changes = new Changes({
      slate: (data) => this.#changed(data),
      batch: (data) => onBatch(numberOf(data?.batch)),
      reset: () => this.refresh(),
      state: (live) => this.card.setLive(live),
    });
    this.updaters = [];
    this.active = false; // shown, in a visible window, and the server answers
    this.updater = null;
    this.key = null;
    this.prefix = "";
    this.pages = [""]; // the key after which each page begins, up to the one shown
    this.listed = null; // the last answer
    this.timers = { typing: 0, listing: 0 };
    this.lastListing = 0;
    $("updater").addEventListener("change", (event) => (location.hash = addressOf(event.target.value)));
    $("prefix").addEventListener("input", () => this.#typed());
    $("find").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.updater !== null) location.hash = addressOf(this.updater, $("prefix").value);
    });
    $("more").addEventListener("click", () => this.#turn(1));
    $("back").addEventListener("click", () => this.#turn(-1));
    $("list").addEventListener("keydown", (event) => this.#arrow(event));
  }

  // -- what is looked at ---------------------------------------------------------------------------

  setUpdaters(updaters) {
    if (same(updaters, this.updaters)) return;
    this.updaters = updaters;
    const select = $("updater");
    select.replaceChildren(
      ...updaters.map((one) => el("option", { value: one.name }, printable(one.name))),
    );
    select.disabled = updaters.length === 0;
    this.look(this.asked ?? { updater: null, key: null });
  }

  // `asked` is the address: {updater, key}, either may be null.
  look(asked) {
    this.asked = asked;
    const updater = asked.updater ?? this.updaters[0]?.name ?? null;
    if (updater !== this.updater) {
      this.updater = updater;
      this.prefix = "";
      $("prefix").value = "";
      this.pages = [""];
      this.listed = null;
    }
    if (updater !== null) $("updater").value = updater;
    this.key = asked.key;
    this.card.look(updater, asked.key);
    this.#draw();
    this.refresh();
  }

  // Shown or not; hidden pages and lost servers get no questions and hold no connection.
  setActive(active) {
    if (active === this.active) return;
    this.active = active;
    if (active) {
      this.refresh();
    } else {
      this.changes.stop();
      this.listing.drop();
      this.reading.drop();
      clearTimeout(this.timers.listing);
      this.timers.listing = 0;
    }
  }

  // A batch was committed: what no stream tells about is read again.
  committed() {
    if (!this.active || this.updater === null) return;
    if (!this.changes.live || !this.#narrow) this.#listSoon();
    const told = this.changes.live && !/^\d{4}-\d\d-\d\d/.test(this.key); // times are stored in quotes
    if (this.key !== null && !told && !this.reading.open) this.#read();
  }

  // What was read belongs to another checkpoint.
  forget() {
    this.listed = null;
    this.card.forget();
    this.changes.stop();
    this.refresh();
  }

  refresh() {
    if (!this.active || this.updater === null) return;
    this.#list();
    if (this.key !== null) this.#read();
    else this.#follow();
  }

  // -- the list ------------------------------------------------------------------------------------

  #typed() {
    clearTimeout(this.timers.typing);
    this.timers.typing = setTimeout(() => {
      this.prefix = $("prefix").value;
      this.pages = [""];
      if (this.active && this.updater !== null) this.#list();
    }, TYPING);
  }

  #turn(by) {
    if (by > 0 && this.listed?.next != null) this.pages.push(this.listed.next);
    if (by < 0 && this.pages.length > 1) this.pages.pop();
    this.#list();
  }

  #listSoon() {
    if (this.timers.listing) return;
    const wait = Math.max(0, this.lastListing + LEAST - performance.now());
    this.timers.listing = setTimeout(() => this.#list(), wait);
  }

  async #list() {
    clearTimeout(this.timers.listing);
    this.timers.listing = 0;
    this.lastListing = performance.now();
    const asked = new URLSearchParams({ prefix: this.prefix, limit: PAGE });
    if (this.pages.at(-1)) asked.set("after", this.pages.at(-1));
    try {
      this.listed = await this.listing.ask(`slates/${encoded(this.updater)}?${asked}`);
      this.failure = "";
    } catch (error) {
      if (dropped(error)) return;
      this.listed = null;
      this.failure = error.message;
    }
    this.#draw();
    this.#follow();
  }

  #draw() {
    const slates = this.listed?.slates ?? [];
    this.rows(slates.map((one) => [`${typeof one.key} ${keyText(one.key)}`, one]));
    const stored = this.updaters.find((one) => one.name === this.updater);
    const page = this.pages.length;
    const all = page === 1 && this.listed && this.listed.next == null;
    let note = "";
    if (all) note = plural(slates.length, "key");
    else if (stored?.slates != null && !this.prefix) note = `at most ${plural(numberOf(stored.slates), "key")}`;
    say($("list-note"), note);
    say($("page-number"), page > 1 || this.listed?.next != null ? `Page ${count(page)}` : "");
    $("back").disabled = page === 1;
    $("more").disabled = this.listed?.next == null;
    let empty = "";
    if (this.updater === null) empty = "This flow has no updater, so it keeps no slates.";
    else if (this.failure) empty = `The list could not be read: ${this.failure}`;
    else if (this.listed && !slates.length) {
      empty = this.prefix ? "No key begins like this." : "There are no slates yet.";
      if (this.listed.next != null) empty = "None so far: there are too many keys to look at in one go.";
    }
    say($("list-empty"), empty);
    show($("list-empty"), empty !== "");
    for (const part of [$("find"), $("slate-title").closest("section"), $("more").parentElement]) {
      show(part, this.updater !== null);
    }
  }

  #row(key) {
    const name = el("span", { class: key ? "key" : "key odd", dir: "auto" }, printable(key) || "(empty key)");
    const value = el("span", { class: "brief", dir: "auto" });
    const link = el("a", {}, name, value);
    const updater = this.updater;
    link.href = addressOf(updater, key);
    let last;
    return {
      element: el("li", {}, link),
      update: (one) => {
        if (updater === this.updater && key === this.key) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
        if (last !== undefined && same(last, one.slate)) return;
        say(value, printable(brief(one.slate, 120)));
        if (last !== undefined) flash(value);
        last = one.slate;
      },
    };
  }

  #arrow(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const links = [...$("list").querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    if (!by || at < 0) return;
    event.preventDefault();
    links[at + by]?.focus();
  }

  // -- one slate -----------------------------------------------------------------------------------

  async #read() {
    const { updater, key } = this;
    let found;
    try {
      found = await this.reading.ask(pathOf(updater, key));
      if (found.slates) {
        const one = found.slates.find((one) => keyText(one.key) === key);
        found = one ? { ...one, batch: found.batch } : null;
      }
    } catch (error) {
      if (dropped(error)) return;
      if (error.status !== 404) {
        this.card.fail(`The slate could not be read: ${error.message}`);
        return;
      }
      found = null;
    }
    const batch = numberOf(found?.batch);
    this.card.show(found && { key: found.key, value: found.slate, ts: found.ts, batch });
    this.#follow();
  }

  // -- changes -------------------------------------------------------------------------------------

  // All matching keys are on the page, so their changes are few enough to be sent.
  get #narrow() {
    return this.listed !== null && this.pages.length === 1 && this.listed.next == null;
  }

  #follow() {
    if (!this.active || this.updater === null) return;
    const all = this.#narrow && (this.key === null || this.key.startsWith(this.prefix));
    if (!all && this.key === null) {
      this.changes.stop(); // a long list is read again after each batch instead
      return;
    }
    const asked = new URLSearchParams({ updater: this.updater, prefix: all ? this.prefix : this.key });
    const known = [this.listed?.batch, this.card.slate?.batch].filter((batch) => batch != null);
    this.changes.follow(`events?${asked}`, known.length ? Math.min(...known.map(numberOf)) : null);
  }

  #changed(data) {
    if (data?.updater !== this.updater) return;
    const batch = numberOf(data.batch);
    const shown = this.card.slate;
    const ours = shown ? same(data.key, shown.key) : keyText(data.key) === this.key;
    if (ours && shown !== undefined && batch >= (shown?.batch ?? 0)) {
      const { key, slate: value, ts } = data;
      this.card.show(value === null ? null : { key, value, ts, batch });
    }
    if (this.listed && batch >= numberOf(this.listed.batch)) {
      const at = this.listed.slates.findIndex((one) => same(one.key, data.key));
      if (at >= 0 && data.slate !== null) {
        this.listed.slates[at] = { ...this.listed.slates[at], slate: data.slate, ts: data.ts };
        this.#draw();
      } else if (this.#narrow) {
        this.#listSoon();
      }
    }
  }
}

// "." and ".." cannot be a part of a path that a browser asks for; the list knows them too.
function pathOf(updater, key) {
  const base = `slates/${encoded(updater)}`;
  if (key !== "" && key !== "." && key !== "..") return `${base}/${encoded(key)}`;
  return `${base}?${new URLSearchParams({ prefix: key, limit: 1 })}`;
}
