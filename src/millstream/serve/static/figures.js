// What is known of one step.

import { bytes, duration, secondsOf, short } from "./format.js";
import { numberOf } from "./json.js";

// Everything that is known of a step, from the sources, the operators and the ledger.
export function figuresOf(status, name) {
  const source = status.sources?.find((one) => one.name === name);
  const operator = status.operators?.find((one) => one.name === name);
  const account = Object.hasOwn(status.ledger ?? {}, name) ? status.ledger[name] : null;
  const records = source?.rows ?? operator?.offered ?? account?.offered;
  const watermark = source?.watermark ?? operator?.watermark ?? null;
  const behind = secondsOf(status.watermark) - secondsOf(watermark);
  const live = status.lag_seconds != null;
  const heldBy = source?.held_by;
  const silent = (source?.participants ?? []).find((one) => one.name === heldBy)?.silent_seconds;
  return {
    records: records == null ? null : numberOf(records),
    watermark,
    lag: live && Number.isFinite(behind) ? numberOf(status.lag_seconds) + behind : null,
    toRead: numberOf(source?.pending_bytes),
    overloaded: (source ?? operator)?.overload?.since != null,
    heldBy: heldBy == null ? "" : [].concat(heldBy).join(", "),
    silent: silent == null ? 0 : numberOf(silent),
    fidelity: operator?.fidelity == null ? null : numberOf(operator.fidelity),
    participants: operator?.participants ?? "",
    closedBy: operator?.closed_by ?? "",
    pending: numberOf(operator?.pending),
    carried: numberOf(operator?.carried),
    slates: operator?.slates == null ? null : numberOf(operator.slates),
    strategy: operator?.strategy ?? "",
    dead: numberOf(operator?.dead ?? account?.dead),
    late: numberOf(operator?.late ?? account?.late),
    diverted: numberOf(operator?.diverted ?? account?.diverted),
    dropped: numberOf(operator?.dropped ?? account?.dropped),
    results: numberOf(operator?.results ?? account?.results),
    failed: numberOf(operator?.failed ?? account?.failed),
  };
}

// The one figure that says most about what a step waits for.
export function behindOf(figures) {
  const few = (value) => short(value).replace(/(\.\d)\d/, "$1"); // there is little room
  if (figures.overloaded) return "overloaded";
  if (figures.carried) return `${few(figures.carried)} carried`;
  if (figures.pending) return `${few(figures.pending)} waiting`;
  if (figures.toRead) return `${bytes(figures.toRead)} left`;
  if (figures.lag !== null) return `lag ${duration(figures.lag)}`;
  return "";
}
