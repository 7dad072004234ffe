// The figures at the top.

import { el, keyed, say } from "./dom.js";
import { ago, count, duration, isoMoment, printable, short } from "./format.js";
import { numberOf } from "./json.js";

const NOTHING = "–";
const few = (value) => (value < 1e8 ? count(value) : short(value));

export class Tiles {
  constructor(list) {
    this.tiles = keyed(list, makeTile);
  }

  update(status, time) {
    this.tiles([
      ["Last batch", lastBatch(status, time)],
      ...speeds(status),
      ["Watermark", watermark(status)],
      ["Lag", lag(status)],
      ["Dead letters", dead(status)],
      ["Late", late(status)],
    ]);
  }
}

function lastBatch(status, time) {
  if (!status.at) return { value: "none" };
  return { value: count(numberOf(status.batch)), note: ago(Math.max(0, time - status.at)) };
}

// Rates are those of the last batch; once nothing runs they say nothing.
function speeds(status) {
  const { rows_per_second: rows, batch_seconds: seconds, batches_per_second: batches } = status.rates ?? {};
  const known = status.running && seconds > 0;
  return [
    ["Throughput", known ? { value: `${short(rows)}/s`, note: "rows" } : { value: NOTHING }],
    [
      "Time per batch",
      known ? { value: duration(seconds), note: `${short(batches)} batches/s` } : { value: NOTHING },
    ],
  ];
}

function watermark(status) {
  if (!status.watermark) return { value: NOTHING };
  const [day, time] = isoMoment(status.watermark).split(" ");
  return { value: time?.slice(0, 8) ?? NOTHING, note: day };
}

function lag(status) {
  // An operator that the scheduler keeps waiting is behind its sources, whoever these wait for.
  const waiting = (status.queues ?? []).filter((one) => one.held).map((one) => one.name);
  const held = waiting.length
    ? waiting
    : (status.sources ?? []).flatMap((one) => one.held_by ?? []);
  return {
    value: status.lag_seconds == null ? NOTHING : duration(status.lag_seconds),
    note: held.length ? `held back by ${printable(held.join(", "))}` : "",
  };
}

function dead(status) {
  const number = numberOf(status.dead);
  const failed = numberOf(status.failed);
  const note = failed ? `${few(failed)} failed results` : number ? "kept with reasons" : "";
  return { value: few(number), note, warn: number > 0 };
}

// Records of the future are no less a matter of time, and of somebody's clock.
function late(status) {
  const ahead = numberOf(status.future ?? 0);
  return {
    value: few(numberOf(status.late)),
    note: ahead ? `${few(ahead)} in the future` : "",
    warn: ahead > 0,
  };
}

// The same in one line, for where there are no tiles.
export function summaryOf(status, time) {
  if (!status.at) return "no batch yet";
  const parts = [`batch ${count(numberOf(status.batch))}, ${ago(Math.max(0, time - status.at))}`];
  if (status.watermark) parts.push(`watermark ${isoMoment(status.watermark).slice(0, 19)}`);
  if (status.lag_seconds != null) parts.push(`lag ${duration(status.lag_seconds)}`);
  return parts.join(" · ");
}

function makeTile(name) {
  const value = el("dd", { class: "value" });
  const note = el("dd", { class: "note" });
  const element = el("div", { "data-tile": name }, el("dt", {}, name), value, note);
  return {
    element,
    update(tile) {
      say(value, tile.value);
      say(note, tile.note ?? "");
      element.classList.toggle("warn", Boolean(tile.warn));
    },
  };
}
