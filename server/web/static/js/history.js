// What the feed has told, put together: the last minute of steps, who was in them, and how fast it went. No elements here.

export const SPAN = 60; // seconds of steps kept
const MOST_STEPS = 30000;
const RATES = 240; // snapshots with a rate: two minutes
const SHARE_SPAN = 5; // seconds over which a user's tokens are counted
const GAP = 0.25; // seconds a lane stays empty before the next sequence takes it

export class History {
  steps = []; // {number, start, seconds, decodes: [order], chunks: [[order, position, tokens]]}
  sequences = new Map(); // order -> {order, request, user, prompt, cached, output, ended, lane, first, last}
  users = new Map(); // name -> {name, own, number, running, waiting}
  rates = []; // {time, made, read}: tokens per second
  time = 0; // of the engine, seconds
  stats = null;
  blocks = null;
  #before = null;
  #lanes = []; // lane -> when it is free again

  /** One snapshot. */
  take(snapshot) {
    this.state = snapshot.state;
    this.latency = snapshot.latency;
    this.objective = snapshot.objective;
    if (!snapshot.stats) return;
    if (this.stats && snapshot.stats.steps < this.stats.steps) this.#startOver(); // a new engine
    this.time = snapshot.time;
    this.stats = snapshot.stats;
    this.blocks = decodeBlocks(snapshot.blocks);
    const names = this.#takeUsers(snapshot.users);
    this.#takeSequences(snapshot.sequences, names);
    this.#takeSteps(snapshot.steps);
    this.#takeRate();
    this.#forget();
  }

  #startOver() {
    this.steps = [];
    this.rates = [];
    this.sequences.clear();
    this.#lanes = [];
    this.#before = null;
  }

  #takeUsers(told) {
    for (const user of this.users.values()) user.running = user.waiting = 0;
    return told.map(({ name, ...rest }) => {
      if (!this.users.has(name)) this.users.set(name, { name, number: this.users.size });
      const user = Object.assign(this.users.get(name), rest);
      return user;
    });
  }

  #takeSequences(told, users) {
    for (const [order, request, place, prompt, cached, output, ended] of told) {
      const known = this.sequences.get(order) ?? { order, lane: null, first: null, last: null };
      this.sequences.set(order, Object.assign(known, { request, user: users[place], prompt, cached, output, ended }));
    }
  }

  #takeSteps(told) {
    let decodes = [];
    for (const [number, start, seconds, some, chunks] of told) {
      decodes = some ?? decodes;
      this.steps.push({ number, start, seconds, decodes, chunks });
      for (const order of decodes) this.#seen(order, start, seconds);
      for (const [order] of chunks) this.#seen(order, start, seconds);
    }
  }

  /** A sequence has the lane that it took first, until it ends; then another may have it. */
  #seen(order, start, seconds) {
    const one = this.sequences.get(order);
    if (!one) return;
    if (one.lane === null) {
      const free = this.#lanes.findIndex((until) => until + GAP < start);
      one.lane = free < 0 ? this.#lanes.length : free;
      one.first = start;
    }
    one.last = start + seconds;
    this.#lanes[one.lane] = Math.max(one.ended ? 0 : one.last + 1, one.last);
  }

  #takeRate() {
    const now = { time: this.time, made: this.stats.tokens_generated, read: this.stats.prompt_tokens_computed };
    const before = this.#before;
    this.#before = now;
    if (!before || now.time <= before.time) return;
    const per = (name) => Math.max(0, (now[name] - before[name]) / (now.time - before.time));
    this.rates.push({ time: now.time, made: per("made"), read: per("read") });
    if (this.rates.length > RATES) this.rates.shift();
  }

  #forget() {
    const since = this.time - SPAN;
    let old = Math.max(0, this.steps.length - MOST_STEPS);
    while (old < this.steps.length && this.steps[old].start + this.steps[old].seconds < since) old += 1;
    if (old) this.steps.splice(0, old);
    const oldest = this.steps[0]?.start ?? this.time;
    for (const [order, one] of this.sequences) {
      if (one.ended && (one.last ?? 0) < oldest) this.sequences.delete(order);
    }
  }

  /** Steps that reach into the time after `since`. */
  stepsSince(since) {
    let low = 0;
    let high = this.steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle].start + this.steps[middle].seconds < since) low = middle + 1;
      else high = middle;
    }
    return this.steps.slice(low);
  }

  /** Tokens per second that each user was given of late: Map of user -> {made, read}. */
  shares() {
    const given = new Map();
    const since = this.time - SHARE_SPAN;
    const add = (order, name, count) => {
      const user = this.sequences.get(order)?.user;
      if (!user) return;
      if (!given.has(user)) given.set(user, { made: 0, read: 0 });
      given.get(user)[name] += count / SHARE_SPAN;
    };
    for (const step of this.stepsSince(since)) {
      for (const order of step.decodes) add(order, "made", 1);
      for (const [order, , tokens] of step.chunks) add(order, "read", tokens);
    }
    return given;
  }
}

function decodeBlocks({ num_blocks: count, per_cell: perCell, ...planes }) {
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return { count, perCell, used: bytes(planes.used), shared: bytes(planes.shared), cached: bytes(planes.cached) };
}
