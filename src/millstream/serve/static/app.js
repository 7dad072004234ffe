// The live page: asks for /status about once a second, and hands it to the parts of the page.

import { Answers } from "./answers.js";
import { Chart } from "./charts.js";
import { $, el, say, show } from "./dom.js";
import { ago, clock, count, duration, plural, printable, short } from "./format.js";
import { Graph } from "./graph.js";
import { History } from "./history.js";
import { numberOf, parseFigures } from "./json.js";
import { HotKeys, Ledger } from "./ledger.js";
import { Participants } from "./participants.js";
import { Queues } from "./queues.js";
import { ask, Refused } from "./server.js";
import { Slates } from "./slates.js";
import { summaryOf, Tiles } from "./tiles.js";
import { Tip } from "./tip.js";
import { Views } from "./views.js";

const VISIBLE = 1000; // milliseconds between questions
const HIDDEN = 10_000;
const LEAST_PAUSE = 250;
const LONGEST_PAUSE = 5000;
const RANGES = [1, 5, 15]; // minutes
const STATES = {
  running: ["●", "running"],
  complete: ["✓", "complete"],
  paused: ["❚❚", "paused"], // its intake waits, see the notice
  stopped: ["■", "stopped"], // nothing runs it; it goes on from here when it is started again
  unreachable: ["!", "unreachable"],
};

const tip = new Tip($("tip"));
const graph = new Graph($("graph"), $("legend"), $("graph-note"), tip);
const answers = new Answers($("answers"), tip);
const ledger = new Ledger($("ledger"), $("ledger-note"));
const queues = new Queues($("queues-card"), $("queues"), $("queues-note"));
const hot = new HotKeys($("hot"));
const history = new History();
const slates = new Slates((batch) => batch > history.batch && poll());
const tiles = new Tiles($("tiles"));
const views = new Views();
const throughput = new Chart($("throughput"), tip, {
  value: (point) => point.rows_per_second,
  format: (value) => `${short(value)}/s`,
  lines: (point) => [
    ["throughput", `${short(point.rows_per_second)} rows/s`],
    ...(point.rows === null ? [] : [["rows in this batch", count(point.rows)]]),
  ],
  empty: "Nothing yet: each batch that is committed becomes a point.",
});
const latency = new Chart($("latency"), tip, {
  value: (point) => point.batch_seconds,
  format: duration,
  lines: (point) => [
    ["time of this batch", duration(point.batch_seconds)],
    ...(point.rows === null ? [] : [["rows in this batch", count(point.rows)]]),
  ],
  empty: "Nothing yet: each batch that is committed becomes a point.",
});
const people = new Participants($("people-card"), $("people"), $("people-note"));
const fidelity = new Chart($("fidelity"), tip, {
  value: (point) => 100 * point.fidelity,
  format: (value) => `${short(value)} %`,
  lines: (point) => [["of their input, at least", `${(100 * point.fidelity).toFixed(1)} %`]],
  empty: "Nothing yet: no window has left that tells what it stands on.",
});

let status = null;
let skew = 0; // seconds that the server's clock is ahead of ours
let lost = null; // since when there is no answer
let answered = 0;
let failures = 0;
let timer = 0;
let asking = false;
let asked = -Infinity;
let minutes = 5;
let lastBatch = -1;

const now = () => Date.now() / 1000 + (Math.abs(skew) > 2 ? skew : 0);

// -- asking ----------------------------------------------------------------------------------------

async function poll() {
  if (asking || performance.now() - asked < LEAST_PAUSE) return;
  asking = true;
  asked = performance.now();
  clearTimeout(timer);
  try {
    const answer = await ask("status", { clock: (off) => (skew = off), read: parseFigures });
    const before = status;
    status = answer;
    answered = Date.now() / 1000;
    failures = 0;
    const back = lost !== null;
    lost = null;
    if (!before || back || before.flow !== answer.flow || shapeOf(before) !== shapeOf(answer)) {
      if (before && before.flow !== answer.flow) history.clear();
      await learnUpdaters();
    }
    history.add(answer);
    draw();
    slates.setActive(isActive());
    const batch = numberOf(answer.batch);
    if (batch < lastBatch) slates.forget(); // another checkpoint behind the same address
    else if (batch > lastBatch) slates.committed();
    lastBatch = batch;
  } catch (error) {
    failures += 1;
    lost ??= Date.now() / 1000;
    slates.setActive(false);
    drawLost(error);
  } finally {
    asking = false;
    const pause = document.hidden ? HIDDEN : VISIBLE;
    timer = setTimeout(poll, failures ? Math.min(pause * failures, LONGEST_PAUSE) : pause);
  }
}

const shapeOf = (one) => JSON.stringify(one.graph ?? null);

async function learnUpdaters() {
  const { updaters } = await ask("slates");
  slates.setUpdaters(updaters);
}

const isActive = () => lost === null && !document.hidden && !$("view-slates").hidden;

// -- drawing ---------------------------------------------------------------------------------------

