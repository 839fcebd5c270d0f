// One answer on its way: asked for, waited for where the server is busy or loads, streamed, stopped.

import { call, health, ServerError, storeKey } from "./api.js";
import { Reply } from "./reply.js";
import { events } from "./sse.js";

const BUSY_TRIES = 5;
const BUSY_WAIT = 5; // seconds, where the server names none
const LOADING_WAIT = 2;

export class Run {
  #controller = new AbortController();
  reply = null;
  error = null;
  stopped = false;

  /** `hooks`: changed(run), waiting(text, seconds) while nothing can be had yet, askKey() -> key or "". */
  constructor(body, hooks) {
    this.body = body;
    this.hooks = hooks;
  }

  /** The server notices the closed connection and ends the request within a step. */
  stop() {
    this.stopped = true;
    this.#controller.abort();
  }

  /** Until the answer's end, whatever the end; `error` says what went wrong. */
  async finish() {
    try {
      await this.#read(await this.#response());
      if (this.reply.finish === null) this.error = new ServerError(0, "The answer was cut off: the connection ended.");
    } catch (error) {
      if (!this.stopped) this.error = error;
    }
    this.reply ??= new Reply(performance.now());
  }

  async #response() {
    for (let busy = 0; ; ) {
      try {
        this.reply = new Reply(performance.now());
        return await call("v1/chat/completions", { body: this.body, signal: this.#controller.signal });
      } catch (error) {
        if (error.status === 429) busy += 1;
        if (!(await this.#mayTryAgain(error, busy))) throw error;
      }
    }
  }

  async #mayTryAgain(error, busy) {
    if (error.status === 401) return this.#askKey();
    if (error.status === 429 && busy <= BUSY_TRIES) {
      await this.#wait(error.retryAfter ?? BUSY_WAIT, (left) => `${error.message} Trying again in ${left} s.`);
      return true;
    }
    if (error.status === 503 && error.retryAfter !== null) {
      const { loaded_bytes: done, total_bytes: all } = await health();
      const progress = all ? ` (${Math.floor((100 * done) / all)} %)` : "";
      await this.#wait(Math.min(error.retryAfter, LOADING_WAIT), () => `${error.message.replace(/; try again soon\.$/, "")}${progress}. Your question is sent as soon as it can be.`);
      return true;
    }
    return false;
  }

  async #askKey() {
    const key = await this.hooks.askKey();
    if (key) storeKey(key);
    return Boolean(key);
  }

  async #wait(seconds, text) {
    for (let left = Math.ceil(seconds); left > 0; left -= 1) {
      this.hooks.waiting(text(left));
      await this.#second();
    }
    this.hooks.waiting("");
  }

  /** A second, or less where the run is stopped: then it throws. */
  #second() {
    const { signal } = this.#controller;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(resolve, 1000);
      signal.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
    });
  }

  async #read(response) {
    for await (const data of events(response)) {
      if (data === "[DONE]") break;
      this.reply.take(JSON.parse(data), performance.now());
      this.hooks.changed(this);
    }
  }
}
