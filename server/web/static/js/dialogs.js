// Questions asked in the middle of something: a key, a confirmation.

import { byId } from "./dom.js";

let asking = null;

/** The key that was typed, or "" where it was refused. Asked once, however many ask at the same time. */
export function askKey() {
  asking ??= ask(byId("key-dialog"), () => byId("key-input").value.trim()).finally(() => (asking = null));
  return asking;
}

/** Whether the person agrees. */
export function confirmRemoval(title) {
  byId("remove-title").textContent = title;
  return ask(byId("remove-dialog"), () => true);
}

function ask(dialog, answer) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes" ? answer() : ""), { once: true });
  });
}
