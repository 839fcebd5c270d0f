// The style sheet's colours, for canvases: read again when the system turns light or dark.

const NAMES = ["ink", "muted", "line", "panel", "accent", "free", "cached", "used", "shared", "prefill"];
export const USER_COLOURS = 8;

export class Palette {
  constructor(onChange) {
    this.#read();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (this.#read(), onChange()));
  }

  #read() {
    const probe = document.body.appendChild(document.createElement("span"));
    const colour = (name) => {
      probe.style.color = `var(--${name})`;
      return getComputedStyle(probe).color;
    };
    for (const name of NAMES) this[name] = colour(name);
    this.users = Array.from({ length: USER_COLOURS }, (_, at) => colour(`user-${at}`));
    probe.remove();
  }

  user = (number) => this.users[number % USER_COLOURS];
}
