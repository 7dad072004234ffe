// What has been seen so far: batches for the charts, counts per step for their rates. Both bounded,
// so that a page left open for days stays as small as it was after an hour.

import { numberOf } from "./json.js";
import { fidelityOf } from "./participants.js";

const MOST = 3000; // batches
const LONGEST = 20 * 60; // seconds
const SAMPLES = 40; // commits per step
const WINDOW = 15; // seconds over which rates are taken

export class History {
  constructor() {
    this.clear();
  }

  clear() {
    this.points = [];
    this.batch = -1;
    this.arrived = 0; // when the last new batch was seen, on this page's clock
    this.counts = []; // {at, rows: Map(step -> count)}
  }

  add(status) {
    const batch = numberOf(status.batch);
    if (batch < this.batch) this.clear(); // another checkpoint behind the same address
    const fresh = batch > this.batch;
    const told = status.history ?? [];
    if (told.length) {
      const last = this.points.at(-1)?.at ?? -Infinity;
      for (const one of told) if (numberOf(one.at) > last) this.#push(one);
    } else if (fresh && this.batch >= 0) {
      const fidelity = fidelityOf(status);
      this.#push({ at: status.at, ...status.rates, rows: this.#read(status), fidelity });
    }
    if (fresh) {
      this.counts.push({ at: numberOf(status.at), rows: countsOf(status) });
      if (this.counts.length > SAMPLES) this.counts.shift();
      this.batch = batch;
      this.arrived = performance.now();
    }
  }

  #push(one) {
    const number = (value) => numberOf(value ?? 0);
    this.points.push({
      at: number(one.at),
      rows_per_second: number(one.rows_per_second),
      batch_seconds: number(one.batch_seconds),
      rows: one.rows == null ? null : number(one.rows),
      fidelity: one.fidelity == null ? null : number(one.fidelity),
    });
    const oldest = this.points.at(-1).at - LONGEST;
    let out = Math.max(0, this.points.length - MOST);
    while (this.points[out].at < oldest) out += 1;
    if (out) this.points.splice(0, out);
  }

  #read(status) {
    const before = this.counts.at(-1)?.rows;
    if (!before) return null;
    const total = (rows) =>
      (status.sources ?? []).reduce((sum, source) => sum + (rows.get(source.name) ?? 0), 0);
    return Math.max(0, total(countsOf(status)) - total(before));
  }

  // Step -> records a second, over the last commits; nothing if there is nothing to compare with.
  rates(status) {
    const rates = new Map();
    const last = this.counts.at(-1);
    if (!status.running || this.counts.length < 2) return rates;
    const first =
      this.counts.find((one) => one.at >= last.at - WINDOW && one !== last) ?? this.counts.at(-2);
    const took = last.at - first.at;
    if (took <= 0) return rates;
    const silent = (performance.now() - this.arrived) / 1000;
    const quiet = silent > Math.max(5, 3 * numberOf(status.rates?.batch_seconds));
    for (const [step, n] of last.rows) {
      const before = first.rows.get(step);
      if (before !== undefined) rates.set(step, quiet ? 0 : Math.max(0, n - before) / took);
    }
    return rates;
  }
}

function countsOf(status) {
  const rows = new Map();
  for (const [step, account] of Object.entries(status.ledger ?? {})) {
    rows.set(step, numberOf(account.offered));
  }
  for (const one of status.operators ?? []) {
    if (one.offered != null) rows.set(one.name, numberOf(one.offered));
  }
  for (const one of status.sources ?? []) {
    if (one.rows != null) rows.set(one.name, numberOf(one.rows));
  }
  return rows;
}
