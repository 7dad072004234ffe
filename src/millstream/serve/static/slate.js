// One slate: its key, how fresh it is, and its value as a tree.

import { $, say, show } from "./dom.js";
import { ago, isoMoment, printable } from "./format.js";
import { isBranch, same } from "./json.js";
import { Tree } from "./tree.js";

const CHOOSE = "Choose a key to see its slate change as batches are committed.";
const NONE = "There is no slate for this key. If one comes, it appears here.";

export class SlateCard {
  constructor() {
    this.tree = new Tree($("slate"));
    this.live = false;
    this.updater = null;
    this.key = null;
    this.forget();
  }

  look(updater, key) {
    if (updater === this.updater && key === this.key) return;
    this.updater = updater;
    this.key = key;
    this.forget();
  }

  forget() {
    this.slate = undefined; // {key, value, ts, batch, changed}; null: there is none
    this.#draw("Reading…");
  }

  // An older state than the one that is shown is not shown.
  show(slate) {
    const before = this.slate;
    if (slate && before && slate.batch < before.batch) return;
    if (slate && before) {
      slate.changed = same(before.value, slate.value) ? before.changed : Date.now() / 1000;
    }
    this.slate = slate;
    const bare = slate && isBranch(slate.value) && !Object.keys(slate.value).length;
    this.#draw(slate === null ? NONE : bare ? "The slate is empty." : "");
  }

  fail(text) {
    this.slate = undefined;
    this.#draw(text);
  }

  setLive(live) {
    this.live = live;
    const shown = live && this.key !== null;
    $("slate-live").classList.toggle("good", shown);
    say($("slate-live"), this.key === null ? "" : shown ? "● live" : "○ as last read");
  }

  tick(now) {
    const parts = this.slate ? [`last event ${isoMoment(this.slate.ts)}`] : [];
    if (this.slate?.changed) parts.push(`changed ${ago(now - this.slate.changed)}`);
    say($("slate-note"), parts.join(" · "));
  }

  #draw(remark) {
    if (this.slate) this.tree.update(this.slate.value);
    else this.tree.clear();
    show($("slate"), Boolean(this.slate));
    say($("slate-key"), this.key === null ? "" : printable(this.key) || "(empty key)");
    const text = this.key === null ? CHOOSE : remark;
    say($("slate-empty"), text);
    show($("slate-empty"), text !== "");
    this.tick(Date.now() / 1000);
    this.setLive(this.live);
  }
}
