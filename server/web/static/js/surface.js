// A canvas as sharp as the screen, drawn again when its size changes.

export class Surface {
  constructor(canvas, draw) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.draw = draw;
    new ResizeObserver(() => this.redraw()).observe(canvas);
  }

  redraw() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    const scale = devicePixelRatio || 1;
    const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
    if (this.canvas.width !== w || this.canvas.height !== h) Object.assign(this.canvas, { width: w, height: h });
    this.pen.setTransform(scale, 0, 0, scale, 0, 0);
    this.pen.clearRect(0, 0, width, height);
    this.draw(this.pen, width, height);
  }
}
