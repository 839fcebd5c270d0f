// A message as it is shown.

import { copyButton, h, setText } from "./dom.js";
import { plural, rate, seconds, whole } from "./format.js";
import { Markdown } from "./markdown.js";

const WHO = { user: "You", assistant: "Answer", tool: "Result of a tool" };

/** What a question or a tool's result looks like. `actions`: buttons. */
export function plainMessage(message, actions = []) {
  return h(
    "li",
    { class: `message ${message.role}` },
    h("h2", { class: "visually-hidden" }, WHO[message.role]),
    h("div", { class: "text" }, message.text),
    h("div", { class: "meta" }, h("span", { class: "actions" }, ...actions)),
  );
}

/** An answer, while it comes and after. */
export class AnswerView {
  #calls = [];
  #due = null;
  #cost = 0;
  #shownAt = 0;

  /** `announce(text)` is told each paragraph that is done. */
  constructor(announce) {
    this.thought = h("div", { class: "markdown" });
    this.summary = h("summary", {}, "Reasoning");
    this.reasoning = h("details", { class: "reasoning", hidden: true }, this.summary, this.thought);
    this.content = h("div", { class: "markdown" });
    this.callList = h("div", { class: "calls" });
    this.notice = h("p", { class: "notice", role: "status" });
    this.facts = h("span", { class: "facts" });
    this.actions = h("span", { class: "actions" });
    this.element = h(
      "li",
      { class: "message assistant" },
      h("h2", { class: "visually-hidden" }, WHO.assistant),
      this.reasoning,
      this.content,
      this.callList,
      this.notice,
      h("div", { class: "meta" }, this.facts, this.actions),
    );
    this.thoughts = new Markdown(this.thought);
    this.words = new Markdown(this.content, announce);
  }

  /** Show `message` soon: at most once a frame, and so seldom that showing takes a quarter of the time. */
  update(message, onShown) {
    this.latest = message;
    if (this.#due !== null) return;
    const rest = Math.max(0, this.#shownAt + 3 * this.#cost - performance.now());
    this.#due = setTimeout(() => requestAnimationFrame(() => this.#frame(onShown)), rest);
  }

  #frame(onShown) {
    this.#due = null;
    if (!this.element.classList.contains("done")) {
      this.show(this.latest, false);
      onShown();
    }
  }

  show(message, done) {
    const before = performance.now();
    this.element.classList.toggle("done", done);
    this.element.setAttribute("aria-busy", String(!done));
    this.reasoning.hidden = !message.reasoning;
    if (message.reasoning) this.thoughts.show(message.reasoning, done || Boolean(message.text));
    setText(this.summary, message.reasoning && !message.text && !done ? "Reasoning …" : "Reasoning");
    this.words.show(message.text, done);
    this.#showCalls(message.calls ?? []);
    setText(this.facts, done || message.usage ? facts(message) : "");
    this.#shownAt = performance.now();
    this.#cost = this.#shownAt - before;
  }

  #showCalls(calls) {
    calls.forEach((call, at) => {
      const view = (this.#calls[at] ??= new CallView(this.callList));
      view.show(call);
    });
  }

  tell(text, isError = false) {
    setText(this.notice, text);
    this.notice.classList.toggle("error", isError);
  }
}

/** A call of a tool: its name, its arguments, and a place for what came of it. */
class CallView {
  constructor(parent) {
    this.name = h("code");
    this.json = document.createTextNode("");
    parent.append(
      h("section", { class: "call" }, h("h3", {}, "Calls ", this.name), h("pre", { tabIndex: 0 }, h("code", {}, this.json))),
    );
  }

  show(call) {
    setText(this.name, call.name);
    const text = pretty(call.arguments);
    if (this.json.data !== text) this.json.data = text;
  }
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // not whole yet
  }
}

/** A form for what the tools said, once an answer ends with calls. */
export function resultsForm(calls, send) {
  const fields = calls.map((call) => h("textarea", { rows: 2, required: true, "aria-label": `Result of ${call.name}` }));
  const rows = calls.map((call, at) => h("label", {}, h("span", {}, `Result of ${call.name}`), fields[at]));
  const submit = (event) => {
    event.preventDefault();
    send(calls.map((call, at) => ({ role: "tool", id: call.id, text: fields[at].value })));
  };
  return h("form", { class: "results", onsubmit: submit }, ...rows, h("button", { class: "primary" }, "Send results"));
}

export const copyAnswer = (message) => copyButton(() => message.text, "Copy");

const ENDS = { length: "cut off at the length limit", tool_calls: "waits for its tools", stopped: "stopped" };

/** The line below an answer: `128 tokens · first after 0.21 s · 43.1 tokens/s · 960 of 1,024 prompt tokens cached`. */
export function facts({ usage, ttft, rate: speed, finish }) {
  const parts = [];
  if (usage) parts.push(plural(usage.completion, "token"));
  if (ttft !== null && ttft !== undefined) parts.push(`first after ${seconds(ttft)}`);
  if (speed) parts.push(`${rate(speed)} tokens/s`);
  if (usage) parts.push(`prompt ${whole(usage.prompt)}${usage.cached ? `, ${whole(usage.cached)} cached` : ""}`);
  if (ENDS[finish]) parts.push(ENDS[finish]);
  return parts.join(" · ");
}