function draw() {
  document.title = `${printable(status.flow)} · Millstream`;
  say($("flow"), printable(status.flow));
  drawState(stateOf());
  const paused = status.paused ? `Paused: ${status.paused}` : "";
  drawNotice("note", [paused, status.problem ?? ""].filter(Boolean).join(" · "));
  document.body.classList.remove("stale");
  if (!$("view-flow").hidden) {
    answers.update(status.answers ?? null);
    graph.update(status, history.rates(status));
    queues.update(status);
    ledger.update(status);
    hot.update(status);
    views.update(status);
  }
  drawTimes();
}

function stateOf() {
  if (status.complete) return "complete";
  if (!status.running) return "stopped";
  return status.paused ? "paused" : "running";
}

function drawNotice(kind, text) {
  $("notice").dataset.kind = kind;
  say($("notice"), printable(text));
  show($("notice"), text !== "");
}

function drawState(name) {
  const [mark, text] = STATES[name];
  $("state").dataset.state = name;
  say($("state-mark"), mark);
  say($("state-text"), text);
}

function drawLost(error) {
  drawState("unreachable");
  document.body.classList.add("stale");
  const denied = error instanceof Refused && (error.status === 401 || error.status === 403);
  const since = `${clock(lost)} UTC`;
  let text = `No answer from the server since ${since}.`;
  if (denied) text = "The server wants a token: open this page once with ?token=… in its address.";
  else if (error instanceof Refused) text = `The server refuses to answer since ${since}: ${error.message}.`;
  const seen = status ? ` What is shown is from ${clock(answered)} UTC.` : "";
  drawNotice("lost", `${text}${seen} Trying again.`);
  slates.changes.stop();
}

// What changes by the clock alone.
function drawTimes() {
  if (!status) return;
  const time = now();
  if (!$("view-flow").hidden) {
    tiles.update(status, time);
    drawCharts(time);
  } else {
    slates.card.tick(Date.now() / 1000);
  }
  say($("summary"), $("view-flow").hidden ? summaryOf(status, time) : "");
  const batch = status.at ? `Batch ${count(numberOf(status.batch))}` : "No batch yet";
  say($("updated"), `${batch}, read ${ago(Date.now() / 1000 - answered)}`);
}

function drawCharts(time) {
  const last = history.points.at(-1);
  const end = last && (!status.running || lost !== null) ? last.at : Math.max(time, last?.at ?? 0);
  const span = minutes * 60;
  const recent = history.points.filter((point) => point.at >= end - span);
  const said = `${plural(recent.length, "batch", "batches")} in the last ${minutes} min.`;
  const rows = recent.map((point) => point.rows_per_second);
  const times = recent.map((point) => point.batch_seconds);
  let most = "";
  let middle = "";
  if (recent.length) {
    most = `most ${short(Math.max(...rows))} rows/s`;
    middle = `median ${duration(median(times))}, most ${duration(Math.max(...times))}`;
  }
  drawFidelity(end, span, said);
  throughput.update(history.points, end, span, `Throughput over time. ${said} ${most}`);
  latency.update(history.points, end, span, `Time per batch over time. ${said} ${middle}`);
  say($("throughput-now"), most);
  say($("latency-now"), middle);
}

// The share that the last windows stood on, and who may be missing in it.
function drawFidelity(end, span, said) {
  const told = history.points.filter((point) => point.fidelity !== null);
  const recent = told.filter((point) => point.at >= end - span).map((point) => point.fidelity);
  const several = people.update(status);
  show($("fidelity-card"), told.length > 0);
  show($("people-pair"), several || told.length > 0);
  const share = (value) => `${(100 * value).toFixed(1)} %`;
  const least = recent.length ? `now ${share(recent.at(-1))}, least ${share(Math.min(...recent))}` : "";
  if (told.length) fidelity.update(told, end, span, `Fidelity over time. ${said} ${least}`);
  say($("fidelity-now"), least);
}

const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];

// -- the address -----------------------------------------------------------------------------------

function route() {
  const [, view, updater, ...rest] = location.hash.split("/");
  const key = rest.length ? decoded(rest.join("/")) : null;
  const onSlates = view === "slates";
  show($("view-slates"), onSlates);
  show($("view-flow"), !onSlates);
  for (const [id, here] of [["to-slates", onSlates], ["to-flow", !onSlates]]) {
    if (here) $(id).setAttribute("aria-current", "page");
    else $(id).removeAttribute("aria-current");
  }
  tip.hide();
  if (onSlates) slates.look({ updater: updater ? decoded(updater) : null, key });
  slates.setActive(status !== null && isActive());
  if (status && lost === null) draw();
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function offerRanges() {
  for (const one of RANGES) {
    const choice = el("input", { type: "radio", name: "range", value: one, checked: one === minutes });
    choice.addEventListener("change", () => {
      minutes = one;
      drawTimes();
    });
    $("range").append(el("label", {}, choice, `${one} min`));
  }
}

offerRanges();
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => {
  slates.setActive(status !== null && isActive());
  if (!document.hidden) poll();
});
document.querySelector("[data-skip]").addEventListener("click", (event) => {
  event.preventDefault();
  $("main").focus();
});
setInterval(() => !document.hidden && drawTimes(), 1000);
route();
poll();
