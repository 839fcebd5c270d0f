// The chat: a conversation, its messages, and the answer on its way.

import { announce } from "./announce.js";
import * as conversations from "./conversations.js";
import { askKey, confirmRemoval } from "./dialogs.js";
import { byId, h } from "./dom.js";
import { AnswerView, copyAnswer, plainMessage, resultsForm } from "./message.js";
import { uncover } from "./panels.js";
import { Pinned } from "./pinned.js";
import { Run } from "./run.js";
import * as settings from "./settings.js";

const CURRENT = "bireme.current"; // the open conversation, for this tab

export class Chat {
  #runs = new Map(); // conversation -> its run: an answer goes on while another conversation is looked at
  #conversation;

  constructor(onModelUsed) {
    this.onModelUsed = onModelUsed;
    this.list = byId("messages");
    this.input = byId("question");
    this.pinned = new Pinned(byId("thread"), byId("to-end"));
    byId("composer").addEventListener("submit", (event) => (event.preventDefault(), this.#submit()));
    byId("stop").addEventListener("click", () => this.#run?.stop());
    byId("new-chat").addEventListener("click", () => (uncover(), this.open(conversations.fresh())));
    this.input.addEventListener("keydown", (event) => this.#key(event));
    this.input.addEventListener("input", () => this.#fit());
    document.addEventListener("keydown", (event) => event.key === "Escape" && !event.isComposing && this.#escape());
    conversations.onChange((id) => this.#changedElsewhere(id));
    this.open(conversations.read(sessionStorage.getItem(CURRENT)) ?? conversations.fresh(), false);
  }

  get #run() {
    return this.#runs.get(this.#conversation);
  }

  /** Show a conversation; one with a run under way is the same object as the run's. */
  open(conversation, focus = true) {
    const running = [...this.#runs.keys()].find((one) => one.id === conversation.id);
    this.#conversation = running ?? conversation;
    sessionStorage.setItem(CURRENT, this.#conversation.id);
    this.#render();
    this.pinned.toEnd();
    if (focus) this.input.focus();
  }

  #changedElsewhere(id) {
    const stored = conversations.read(id);
    if (stored && id === this.#conversation.id && !this.#run) this.open(stored, false);
    else this.#renderList();
  }

  #key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#submit();
  }

  /** Away with a side that lies over the thread; else the answer stops. A dialog has its own Escape. */
  #escape() {
    if (byId("chat").hidden || document.querySelector("dialog[open]")) return;
    if (!uncover()) this.#run?.stop();
  }

  /** The field is as high as its text, up to a third of the window. */
  #fit() {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight + 2, innerHeight / 3)}px`;
  }

  #submit() {
    const text = this.input.value.trim();
    if (!text || this.#run) return;
    if (!this.#answer([{ role: "user", text }])) return;
    this.input.value = "";
    this.#fit();
    this.input.focus();
  }

  /** Ask with `added` messages at the conversation's end; false where the settings don't allow it. */
  #answer(added, keep = this.#conversation.messages.length) {
    let extra;
    try {
      extra = settings.body();
    } catch (error) {
      this.#tell(error.message);
      return false;
    }
    const conversation = this.#conversation;
    conversation.messages.splice(keep, Number.POSITIVE_INFINITY, ...added);
    const view = new AnswerView(announce);
    const body = {
      messages: requestMessages(conversation.messages),
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
      ...extra,
    };
    const run = new Run(body, {
      askKey,
      waiting: (text) => (view.tell(text), this.pinned.follow()),
      changed: ({ reply }) => view.update(messageOf(reply), () => this.pinned.follow()),
    });
    run.view = view;
    this.#runs.set(conversation, run);
    this.#save(conversation);
    this.#render();
    this.pinned.toEnd();
    announce("Answering.");
    this.#follow(conversation, run);
    return true;
  }

  async #follow(conversation, run) {
    await run.finish();
    this.#runs.delete(conversation);
    const message = messageOf(run.reply);
    if (run.stopped) message.finish = "stopped";
    if (run.error) message.error = run.error.message;
    run.view.show(message, true);
    conversation.messages.push(message);
    this.#save(conversation);
    if (conversation === this.#conversation) this.#finished(conversation, run.view, message);
    announce(message.error ?? (run.stopped ? "Stopped." : "The answer is complete."));
    this.onModelUsed();
  }

  /** The answer stays as it was rendered; only its buttons come. */
  #finished(conversation, view, message) {
    this.#dress(view, message, conversation.messages.length - 1);
    this.#showBusy();
    this.pinned.follow();
  }

  #save(conversation) {
    try {
      conversations.write(conversation);
      if (conversation === this.#conversation) sessionStorage.setItem(CURRENT, conversation.id);
    } catch {
      this.#tell("This browser's storage is full: the conversation goes on, but it is not kept. Remove old ones to make room.");
    }
    this.#renderList();
  }

  #tell(text) {
    byId("chat-problem").textContent = text;
  }

  #render() {
    const { messages } = this.#conversation;
    const within = this.list.contains(document.activeElement);
    this.#tell("");
    this.list.replaceChildren(...messages.map((message, at) => this.#message(message, at)));
    if (this.#run) this.list.append(this.#run.view.element);
    byId("welcome").hidden = messages.length > 0;
    if (within) this.#focusThread();
    this.#showBusy();
    this.#renderList();
  }

  /** Where the focus goes when what had it is gone; not into the question, which would bring up a phone's keyboard. */
  #focusThread() {
    byId("thread").focus({ preventScroll: true });
  }

  #showBusy() {
    const busy = Boolean(this.#run);
    const held = document.activeElement;
    byId("send").hidden = busy;
    byId("stop").hidden = !busy;
    for (const button of this.list.querySelectorAll(".when-idle")) button.disabled = busy;
    if (held.hidden || held.disabled) this.#focusThread();
  }

  #message(message, at) {
    if (message.role === "assistant") {
      const view = new AnswerView(() => {});
      view.show(message, true);
      this.#dress(view, message, at);
      return view.element;
    }
    const isLast = at === this.#conversation.messages.findLastIndex((one) => one.role === "user");
    const edit = h("button", { type: "button", class: "quiet when-idle", onclick: () => this.#edit(at) }, "Edit");
    return plainMessage(message, isLast && message.role === "user" ? [edit] : []);
  }

  /** Buttons below an answer, and the form for its tools' results, where it is the last. */
  #dress(view, message, at) {
    const isLast = at === this.#conversation.messages.length - 1;
    const again = h("button", { type: "button", class: "quiet when-idle", onclick: () => this.#answer([], at) }, message.error ? "Try again" : "Regenerate");
    view.actions.replaceChildren(...(message.text ? [copyAnswer(message)] : []), ...(isLast ? [again] : []));
    if (message.error) view.tell(message.error, true);
    for (const old of this.list.querySelectorAll("form.results")) old.remove();
    if (isLast && message.finish === "tool_calls") {
      view.callList.append(resultsForm(message.calls, (results) => this.#answer(results)));
    }
  }

  /** Put the question back into a field; what followed it is asked anew. */
  #edit(at) {
    const { messages } = this.#conversation;
    const area = h("textarea", { value: messages[at].text, rows: 4, "aria-label": "Edit the question" });
    const close = () => {
      this.#render();
      this.list.children[at].querySelector("button").focus();
    };
    const send = (event) => {
      event.preventDefault();
      if (area.value.trim()) this.#answer([{ role: "user", text: area.value.trim() }], at);
    };
    const cancel = h("button", { type: "button", class: "quiet", onclick: close }, "Cancel");
    const form = h("form", { class: "edit", onsubmit: send }, area, h("div", {}, h("button", { class: "primary" }, "Ask"), cancel));
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
      if (event.key === "Escape") close();
    });
    this.list.children[at].replaceChildren(form);
    area.focus();
  }

  /** Who was in the list stays there: at the same button, else at the next one. */
  #renderList() {
    const list = byId("chats");
    const held = document.activeElement;
    const at = [...list.querySelectorAll("button")].indexOf(held);
    list.replaceChildren(...conversations.list().map((one) => this.#entry(one)));
    if (at < 0) return;
    const now = [...list.querySelectorAll("button")];
    const same = now.find((one) => one.dataset.id === held.dataset.id && one.className === held.className);
    (same ?? now.at(Math.min(at, now.length - 1)) ?? byId("new-chat")).focus();
  }

  #entry({ id, title }) {
    const open = () => {
      const conversation = conversations.read(id);
      uncover();
      if (conversation) this.open(conversation);
    };
    const current = id === this.#conversation.id ? "true" : undefined;
    return h(
      "li",
      {},
      h("button", { type: "button", class: "chat-title", "data-id": id, "aria-current": current, onclick: open }, title),
      h("button", { type: "button", class: "quiet remove", "data-id": id, "aria-label": `Remove “${title}”`, onclick: () => this.#remove(id, title) }, "×"),
    );
  }

  async #remove(id, title) {
    if (!(await confirmRemoval(title))) return;
    for (const [conversation, run] of this.#runs) if (conversation.id === id) run.stop();
    conversations.remove(id);
    if (id === this.#conversation.id) this.open(conversations.fresh(), false);
    else this.#renderList();
  }
}

const messageOf = (reply) => ({
  role: "assistant",
  text: reply.content,
  reasoning: reply.reasoning,
  calls: reply.calls,
  usage: reply.usage,
  ttft: reply.ttft,
  rate: reply.rate,
  finish: reply.finish,
});

/** Messages as the API takes them. Answers that failed before their first word are left out. */
function requestMessages(messages) {
  const system = settings.system();
  const told = messages.filter((one) => one.role !== "assistant" || one.text || one.calls?.length).map(requestMessage);
  return system ? [{ role: "system", content: system }, ...told] : told;
}

function requestMessage({ role, text, calls, id }) {
  if (role === "tool") return { role, tool_call_id: id, content: text };
  if (!calls?.length) return { role, content: text };
  const tool_calls = calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  return { role, content: text, tool_calls };
}
