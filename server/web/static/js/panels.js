// The chat's sides: beside the thread where there is room, over it where there is none.

import { byId } from "./dom.js";

const SIDES = ["list", "settings"];
const room = matchMedia("(min-width: 64rem)");

export function start() {
  for (const name of SIDES) byId(`${name}-toggle`).addEventListener("click", () => toggle(name));
  room.addEventListener("change", sayToggles);
  sayToggles();
}

/** Who opens a side that lies over the thread goes into it: what it hides would come first. */
function toggle(name) {
  const { classList } = byId("chat");
  const shown = classList.toggle(room.matches ? `${name}-closed` : `${name}-open`);
  if (!room.matches) for (const other of SIDES) if (other !== name) classList.remove(`${other}-open`);
  sayToggles();
  if (shown && !room.matches) byId(`side-${name}`).querySelector("button, textarea").focus();
}

/** Take away the side that lies over the thread, if one does; whoever was in it is at its button again. */
export function uncover() {
  const { classList } = byId("chat");
  const open = room.matches ? undefined : SIDES.find((name) => classList.contains(`${name}-open`));
  if (!open) return false;
  if (byId(`side-${open}`).contains(document.activeElement)) byId(`${open}-toggle`).focus();
  classList.remove(`${open}-open`);
  sayToggles();
  return true;
}

function sayToggles() {
  const { classList } = byId("chat");
  for (const name of SIDES) {
    const open = room.matches ? !classList.contains(`${name}-closed`) : classList.contains(`${name}-open`);
    byId(`${name}-toggle`).setAttribute("aria-expanded", String(open));
  }
}
