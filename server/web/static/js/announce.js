// What a screen reader says while an answer streams: whole paragraphs, as each is done, never single words.

import { byId, h } from "./dom.js";

const KEPT = 20;
const LONGEST = 600; // characters: of more, the beginning

export function announce(text) {
  const region = byId("announcements");
  const words = text.trim().replace(/\s+/g, " ");
  if (!words) return;
  region.append(h("p", {}, words.length > LONGEST ? `${words.slice(0, LONGEST)}…` : words));
  while (region.childElementCount > KEPT) region.firstChild.remove();
}
