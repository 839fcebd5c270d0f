// A box that is scrolled to its end stays there while it grows; one that was scrolled up stays where it is.

const NEAR = 40; // pixels

export class Pinned {
  #pinned = true;

  constructor(box, button) {
    this.box = box;
    this.button = button;
    box.addEventListener("scroll", () => this.#look(), { passive: true });
    button.addEventListener("click", () => this.toEnd());
    new ResizeObserver(() => this.follow()).observe(box);
  }

  #look() {
    const { scrollHeight, scrollTop, clientHeight } = this.box;
    this.#pinned = scrollHeight - scrollTop - clientHeight <= NEAR;
    this.button.hidden = this.#pinned;
  }

  /** The content grew. */
  follow() {
    if (this.#pinned) this.box.scrollTop = this.box.scrollHeight;
    else this.#look();
  }

  toEnd() {
    this.#pinned = true;
    this.box.scrollTop = this.box.scrollHeight;
    this.button.hidden = true;
  }
}
