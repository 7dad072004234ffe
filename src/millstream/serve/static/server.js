// Talking to the server: one question at a time per subject, and changes as they are committed.

import { parse } from "./json.js";

const PATIENCE = 10_000; // milliseconds until an answer is given up
const PAUSE = 3_000; // before a closed stream is opened again

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

// GET a JSON document; `clock` gets the difference between the server's clock and ours.
export async function ask(path, { signal, clock, read = parse } = {}) {
  const limit = AbortSignal.timeout(PATIENCE);
  const answer = await fetch(path, {
    cache: "no-store",
    headers: { Accept: "application/json" },
    signal: signal ? AbortSignal.any([signal, limit]) : limit,
  });
  const text = await answer.text();
  let body = null;
  try {
    body = read(text);
  } catch {
    throw new Refused(answer.status, "the answer is not JSON");
  }
  if (!answer.ok) throw new Refused(answer.status, String(body?.error ?? answer.statusText));
  const date = Date.parse(answer.headers.get("date") ?? "");
  if (clock && !Number.isNaN(date)) clock((date - Date.now()) / 1000);
  return body;
}

// Asks again and again for one subject, never twice at once, and forgets answers that came too late.
export class Question {
  #controller = null;

  async ask(path) {
    this.drop();
    const controller = (this.#controller = new AbortController());
    try {
      return await ask(path, { signal: controller.signal });
    } finally {
      if (this.#controller === controller) this.#controller = null;
    }
  }

  get open() {
    return this.#controller !== null;
  }

  drop() {
    this.#controller?.abort();
    this.#controller = null;
  }
}

export const dropped = (error) => error?.name === "AbortError";

// Server-sent changes. The browser reconnects by itself after a lost connection, but not after a
// refusal (the server restarts behind a proxy, or has too many listeners): then this does.
export class Changes {
  #source = null;
  #timer = 0;
  #path = "";

  constructor(handlers) {
    this.handlers = handlers; // {slate, batch, reset, state}
    this.live = false;
  }

  // `since` is only used when the stream is opened; the same path again changes nothing.
  follow(path, since) {
    if (path === this.#path) return;
    this.stop();
    this.#path = path;
    if (path) this.#connect(since);
  }

  stop() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
    this.#path = "";
    this.#say(false);
  }

  #connect(since) {
    const source = new EventSource(since == null ? this.#path : `${this.#path}&since=${since}`);
    this.#source = source;
    const on = (name, handler) =>
      source.addEventListener(name, (event) => {
        if (source === this.#source && event.data !== undefined) handler(parse(event.data || "null"));
      });
    on("slate", (data) => this.handlers.slate(data));
    on("batch", (data) => this.handlers.batch(data));
    on("reset", () => this.handlers.reset());
    source.addEventListener("open", () => source === this.#source && this.#say(true));
    source.addEventListener("error", () => {
      if (source !== this.#source) return;
      this.#say(false);
      if (source.readyState !== EventSource.CLOSED) return;
      this.#timer = setTimeout(() => {
        this.#connect(null);
        this.handlers.reset(); // what was missed meanwhile is read afresh
      }, PAUSE);
    });
  }

  #say(live) {
    if (live === this.live) return;
    this.live = live;
    this.handlers.state(live);
  }
}
