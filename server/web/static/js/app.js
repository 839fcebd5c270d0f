// The page: two views, the bar above them.

import { Chat } from "./chat.js";
import { Dashboard } from "./dashboard.js";
import { byId } from "./dom.js";
import { showFacts } from "./facts.js";
import * as panels from "./panels.js";
import * as settings from "./settings.js";

const VIEWS = ["chat", "dashboard"];

settings.start();
const dashboard = new Dashboard();
new Chat(showFacts);
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", route);
panels.start();
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
  if (named === "question") byId(named).focus(); // the browser looks for it before this view is shown
  dashboard.watch(view === "dashboard" && document.visibilityState === "visible");
}
