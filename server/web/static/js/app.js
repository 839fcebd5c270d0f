// The page: two views, the bar above them.

import { Chat } from "./chat.js";
import { Dashboard } from "./dashboard.js";
import { byId } from "./dom.js";
import { showFacts } from "./facts.js";
import * as settings from "./settings.js";

const VIEWS = ["chat", "dashboard"];

settings.start();
const dashboard = new Dashboard();
new Chat(showFacts);
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", route);
for (const name of ["list", "settings"]) byId(`${name}-toggle`).addEventListener("click", () => toggle(name));
matchMedia("(min-width: 64rem)").addEventListener("change", sayToggles);
sayToggles();
route();
showFacts();

/** The view that the address names. A dashboard that nobody sees is not fed. */
function route() {
  const named = location.hash.slice(1);
  const view = VIEWS.includes(named) ? named : "chat";
  for (const name of VIEWS) {
    byId(name).hidden = name !== view;
    if (name === view) byId(`tab-${name}`).setAttribute("aria-current", "page");
    else byId(`tab-${name}`).removeAttribute("aria-current");
  }
  document.body.dataset.view = view;
  dashboard.watch(view === "dashboard" && document.visibilityState === "visible");
}

/** Side panels: shown beside the thread where there is room, over it where there is none. */
function toggle(name) {
  const chat = byId("chat");
  const wide = matchMedia("(min-width: 64rem)").matches;
  chat.classList.toggle(wide ? `${name}-closed` : `${name}-open`);
  for (const other of ["list", "settings"]) if (other !== name && !wide) chat.classList.remove(`${other}-open`);
  sayToggles();
}

function sayToggles() {
  const { classList } = byId("chat");
  const wide = matchMedia("(min-width: 64rem)").matches;
  for (const name of ["list", "settings"]) {
    const open = wide ? !classList.contains(`${name}-closed`) : classList.contains(`${name}-open`);
    byId(`${name}-toggle`).setAttribute("aria-expanded", String(open));
  }
}
