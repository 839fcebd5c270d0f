// The dashboard's feed, for as long as it is watched: opened again when it ends.

import { call, storeKey } from "./api.js";
import { askKey } from "./dialogs.js";
import { events } from "./sse.js";

const AGAIN = 2000; // milliseconds

export class Feed {
  #controller = null;

  /** `onSnapshot(object)`; `onTrouble(sentence)`, empty when it is over. */
  constructor(onSnapshot, onTrouble) {
    this.onSnapshot = onSnapshot;
    this.onTrouble = onTrouble;
  }

  get running() {
    return this.#controller !== null;
  }

  start() {
    if (this.#controller) return;
    this.#controller = new AbortController();
    this.#run(this.#controller.signal);
  }

  stop() {
    this.#controller?.abort();
    this.#controller = null;
  }

  async #run(signal) {
    while (!signal.aborted) {
      try {
        const response = await call("dashboard/events", { signal });
        this.onTrouble("");
        for await (const data of events(response)) this.onSnapshot(JSON.parse(data));
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 401) {
          if (await this.#key()) continue;
          this.onTrouble("There is nothing to show without a key. Who opens the dashboard again is asked for it again.");
          return; // and not every two seconds
        }
        this.onTrouble(error.status ? error.message : "The server can't be reached; trying again.");
      }
      await new Promise((resolve) => setTimeout(resolve, AGAIN));
    }
  }

  async #key() {
    const key = await askKey();
    if (key) storeKey(key);
    return Boolean(key);
  }
}
