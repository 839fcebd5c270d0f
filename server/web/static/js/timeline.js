// The steps of the last seconds. Across: time, each step as wide as it took. Down: a lane per sequence, coloured by user.
// Full bars are chunks of prompt, thin ones decodes: every step carries some of both.

import { plural, seconds, whole } from "./format.js";
import { Surface } from "./surface.js";

const AXIS = 18; // pixels at the bottom
const LANE = { least: 3, most: 26 };
const TICKS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20];

export class Timeline {
  #end = 0;
  #steps = [];
  #height = LANE.most;
  #hovered = null;

  constructor(canvas, palette, history, tell) {
    this.palette = palette;
    this.history = history;
    this.tell = tell; // (text or "", x, y)
    this.span = 5;
    this.surface = new Surface(canvas, (...drawn) => this.#draw(...drawn));
    canvas.addEventListener("pointermove", (event) => this.#hover(event.offsetX, event.offsetY));
    canvas.addEventListener("pointerleave", () => this.#leave());
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("blur", () => this.#leave());
  }

  show() {
    this.#end = this.history.steps.length ? lastEnd(this.history.steps) : this.history.time;
    this.#end = Math.max(this.#end, this.history.time - 0.5);
    this.#steps = this.history.stepsSince(this.#end - this.span);
    this.surface.redraw();
  }

  get steps() {
    return this.#steps;
  }

  #x = (time, width) => width - ((this.#end - time) / this.span) * width;

  #draw(pen, width, height) {
    const lanes = 1 + this.#drawnSequences().reduce((most, one) => Math.max(most, one.lane), 0);
    this.#height = Math.min(LANE.most, Math.max(LANE.least, (height - AXIS) / lanes));
    this.#axis(pen, width, height);
    if (this.#hovered) this.#mark(pen, this.#hovered, width, height);
    const runs = new Map(); // lane -> the decodes not yet drawn, as one bar: {from, to, user}
    for (const step of this.#steps) this.#step(pen, step, width, runs);
    for (const [lane, run] of runs) this.#bar(pen, lane, run);
  }

  #drawnSequences() {
    const since = this.#end - this.span;
    return [...this.history.sequences.values()].filter((one) => one.lane !== null && one.last >= since);
  }

  #step(pen, step, width, runs) {
    const from = this.#x(step.start, width);
    const to = this.#x(step.start + step.seconds, width);
    const apart = to - from >= 3 ? 1 : 0; // wide steps are told apart by a gap
    for (const order of step.decodes) {
      const one = this.history.sequences.get(order);
      if (!one || one.lane === null) continue;
      const run = runs.get(one.lane);
      if (run && !apart && from - run.to < 1.5 && run.user === one.user) {
        run.to = to;
        continue;
      }
      if (run) this.#bar(pen, one.lane, run);
      runs.set(one.lane, { from, to: to - apart, user: one.user });
    }
    for (const [order] of step.chunks) {
      const one = this.history.sequences.get(order);
      if (one && one.lane !== null) this.#block(pen, one, from, Math.max(1.5, to - from - apart));
    }
  }

  #bar(pen, lane, { from, to, user }) {
    const thick = Math.max(1, this.#height * 0.38);
    pen.fillStyle = this.palette.user(user.number);
    pen.globalAlpha = 0.75;
    pen.fillRect(from, lane * this.#height + (this.#height - thick) / 2, Math.max(0.75, to - from), thick);
    pen.globalAlpha = 1;
  }

  #block(pen, one, x, width) {
    pen.fillStyle = this.palette.user(one.user.number);
    pen.fillRect(x, one.lane * this.#height + 0.5, width, Math.max(2, this.#height - 1.5));
  }

  #axis(pen, width, height) {
    const tick = TICKS.find((one) => (one / this.span) * width >= 70) ?? TICKS.at(-1);
    pen.font = "11px ui-sans-serif, system-ui, sans-serif";
    pen.textAlign = "right";
    for (let back = 0; back <= this.span; back += tick) {
      const x = width - (back / this.span) * width;
      pen.fillStyle = this.palette.line;
      pen.fillRect(x - 1, 0, 1, height - AXIS);
      pen.fillStyle = this.palette.muted;
      if (x > 34) pen.fillText(back ? `−${Number(back.toFixed(1))} s` : "now", x - 3, height - 4);
    }
  }

  #mark(pen, step, width, height) {
    const from = this.#x(step.start, width);
    pen.fillStyle = this.palette.muted;
    pen.globalAlpha = 0.18;
    pen.fillRect(from, 0, Math.max(2, this.#x(step.start + step.seconds, width) - from), height - AXIS);
    pen.globalAlpha = 1;
  }

  #hover(x, y) {
    const { clientWidth: width } = this.surface.canvas;
    const time = this.#end - (1 - x / width) * this.span;
    const step = this.#steps.find((one) => one.start <= time && time <= one.start + one.seconds) ?? null;
    const lane = Math.floor(y / this.#height);
    this.#choose(step);
    this.tell(step ? this.describe(step, lane) : "", x, y);
  }

  /** Arrow keys go from step to step; Home and End to the first and last; Escape takes the words away. */
  #key(event) {
    if (event.key === "Escape") this.#leave();
    const at = this.#hovered ? this.#steps.indexOf(this.#hovered) : this.#steps.length;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: this.#steps.length - 1 }[event.key];
    if (to === undefined || !this.#steps.length) return;
    event.preventDefault();
    const step = this.#steps[Math.min(this.#steps.length - 1, Math.max(0, to))];
    this.#choose(step);
    this.tell(this.describe(step, null), this.#x(step.start, this.surface.canvas.clientWidth), 8);
  }

  #leave() {
    this.#choose(null);
    this.tell("");
  }

  #choose(step) {
    if (step === this.#hovered) return;
    this.#hovered = step;
    this.surface.redraw();
  }

  /** A step in words; with a lane, of the sequence there too. */
  describe(step, lane) {
    const read = step.chunks.reduce((sum, [, , tokens]) => sum + tokens, 0);
    const parts = [plural(step.decodes.length, "decode")];
    if (read) parts.push(`${plural(read, "prompt token")} in ${plural(step.chunks.length, "chunk")}`);
    const text = `Step ${whole(step.number)}, ${seconds(step.seconds)}: ${parts.join(" and ")}`;
    const one = lane === null ? null : this.#inLane(step, lane);
    return one ? `${text}\n${one}` : text;
  }

  #inLane(step, lane) {
    const here = (order) => this.history.sequences.get(order)?.lane === lane;
    const chunk = step.chunks.find(([order]) => here(order));
    const order = chunk ? chunk[0] : step.decodes.find(here);
    if (order === undefined) return "";
    const one = this.history.sequences.get(order);
    const what = chunk ? `reads prompt tokens ${whole(chunk[1])} to ${whole(chunk[1] + chunk[2])} of ${whole(one.prompt)}` : "decodes one token";
    const cached = one.cached ? `; ${whole(one.cached)} came from the cache` : "";
    return `${one.user.name}${one.request ? `, request ${one.request}` : ""}: ${what}${cached}`;
  }
}

const lastEnd = (steps) => steps.at(-1).start + steps.at(-1).seconds;
