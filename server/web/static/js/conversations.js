// Conversations in this browser's storage: one entry each, so that two tabs with two conversations never meet.

const PREFIX = "bireme.chat.";
const TITLE_CHARS = 60;

const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(36).padStart(2, "0")).join("");

export const fresh = () => ({ id: newId(), title: "", at: Date.now(), revision: "", messages: [] });

/** All of them, the latest first: {id, title, at}. */
export function list() {
  const found = [];
  for (let at = 0; at < localStorage.length; at += 1) {
    const key = localStorage.key(at);
    const one = key.startsWith(PREFIX) ? read(key.slice(PREFIX.length)) : null;
    if (one) found.push({ id: one.id, title: one.title, at: one.at });
  }
  return found.sort((a, b) => b.at - a.at);
}

/** One conversation, or null: also where what is stored isn't one. */
export function read(id) {
  try {
    const one = JSON.parse(localStorage.getItem(PREFIX + id));
    return one && one.id === id && Array.isArray(one.messages) ? one : null;
  } catch {
    return null;
  }
}

/**
 * Store a conversation. Where another tab has stored its own continuation meanwhile, this one becomes a conversation
 * of its own, and nothing of either is lost. Throws where the browser's storage is full.
 */
export function write(conversation) {
  const stored = read(conversation.id);
  if (stored && stored.revision !== conversation.revision) {
    conversation.id = newId();
    conversation.title = `${conversation.title} (2)`;
  }
  conversation.revision = newId();
  conversation.at = Date.now();
  conversation.title ||= titleOf(conversation);
  localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
}

export const remove = (id) => localStorage.removeItem(PREFIX + id);

/** Call `listener(id)` when another tab stores or removes a conversation. */
export function onChange(listener) {
  addEventListener("storage", ({ key }) => {
    if (key?.startsWith(PREFIX)) listener(key.slice(PREFIX.length));
  });
}

function titleOf({ messages }) {
  const first = messages.find((message) => message.role === "user")?.text ?? "";
  const line = first.trim().split("\n")[0];
  return line.length > TITLE_CHARS ? `${line.slice(0, TITLE_CHARS)}…` : line || "New chat";
}
