// The KV blocks as a map. A cell is one block, or, of very many, several: then it is filled by their shares.

import { Surface } from "./surface.js";

const KINDS = ["shared", "used", "cached"];

export class BlockMap {
  #blocks = null;

  constructor(canvas, palette) {
    this.palette = palette;
    this.surface = new Surface(canvas, (...drawn) => this.#draw(...drawn));
  }

  show(blocks) {
    this.#blocks = blocks;
    this.surface.redraw();
  }

  #draw(pen, width, height) {
    const blocks = this.#blocks;
    if (!blocks) return;
    const cells = blocks.used.length;
    const { size, columns } = fit(cells, width, height);
    const gap = size >= 5 ? 1 : size >= 3 ? 0.5 : 0;
    for (let cell = 0; cell < cells; cell += 1) {
      const x = (cell % columns) * size;
      const y = Math.floor(cell / columns) * size;
      this.#cell(pen, blocks, cell, x, y, size - gap);
    }
  }

  #cell(pen, blocks, cell, x, y, size) {
    const whole = Math.min(blocks.perCell, blocks.count - cell * blocks.perCell, 255);
    let from = 0;
    for (const kind of KINDS) {
      const share = blocks[kind][cell] / whole;
      if (!share) continue;
      pen.fillStyle = this.palette[kind];
      pen.fillRect(x, y + size * (1 - from - share), size, size * share);
      from += share;
    }
    if (from >= 1) return;
    pen.fillStyle = this.palette.free;
    pen.fillRect(x, y, size, size * (1 - from));
  }
}

/** The largest squares with which `cells` of them fill a box: {size, columns}. */
export function fit(cells, width, height) {
  let columns = Math.max(1, Math.ceil(Math.sqrt((cells * width) / height)));
  while (Math.ceil(cells / columns) * (width / columns) > height) columns += 1;
  return { size: width / columns, columns };
}
