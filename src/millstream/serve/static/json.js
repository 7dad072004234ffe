// JSON that stays exact. A number that JavaScript would write in another way (beyond 2^53, 1.0,
// 1e400) is kept as it was written.

export class Written {
  constructor(text) {
    this.text = text;
  }
}

export function parse(text) {
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" && context && context.source !== String(value)
      ? new Written(context.source)
      : value,
  );
}

// The same for figures: only whole numbers that are too large are kept as they were written.
export function parseFigures(text) {
  return JSON.parse(text, (_, value, context) =>
    Number.isInteger(value) && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source)
      ? new Written(context.source)
      : value,
  );
}

export function numberOf(value) {
  return value instanceof Written ? Number(value.text) : typeof value === "number" ? value : 0;
}

// Counts are exact, however large.
export function countOf(value) {
  const text = value instanceof Written ? value.text : String(value ?? 0);
  return /^-?\d+$/.test(text) ? BigInt(text) : BigInt(Math.round(Number(text)) || 0);
}

export function isBranch(value) {
  return value !== null && typeof value === "object" && !(value instanceof Written);
}

export function same(a, b) {
  if (a === b) return true;
  if (a instanceof Written || b instanceof Written) {
    return a instanceof Written && b instanceof Written && a.text === b.text;
  }
  if (!isBranch(a) || !isBranch(b) || Array.isArray(a) !== Array.isArray(b)) return false;
  const names = Object.keys(a);
  return (
    names.length === Object.keys(b).length &&
    names.every((name) => Object.hasOwn(b, name) && same(a[name], b[name]))
  );
}

// One line of JSON, cut after about `room` characters; large values are not walked to their end.
export function brief(value, room) {
  if (value instanceof Written) return value.text;
  if (typeof value === "string") {
    return JSON.stringify(value.length > room ? `${value.slice(0, room)}…` : value);
  }
  if (!isBranch(value)) return String(value);
  const list = Array.isArray(value);
  let text = "";
  for (const [name, inner] of Object.entries(value)) {
    if (text) text += ", ";
    if (text.length >= room) {
      text += "…";
      break;
    }
    text += list ? "" : `${/^[\w-]{1,40}$/.test(name) ? name : brief(name, 40)}: `;
    text += brief(inner, Math.max(0, room - text.length));
  }
  return list ? `[${text}]` : `{${text}}`;
}

// A key is told as itself or, if it is no text, as its JSON.
export function keyText(key) {
  if (typeof key === "string") return key;
  if (key instanceof Written) return key.text;
  return isBranch(key) ? `[${Object.values(key).map(jsonOf).join(",")}]` : String(key);
}

const jsonOf = (value) => (typeof value === "string" ? JSON.stringify(value) : keyText(value));
