// Tokens per second over the last two minutes: made as an area, read as a line on a scale of its own.

import { rate } from "./format.js";
import { Surface } from "./surface.js";

const SPAN = 120; // seconds
const TOP = 14; // pixels kept for the scale's word

export class Sparkline {
  #rates = [];

  constructor(canvas, palette) {
    this.palette = palette;
    this.surface = new Surface(canvas, (...drawn) => this.#draw(...drawn));
  }

  show(rates) {
    this.#rates = rates;
    this.surface.redraw();
  }

  #draw(pen, width, height) {
    const { palette } = this;
    pen.fillStyle = palette.line;
    pen.fillRect(0, height - 1, width, 1);
    if (this.#rates.length < 2) return;
    const most = (name) => Math.max(1, ...this.#rates.map((one) => one[name]));
    this.#line(pen, "read", most("read"), width, height);
    pen.strokeStyle = palette.prefill;
    pen.lineWidth = 1;
    pen.stroke();
    const top = most("made");
    const [first, last] = this.#line(pen, "made", top, width, height);
    pen.strokeStyle = palette.accent;
    pen.lineWidth = 1.75;
    pen.stroke();
    pen.lineTo(last, height);
    pen.lineTo(first, height);
    pen.globalAlpha = 0.14;
    pen.fillStyle = palette.accent;
    pen.fill();
    pen.globalAlpha = 1;
    pen.fillStyle = palette.muted;
    pen.font = "11px ui-sans-serif, system-ui, sans-serif";
    pen.fillText(`${rate(top)} tokens/s`, 2, 11);
  }

  #line(pen, name, most, width, height) {
    const end = this.#rates.at(-1).time;
    const x = (time) => width - ((end - time) / SPAN) * width;
    pen.beginPath();
    for (const one of this.#rates) pen.lineTo(x(one.time), height - 1 - (one[name] / most) * (height - TOP - 2));
    return [x(this.#rates[0].time), x(end)];
  }
}
