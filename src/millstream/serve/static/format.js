// Numbers, times and texts as people read them.

const grouped = new Intl.NumberFormat("en-US");
const digits = [0, 1, 2].map(
  (places) => new Intl.NumberFormat("en-US", { maximumFractionDigits: places }),
);

export const count = (value) => grouped.format(value);

// 987, 12.3k, 4.56M
export function short(value) {
  const size = Math.abs(value);
  if (!Number.isFinite(value)) return "–";
  if (size < 1000) return digits[size < 10 && size % 1 ? 2 : size < 100 && size % 1 ? 1 : 0].format(value);
  const power = Math.min(Math.floor(Math.log10(size) / 3), 6);
  const scaled = value / 1000 ** power;
  const rounded = Math.abs(scaled) < 9.995 ? 2 : Math.abs(scaled) < 99.95 ? 1 : 0;
  if (Math.abs(scaled) >= 999.5 && power < 6) return `1${" kMGTPE"[power + 1]}`;
  return `${digits[rounded].format(scaled)}${" kMGTPE"[power]}`;
}

// A unit is 1,024 of the one before, as in settings: memory="2GB" is shown as 2 GB.
export function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB", "PB"];
  let [size, unit] = [value, 0];
  for (; size >= 999.5 && unit < units.length - 1; unit += 1) size /= 1024;
  return unit ? `${digits[size < 9.995 ? 2 : size < 99.95 ? 1 : 0].format(size)} ${units[unit]}` : `${value} B`;
}

// 350 ms, 1.25 s, 4 min 10 s, 3 h 5 min, 2 d 4 h
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds === 0) return "0 s";
  if (seconds < 0.9995) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 59.5) return `${digits[seconds < 9.995 ? 2 : 1].format(seconds)} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const whole = Math.round(seconds);
  const first = units.findIndex(([, size]) => whole >= size);
  const [name, size] = units[first];
  const rest = units[first + 1] && Math.floor((whole % size) / units[first + 1][1]);
  const more = rest ? ` ${rest} ${units[first + 1][0]}` : "";
  return `${grouped.format(Math.floor(whole / size))} ${name}${more}`;
}

// How long ago, in whole seconds.
export function ago(seconds) {
  if (seconds < 1.5) return "just now";
  return `${duration(seconds < 60 ? Math.round(seconds) : seconds)} ago`;
}

export function moment(seconds) {
  const date = new Date(seconds * 1000);
  return Number.isNaN(date.getTime()) ? "–" : `${day(date)} ${clock(seconds)}`;
}

const day = (date) => date.toISOString().replace(/T.*$/, "");

export function clock(seconds, withSeconds = true) {
  return new Date(seconds * 1000).toISOString().slice(-13, withSeconds ? -5 : -8);
}

// An ISO 8601 time as "2026-01-05 09:31:20", with fractions if it has any.
export function isoMoment(text) {
  if (typeof text !== "string") return "–";
  const parts = /^(.+?)[T ](\d\d:\d\d:\d\d)(?:\.(\d*?)0*)?(?:Z|[+-]00:?00)?$/.exec(text);
  return parts ? `${parts[1]} ${parts[2]}${parts[3] ? `.${parts[3]}` : ""}` : printable(text);
}

export const secondsOf = (iso) => (typeof iso === "string" ? Date.parse(iso) / 1000 : NaN);

// Text with everything that is invisible, or that turns text around, written out.
export function printable(text) {
  return text.replace(
    /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]/gu,
    (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`,
  );
}

// A text as one part of a path or address; halves of characters, which have no code, are replaced.
export const encoded = (text) => encodeURIComponent(text.toWellFormed?.() ?? text);

// Where a slate, or those of an updater, are shown on this page.
export function addressOf(updater, key = null) {
  return `#/slates/${encoded(updater)}${key === null ? "" : `/${encoded(key)}`}`;
}

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n == 1 ? one : many}`;
