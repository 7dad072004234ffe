// The slate browser: an updater, the keys that begin with a text, and one slate that follows its
// value. Its place is in the address: #/slates/<updater>/<key>, each percent-encoded.

import { $, el, flash, keyed, say, show } from "./dom.js";
import { ago, count, isoMoment, plural, printable } from "./format.js";
import { brief, keyText, numberOf, same } from "./json.js";
import { Changes, dropped, Question } from "./server.js";
import { Tree } from "./tree.js";

const PAGE = 30;
const TYPING = 200; // milliseconds without a key before the list follows
const LEAST = 1000; // milliseconds between two readings of the list

export const addressOf = (updater, key) =>
  `#/slates/${encodeURIComponent(updater)}${key === null ? "" : `/${encodeURIComponent(key)}`}`;

export class Slates {
  constructor(onBatch) {
    this.tree = new Tree($("slate"));
    this.rows = keyed($("list"), (_, one) => this.#row(keyText(one.key)));
    this.listing = new Question();
    this.reading = new Question();
    this.changes = new Changes({
      slate: (data) => this.#changed(data),
      batch: (data) => onBatch(numberOf(data?.batch)),
      reset: () => this.refresh(),
      state: () => this.#explain(),
    });
    this.updaters = [];
    this.active = false; // shown, in a visible window, and the server answers
    this.updater = null;
    this.key = null;
    this.prefix = "";
    this.pages = [""]; // the key after which each page begins, up to the one shown
    this.listed = null; // the last answer
    this.slate = undefined; // {key, value, ts, batch, changed}, null: there is none, undefined: not read yet
    this.timers = { typing: 0, listing: 0 };
    this.lastListing = 0;
    $("updater").addEventListener("change", (event) => (location.hash = addressOf(event.target.value, null)));
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
      this.#show(undefined);
    }
    if (updater !== null) $("updater").value = updater;
    if (asked.key !== this.key || asked.updater !== this.keyOf) {
      this.key = asked.key;
      this.keyOf = asked.updater;
      this.tree.clear();
      this.#show(undefined);
    }
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

  refresh() {
    if (!this.active || this.updater === null) return;
    this.#list();
    if (this.key !== null) this.#read();
    else this.#follow();
  }

  tick(now) {
    const parts = this.slate ? [`last event ${isoMoment(this.slate.ts)}`] : [];
    if (this.slate?.changed) parts.push(`changed ${ago(now - this.slate.changed)}`);
    say($("slate-note"), parts.join(" · "));
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
      this.listed = await this.listing.ask(`slates/${encodeURIComponent(this.updater)}?${asked}`);
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
    else if (stored?.slates != null && !this.prefix) note = `about ${plural(numberOf(stored.slates), "key")}`;
    say($("list-note"), note);
    say($("page-number"), page > 1 || this.listed?.next != null ? `Page ${count(page)}` : "");
    $("back").disabled = page === 1;
    $("more").disabled = this.listed?.next == null;
    let empty = "";
    if (this.updater === null) empty = "This flow has no updater, so it keeps no slates.";
    else if (this.failure) empty = `The list could not be read: ${this.failure}`;
    else if (this.listed && !slates.length) {
      empty = this.prefix ? "No key begins like this." : "There are no slates yet.";
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
        this.#show(undefined, `The slate could not be read: ${error.message}`);
        return;
      }
      found = null;
    }
    const batch = numberOf(found?.batch);
    this.#show(found && { key: found.key, value: found.slate, ts: found.ts, batch });
    this.#follow();
  }

  // undefined: not known yet; null: there is none.
  #show(slate, failure) {
    if (slate && this.slate && slate.batch < this.slate.batch) return;
    const before = this.slate;
    this.slate = slate;
    if (slate && before) {
      slate.changed = same(before.value, slate.value) ? before.changed : Date.now() / 1000;
    }
    if (slate) this.tree.update(slate.value);
    else this.tree.clear();
    show($("slate"), Boolean(slate));
    say($("slate-key"), this.key === null ? "" : printable(this.key) || "(empty key)");
    let empty = "";
    if (this.key === null) empty = this.updater === null ? "" : "Choose a key to see its slate change as batches are committed.";
    else if (failure) empty = failure;
    else if (slate === null) empty = "There is no slate for this key. If one comes, it appears here.";
    else if (!slate) empty = "Reading…";
    else if (typeof slate.value === "object" && slate.value !== null && !Object.keys(slate.value).length) {
      empty = "The slate is empty.";
    }
    say($("slate-empty"), empty);
    show($("slate-empty"), empty !== "");
    this.tick(Date.now() / 1000);
    this.#explain();
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
    const known = [this.listed?.batch, this.slate?.batch].filter((batch) => batch != null).map(numberOf);
    this.changes.follow(`events?${asked}`, known.length ? Math.min(...known) : null);
  }

  #changed(data) {
    if (data?.updater !== this.updater) return;
    const batch = numberOf(data.batch);
    const ours = this.slate ? same(data.key, this.slate.key) : keyText(data.key) === this.key;
    if (ours && this.slate !== undefined && batch >= (this.slate?.batch ?? 0)) {
      const { key, slate: value, ts } = data;
      this.#show(value === null ? null : { key, value, ts, batch });
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

  #explain() {
    const live = this.changes.live && this.key !== null;
    $("slate-live").classList.toggle("good", live);
    say($("slate-live"), this.key === null ? "" : live ? "● live" : "○ as last read");
  }
}

// "." and ".." cannot be a part of a path that a browser asks for; the list knows them too.
function pathOf(updater, key) {
  const base = `slates/${encodeURIComponent(updater)}`;
  if (key !== "" && key !== "." && key !== "..") return `${base}/${encodeURIComponent(key)}`;
  return `${base}?${new URLSearchParams({ prefix: key, limit: 1 })}`;
}
